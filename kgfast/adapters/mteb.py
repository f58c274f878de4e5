"""mteb's search index (``IndexEncoderSearchProtocol``, mteb 2): exact, in bounded memory.

SearchEncoderWrapper(model, index_backend=kgfast.adapters.mteb.KgfastSearchIndex(model))

mteb itself is not imported: mteb's wrapper calls the three methods.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from kgfast.adapters.vectors import VectorSearch
from kgfast.text import shown

__all__ = ["KgfastSearchIndex"]


class KgfastSearchIndex:
    """Exact search among embeddings, with the interface of mteb's ``FaissSearchIndex``.

    Parameters
    ----------
    model : EncoderProtocol
        A model of mteb. Its ``mteb_model_meta.similarity_fn_name`` names the similarity: cosine,
        dot, euclidean or manhattan.
    similarity : str, optional
        One of these names, for a model without a name.
    max_memory : int or str, optional
        Bytes of embeddings in memory, such as ``"4GiB"``: a quarter of free memory by default. More
        embeddings lie in a file, which is read in blocks.
    folder : path, optional
        An existing folder for that file; by default the folder of temporary files.

    Raises
    ------
    ValueError
        For a similarity of another name.

    Examples
    --------
    >>> import numpy as np
    >>> index = KgfastSearchIndex(None, similarity="cosine")
    >>> index.add_documents(np.eye(3, 2, dtype=np.float32), ["a", "b", "zero"])
    >>> index.search(np.array([[2.0, 0.0]]), 2, None)
    ([[1.0, 0.0]], [[0, 1]])
    """

    def __init__(
        self,
        model: Any,
        *,
        similarity: str | None = None,
        max_memory: int | str | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        if similarity is None:
            meta = getattr(model, "mteb_model_meta", None)
            name = getattr(meta, "similarity_fn_name", None)
            similarity = str(getattr(name, "value", name))
        self.rows = VectorSearch(similarity, max_memory=max_memory, folder=folder)
        self.idxs: list[str] = []

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add embeddings ``[n, D]`` of documents, and the ``n`` ids of the documents.

        Raises
        ------
        TypeError, ValueError
            For embeddings of another kind, dtype or width than earlier ones, another number of ids,
            and a NaN or an infinity; the message names the row.
        """
        if len(idxs) != len(embeddings):
            raise ValueError(f"idxs must have {len(embeddings)} ids, one a row; got {len(idxs)}")
        self.rows.add(embeddings)
        self.idxs.extend(idxs)

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Any,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Find the ``top_k`` best documents of each query; the first document among equal scores.

        Parameters
        ----------
        embeddings : Tensor or array
            ``[B, D]`` of queries.
        top_k : int
            Number of documents, at least 1; all documents if there are fewer.
        similarity_fn : callable
            The model's own, which is not called.
        top_ranked, query_idx_to_id : mapping, optional
            Ids of documents by the id of a query, and the id of a query by row. If given, places in
            these lists are returned, as mteb expects.

        Returns
        -------
        scores, places : list of list
            From best to worst.

        Raises
        ------
        TypeError, ValueError
            For queries that do not fit the documents, a NaN or an infinity, ids of unknown
            documents, and without documents.
        """
        if top_ranked is None:
            scores, places = self.rows.search(embeddings, top_k)
            return scores.tolist(), places.tolist()
        if query_idx_to_id is None:
            raise ValueError("query_idx_to_id must be given with top_ranked")
        queries = [query_idx_to_id[row] for row in range(len(embeddings))]
        known = {name: row for row, name in enumerate(self.idxs)}
        listed = []
        for query in queries:
            names = top_ranked.get(query) or ()
            unknown = next((name for name in names if name not in known), None)
            if unknown is not None:
                raise ValueError(
                    f"top_ranked[{shown(query)}] must name documents that were added; got "
                    f"{shown(unknown)}"
                )
            listed.append({known[name]: place for place, name in enumerate(names)})
        best = list(self.rows.among(embeddings, top_k, [list(it) for it in listed]))
        both = list(zip(best, listed, strict=True))
        return [[score for score, _ in it] for it in best], [
            [places[row] for _, row in found] for found, places in both
        ]

    def clear(self) -> None:
        """Forget all documents, and remove the file of embeddings."""
        self.rows.clear()
        self.idxs = []

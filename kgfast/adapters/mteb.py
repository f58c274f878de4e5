"""mteb's search index (``IndexEncoderSearchProtocol``, mteb 2): exact, without all scores.

SearchEncoderWrapper(model, index_backend=kgfast.adapters.mteb.KgfastSearchIndex(model))

mteb itself is not imported: mteb's wrapper calls the three methods.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast import ops, tables
from kgfast.eval import topk_rows
from kgfast.models import from_array
from kgfast.text import shown

__all__ = ["KgfastSearchIndex"]

SIMILARITIES = {"cosine": "dot", "dot": "dot", "euclidean": "l2", "manhattan": "l1"}  # scores
_BYTES = (torch.int8, torch.uint8)  # dtypes of quantised embeddings, which float32 holds exactly


class KgfastSearchIndex:
    """Exact search among embeddings, with the interface of mteb's ``FaissSearchIndex``.

    Scores are canonical float64 scores, rounded once; the first document comes first among equals.
    Errors (ValueError, TypeError) name the argument and the first row; no row was added then.

    Parameters
    ----------
    model : EncoderProtocol
        A model of mteb, whose ``mteb_model_meta.similarity_fn_name`` names the similarity.
    similarity : {"cosine", "dot", "euclidean", "manhattan"}, optional
        The similarity for a model without a name. For cosines each row is divided by its length in
        float64 and rounded to float32; a row of zeros has the cosine 0 with every row.

    Examples
    --------
    >>> import numpy as np
    >>> index = KgfastSearchIndex(None, similarity="cosine")
    >>> index.add_documents(np.eye(3, 2, dtype=np.float32), ["a", "b", "zero"])
    >>> index.search(np.array([[2.0, 0.0]]), 2, None)
    ([[1.0, 0.0]], [[0, 1]])
    """

    idxs: list[str]
    _parts: list[Tensor]

    def __init__(self, model: Any, *, similarity: str | None = None) -> None:
        if similarity is None:
            name = getattr(getattr(model, "mteb_model_meta", None), "similarity_fn_name", None)
            similarity = str(getattr(name, "value", name))
        if similarity not in SIMILARITIES:
            known = ", ".join(SIMILARITIES)
            raise ValueError(f"similarity must be one of {known}; got {shown(similarity)}")
        self.similarity = similarity
        self.clear()

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add embeddings ``[n, D]`` of documents, and the ``n`` ids of the documents."""
        if len(idxs) != len(embeddings):
            raise ValueError(f"idxs must have {len(embeddings)} ids, one a row; got {len(idxs)}")
        rows = self._compared(embeddings)
        if self._parts and rows.dtype != self._parts[0].dtype:
            earlier = f"{self._parts[0].dtype}, as earlier ones"
            raise TypeError(f"embeddings must be {earlier}; got {rows.dtype}")
        self._parts.append(rows)
        self.idxs.extend(idxs)

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Any,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """Find scores and places of the ``top_k`` best documents of each query ``[B, D]``.

        ``similarity_fn`` is not called. With ``top_ranked``, which lists ids of documents by the id
        of a query, and ``query_idx_to_id``, documents and places are those of the lists.
        """
        if not self._parts:
            raise ValueError("there are no documents: add embeddings before queries are searched")
        self._parts = [torch.cat(self._parts)]
        table = self._parts[0]
        queries = self._compared(embeddings).to(table.device)
        places: list[dict[int, int]] = []
        lists = None
        if top_ranked is not None:
            if query_idx_to_id is None:
                raise ValueError("query_idx_to_id must be given with top_ranked")
            known = {name: row for row, name in enumerate(self.idxs)}
            for row in range(len(queries)):
                query = query_idx_to_id[row]
                names = top_ranked.get(query) or ()
                unknown = next((name for name in names if name not in known), None)
                if unknown is not None:
                    needed = "must name documents that were added"
                    raise ValueError(f"top_ranked[{shown(query)}] {needed}; got {shown(unknown)}")
                places.append({known[name]: place for place, name in enumerate(names)})
            longest = max(map(len, places), default=0)
            padded = [[*of, *[-1] * (longest - len(of))] for of in places]
            lists = torch.tensor(padded, dtype=torch.int64, device=table.device)
            lists = lists.reshape(len(queries), longest)
        options: dict[str, Any] = {"candidate_ids": lists, "score": SIMILARITIES[self.similarity]}
        scores, ids = topk_rows(queries, table, top_k, **options, pad=True)
        documents = [row[row >= 0].tolist() for row in ids]
        values = [row[: len(of)].tolist() for row, of in zip(scores, documents, strict=True)]
        if top_ranked is not None:
            documents = [[of[id] for id in row] for of, row in zip(places, documents, strict=True)]
        return values, documents

    def clear(self) -> None:
        """Forget all documents."""
        self.idxs, self._parts = [], []

    def _compared(self, embeddings: Any) -> Tensor:
        """Return a copy of embeddings ``[n, D]`` as compared: for cosines of length 1 or 0."""
        values = from_array("embeddings", embeddings).detach().resolve_neg()
        if values.dtype in _BYTES:
            values = values.float()
        if values.dtype not in ops.TABLE_DTYPES:
            raise TypeError(f"embeddings must be floating point, int8 or uint8; got {values.dtype}")
        if values.ndim != 2 or not values.shape[1]:
            raise ValueError(f"embeddings must have shape [n, D]; got {list(values.shape)}")
        if self._parts and values.shape[1] != self._parts[0].shape[1]:
            needed = f"{self._parts[0].shape[1]} columns, as the documents have"
            raise ValueError(f"embeddings must have {needed}; got {values.shape[1]}")
        wrong = (~values.isfinite().all(1)).nonzero()
        if len(wrong):
            place = f"row {int(wrong[0])} of {len(values)}"
            raise ValueError(f"embeddings: {place} holds a NaN or an infinity")
        if self.similarity != "cosine":
            return values.clone()
        return tables.UnitRows.of(values).block(0, len(values))

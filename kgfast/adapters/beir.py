"""beir's exact search (``DenseRetrievalExactSearch``, beir 2): exact, in bounded memory.

EvaluateRetrieval(kgfast.adapters.beir.KgfastExactSearch(model), score_function="cos_sim")

beir itself is not imported: beir's evaluation calls the three methods of ``BaseSearch``.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kgfast.adapters.vectors import VectorSearch
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

__all__ = ["KgfastExactSearch"]

Corpus = Mapping[str, Mapping[str, str]]

_SIMILARITIES = {"cos_sim": "cosine", "dot": "dot"}  # scores by beir's names


class KgfastExactSearch:
    """Exact dense search with the interface of beir's ``DenseRetrievalExactSearch``.

    Parameters
    ----------
    model : object
        beir's encoder, with ``encode_queries`` and ``encode_corpus``.
    batch_size : int
        Texts that the encoder takes at once.
    corpus_chunk_size : int
        Documents per call of ``encode_corpus``; results depend on this number only through the
        encoder.
    max_memory, folder
        As :class:`kgfast.adapters.vectors.VectorSearch` takes them: embeddings that need more
        memory lie in a file.
    show_progress_bar, convert_to_tensor : bool
        Arguments for the encoder.
    """

    def __init__(
        self,
        model: Any,
        batch_size: int = 128,
        corpus_chunk_size: int = 50_000,
        *,
        max_memory: int | str | None = None,
        folder: str | os.PathLike[str] | None = None,
        show_progress_bar: bool = True,
        convert_to_tensor: bool = True,
    ) -> None:
        if corpus_chunk_size < 1:
            raise ValueError(f"corpus_chunk_size must be at least 1; got {corpus_chunk_size}")
        self.model, self.corpus_chunk_size = model, corpus_chunk_size
        self._options = {
            "batch_size": batch_size,
            "show_progress_bar": show_progress_bar,
            "convert_to_tensor": convert_to_tensor,
        }
        self._memory: dict[str, Any] = {"max_memory": max_memory, "folder": folder}
        self.results: dict[str, dict[str, float]] = {}

    def search(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str,
        return_sorted: bool = False,
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Find the ``top_k`` best documents of each query, without the document of the query's id.

        Documents are encoded from the longest to the shortest, as in beir. Equal scores stand in
        that order. Results are always sorted.

        Returns
        -------
        dict
            Scores of documents by the id of a query, from best to worst.

        Raises
        ------
        ValueError, TypeError
            For another ``score_function`` than ``"cos_sim"`` and ``"dot"``, an empty corpus, and
            embeddings that are not finite or do not fit; the message names the row.
        """
        rows = self._rows(score_function)
        asked = self._encoded_queries(queries)
        names: list[str] = []
        for some, texts in self._chunks(corpus):
            rows.add(self.model.encode_corpus(texts, **self._options))
            names += some
        self.results = _best(rows, list(queries), asked, names, top_k)
        return self.results

    def encode(
        self,
        corpus: Corpus,
        queries: Mapping[str, str],
        encode_output_path: str = "./embeddings/",
        overwrite: bool = False,
        query_filename: str = "queries.pkl",
        corpus_filename: str = "corpus.*.pkl",
        **kwargs: Any,
    ) -> None:
        """Write embeddings to files with beir's names; existing files stay.

        A file is an archive of numpy (``embeddings``, ``ids``): no pickle.
        """
        folder = Path(encode_output_path)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / query_filename
        if overwrite or not path.exists():
            _save(path, self._encoded_queries(queries), list(queries))
        for part, (names, texts) in enumerate(self._chunks(corpus)):
            path = folder / corpus_filename.replace("*", str(part))
            if overwrite or not path.exists():
                _save(path, self.model.encode_corpus(texts, **self._options), names)

    def search_from_files(
        self,
        query_embeddings_file: str,
        corpus_embeddings_files: Sequence[str],
        top_k: int,
        score_function: str = "dot",
        **kwargs: Any,
    ) -> dict[str, dict[str, float]]:
        """Find the best documents in files of :meth:`encode`, which are read one by one by name.

        As in beir, a document of the query's own id is found, too.

        Raises
        ------
        FileNotFoundError
            If a file is not there.
        ValueError, TypeError
            For a file that :meth:`encode` did not write, and as :meth:`search`.
        """
        rows = self._rows(score_function)
        asked, queries = _load(query_embeddings_file)
        names: list[str] = []
        for path in sorted(corpus_embeddings_files):
            embeddings, some = _load(path)
            rows.add(embeddings)
            names += some
        self.results = _best(rows, queries, asked, names, top_k, keeps_own=True)
        return self.results

    def _rows(self, score_function: str) -> VectorSearch:
        if score_function not in _SIMILARITIES:
            known = ", ".join(_SIMILARITIES)
            raise ValueError(f"score_function must be one of {known}; got {shown(score_function)}")
        return VectorSearch(_SIMILARITIES[score_function], **self._memory)

    def _encoded_queries(self, queries: Mapping[str, str]) -> Any:
        return self.model.encode_queries(list(queries.values()), **self._options)

    def _chunks(self, corpus: Corpus) -> Iterator[tuple[list[str], list[Mapping[str, str]]]]:
        """Yield ids and documents from the longest to the shortest, some at a time."""

        def length(name: str) -> int:
            return len(corpus[name].get("title", "") + corpus[name].get("text", ""))

        names = sorted(corpus, key=length, reverse=True)
        for first in range(0, len(names), self.corpus_chunk_size):
            some = names[first : first + self.corpus_chunk_size]
            yield some, [corpus[name] for name in some]


def _best(
    rows: VectorSearch,
    queries: Sequence[str],
    asked: Any,
    names: Sequence[str],
    top_k: int,
    *,
    keeps_own: bool = False,
) -> dict[str, dict[str, float]]:
    """Return the best documents by the id of a query, without the document of that id."""
    if len(queries) != len(asked):
        raise ValueError(f"encode_queries must give {len(queries)} rows; got {len(asked)}")
    if len(names) != len(rows):
        raise ValueError(f"encode_corpus must give {len(names)} rows; got {len(rows)}")
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1; got {top_k}")
    scores, ids = rows.search(asked, top_k if keeps_own else top_k + 1)
    results = {}
    for query, values, places in zip(queries, scores.tolist(), ids.tolist(), strict=True):
        found = {names[row]: value for row, value in zip(places, values, strict=True)}
        if not keeps_own and found.pop(query, None) is None:
            found = dict(list(found.items())[:top_k])
        results[query] = found
    return results


def _save(path: Path, embeddings: Any, ids: Sequence[str]) -> None:
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach().float().cpu().numpy()

    def write(beside: Path) -> None:
        with beside.open("wb") as file:  # np.savez would add a suffix to a path
            np.savez(file, embeddings=embeddings, ids=np.array(ids, dtype=np.str_))

    write_whole(path, write)


def _load(path: str) -> tuple[Any, list[str]]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such file")
    problem = "not written by KgfastExactSearch.encode: encode again"
    with reading(path, problem), np.load(path, allow_pickle=False) as archive:
        return archive["embeddings"], archive["ids"].tolist()

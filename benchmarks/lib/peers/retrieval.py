"""Searches of mteb among embeddings that are there: its default, and its faiss index."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Lists = tuple[list[list[float]], list[list[int]]]

CHUNK = 50_000  # documents of mteb's default at once


class Corpus:
    """Documents that are numbers, with the methods of a data set that mteb calls."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, name: str) -> list[str]:
        return [str(it) for it in self.numbers]

    def select(self, some: range) -> "Corpus":
        """Return some of the documents."""
        return Corpus(self.numbers[some.start : some.stop])


def default(documents: Array, queries: Array, k: int) -> Callable[[], list[list[int]]]:
    """Search as mteb does without an index: a matrix of scores for each chunk, and heaps."""
    from mteb.models import search_wrappers
    from mteb.similarity_functions import cos_sim

    names = {row: str(row) for row in range(len(queries))}

    def search() -> list[list[int]]:
        # mteb's loader hands texts to an encoder; here the embeddings are there.
        with mock.patch.object(search_wrappers, "create_dataloader", lambda some, **_: some):
            heaps = search_wrappers.chunked_full_corpus_search(
                task_corpus=Corpus(range(len(documents))),
                corpus_chunk_size=CHUNK,
                query_idx_to_id=names,
                query_embeddings=queries,
                task_metadata=None,
                hf_subset="",
                hf_split="",
                top_k=k,
                encode_kwargs={"show_progress_bar": False},
                encode_fn=lambda some, **_: np.array(
                    documents[some.numbers.start : some.numbers.stop]
                ),
                similarity_fn=cos_sim,
                search_k_offset=1,
            )
        return list(_ids(heaps))

    return search


def faiss_index() -> Any:
    """Return mteb's index of faiss for cosines, with as many threads as torch and BLAS always."""
    import faiss
    from mteb.models.model_meta import ScoringFunction
    from mteb.models.search_encoder_index import FaissSearchIndex

    faiss.omp_set_num_threads(torch.get_num_threads())
    faiss.cvar.distance_compute_blas_threshold = 1  # the default is slower for many queries
    meta = mock.Mock(similarity_fn_name=ScoringFunction.COSINE)
    return FaissSearchIndex(mock.Mock(mteb_model_meta=meta))


def _ids(heaps: dict[str, list[tuple[float, str]]]) -> Iterator[list[int]]:
    """Yield ids from best to worst."""
    for heap in heaps.values():
        yield [int(name) for _, name in sorted(heap, key=lambda it: (-it[0], int(it[1])))]

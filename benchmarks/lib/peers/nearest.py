"""The best k of all rows by torch at once, faiss IndexFlat and usearch's exact search.

faiss and usearch have dot products and L2 only. All compare float32 scores: among scores closer
than float32 tells they may choose others than kgfast.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lib.peers import building
from lib.peers.topk import Search

Ids = Tensor  # [B, k]
SCORES = ("dot", "l2")


def brute_force(search: Search, score: str) -> Callable[[], Ids]:
    """Search by one matrix of scores and torch.topk."""
    norms = search.table.square().sum(1)

    def best() -> Ids:
        scores = search.queries @ search.table.T
        if score == "l2":  # |q|^2 orders nothing
            scores.mul_(2).sub_(norms)
        return scores.topk(search.k).indices

    return best


def faiss_flat(search: Search, score: str) -> Callable[[], Ids]:
    """Search by IndexFlatIP or IndexFlatL2, with as many threads as torch."""
    with building():
        import faiss
    faiss.omp_set_num_threads(torch.get_num_threads())
    width = search.table.shape[1]
    index = faiss.IndexFlatIP(width) if score == "dot" else faiss.IndexFlatL2(width)
    index.add(search.table.numpy())
    return lambda: torch.from_numpy(index.search(search.queries.numpy(), search.k)[1])


def usearch_exact(search: Search, score: str) -> Callable[[], Ids]:
    """Search the table in place, exactly."""
    with building():
        from usearch.index import MetricKind
        from usearch.index import search as nearest
    metric = MetricKind.IP if score == "dot" else MetricKind.L2sq
    table, queries = search.table.numpy(), search.queries.numpy()
    options = {"exact": True, "threads": torch.get_num_threads()}

    def best() -> Ids:
        keys = nearest(table, queries, search.k, metric, **options).keys
        return torch.from_numpy(keys.astype("int64")).reshape(len(queries), -1)

    return best

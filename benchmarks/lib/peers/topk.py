"""The best k by torch in chunks, torch.compile, KeOps, PyKEEN.

All sort float32 scores: among scores closer than float32 tells they may choose others than kgfast.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.peers import TRIED_ROWS, building, fastest, import_keops, rotate_scores
from lib.peers.ranks import PyKEEN

Best = tuple[Tensor, Tensor]  # scores [B, k], ids [B, k]
EAGER_CHUNKS = {"cpu": (2, 4, 8, 32, 64, 256), "cuda": (256, 1024, 4096, 16384)}
COMPILED_CHUNKS = (64, 256, 1024, 8192)
QUERY_CHUNKS = (32, 128, 512, 2048)  # queries of an output head
OUTPUT_CHUNKS = (1 << 11, 1 << 13, 1 << 15, 1 << 17, 1 << 18)  # rows of a chunk of many outputs


@dataclass(frozen=True)
class Search:
    """The best k of all rows of a table for B queries."""

    queries: Tensor  # [B, F]
    table: Tensor  # [N, F]
    k: int

    @property
    def device(self) -> str:
        """Return ``cpu`` or ``cuda``."""
        return self.table.device.type

    def first_rows(self, count: int) -> "Search":
        """Return the search among the first rows."""
        return Search(self.queries, self.table[:count], self.k)


def score_block(queries: Tensor, rows: Tensor) -> Tensor:
    """Score a chunk of rows, ``[B, C]``."""
    return rotate_scores(queries[:, None], rows[None])


def dot_block(queries: Tensor, rows: Tensor) -> Tensor:
    """Score a chunk of rows by `dot`."""
    return queries @ rows.T


def best_of(scores: Tensor, k: int) -> Best:
    """Return the best k of each row, by torch's fastest function for such a k."""
    if k == 1:
        best, ids = scores.max(1, keepdim=True)
        return best, ids
    best, ids = scores.topk(min(k, scores.shape[1]))
    return best, ids


class ChunkedRows:
    """torch.topk of chunks of the table, merged with the best so far."""

    def __init__(self, search: Search, block: Callable[..., Tensor], chunk: int) -> None:
        self._search, self._block, self.chunk = search, block, min(chunk, len(search.table))

    def __call__(self) -> Best:
        """Search all chunks."""
        search, k = self._search, self._search.k
        scores = search.queries.new_empty(len(search.queries), 0)
        ids = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
        for first in range(0, len(search.table), self.chunk):
            block = self._block(search.queries, search.table[first : first + self.chunk])
            best, places = best_of(block, k)
            scores, ids = torch.cat([scores, best], 1), torch.cat([ids, places + first], 1)
            scores, order = best_of(scores, k)
            ids = ids.gather(1, order)
        return scores, ids


class ChunkedQueries:
    """torch.topk of the whole rows of scores of some queries at a time."""

    def __init__(self, search: Search, chunk: int) -> None:
        self._search, self.chunk = search, chunk

    def __call__(self) -> Best:
        """Search for all queries."""
        search = self._search
        parts = [
            best_of(queries @ search.table.T, search.k)
            for queries in search.queries.split(self.chunk)
        ]
        return torch.cat([it[0] for it in parts]), torch.cat([it[1] for it in parts])


def eager(search: Search, block: Callable[..., Tensor] = score_block) -> ChunkedRows:
    """Search by plain torch, with the fastest chunk size."""
    part = search.first_rows(min(TRIED_ROWS[search.device], len(search.table)))
    tried = [ChunkedRows(part, block, size) for size in EAGER_CHUNKS[search.device]]
    return ChunkedRows(search, block, fastest(tried, search.device).chunk)


def eager_head(search: Search) -> ChunkedQueries:
    """Search an output head by plain torch, with the fastest number of queries at a time."""
    few = Search(search.queries[: max(QUERY_CHUNKS)], search.table, search.k)
    chunk = fastest([ChunkedQueries(few, size) for size in QUERY_CHUNKS], search.device).chunk
    return ChunkedQueries(search, chunk)


def eager_outputs(search: Search) -> ChunkedRows:
    """Search many outputs by plain torch, with the fastest chunk size."""
    part = search.first_rows(4 * max(OUTPUT_CHUNKS))
    tried = [ChunkedRows(part, dot_block, size) for size in OUTPUT_CHUNKS]
    return ChunkedRows(search, dot_block, fastest(tried, search.device).chunk)


def compiled(search: Search) -> ChunkedRows:
    """Search by torch.compile of a chunk's scores, with the fastest chunk size."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64  # four chunks and their last ones take eight
    sizes = sorted({min(size, len(search.table)) for size in COMPILED_CHUNKS})
    blocks = [torch.compile(score_block, dynamic=it) for it in (False, True)]
    tried = [ChunkedRows(search, block, size) for block in blocks for size in sizes]
    with building():
        return fastest(tried, search.device)


def keops(search: Search) -> Callable[[], Best]:
    """Search by ArgKmin of a symbolic [B, N] matrix, and score what it finds."""
    LazyTensor = import_keops()
    half = search.table.shape[1] // 2
    q_re, q_im = (LazyTensor(it.contiguous()[:, None]) for it in search.queries.split(half, 1))
    c_re, c_im = (LazyTensor(it.contiguous()[None]) for it in search.table.split(half, 1))

    def run() -> Best:
        distance = ((q_re - c_re).square() + (q_im - c_im).square()).sqrt().sum(-1)
        ids = distance.argKmin(search.k, dim=1)
        return rotate_scores(search.queries[:, None], search.table[ids]), ids

    with building():
        run()
    return run


def predict_target(pykeen: PyKEEN, head: int, relation: int, k: int) -> list[int]:
    """Answer one query by PyKEEN, which scores and sorts all entities."""
    from pykeen.predict import predict_target as predict

    found = predict(model=pykeen.model, head=head, relation=relation)
    ids: list[int] = found.df["tail_id"].head(k).tolist()
    return ids


@torch.no_grad()
def score_and_topk(pykeen: PyKEEN, head: int, relation: int, k: int) -> list[int]:
    """Answer one query by the scores of PyKEEN's model and torch.topk."""
    scores = pykeen.model.score_t(torch.tensor([[head, relation]], device=pykeen.model.device))
    ids: list[int] = scores[0].topk(k).indices.tolist()
    return ids

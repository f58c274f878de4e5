"""Exact searches for the best k of all rows: each library by the options that are fastest here.

| peer | options that are tried, at the shape that is measured and in the same process |
|---|---|
| torch | all rows or chunks, `queries @ rows.T` or `rows @ queries.T`; topk |
| torch.compile | the same of a compiled block; for `dot` also as a sum of products |
| faiss Flat | its own loop or BLAS (`distance_compute_blas_threshold`), rows of BLAS's blocks |
| faiss Panorama | levels and rows of a batch, on the principal axes of the table; turning counts |
| NumKong | one product with the table packed in float32, a part for each thread; torch.topk |
| KeOps | ArgKmin of a symbolic matrix |

faiss and NumKong have no score of RotatE. All compare float32 scores: among scores closer
than float32 tells they may choose other rows than kgfast. Inexact indexes are no peers.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from lib.peers import Missing, building, import_keops, rotate_scores

Best = tuple[Tensor, Tensor]  # scores [B, k], ids [B, k]
Ids = Tensor  # [B, k]
Find = Callable[[Tensor], Ids]  # ids of queries [B, F]
Block = Callable[[Tensor, Tensor], Tensor]  # scores [B, C] of queries and rows
CHUNKS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 62)  # rows; the last: the whole table
COMPILED_CHUNKS = (1 << 10, 1 << 13, 1 << 16)
SMALL_CHUNKS = (1 << 6, 1 << 8)  # for differences, which are far larger than scores
BLAS_ROWS = (1_024, 8_192, 65_536)  # rows of faiss's blocks for BLAS; the default first
ALWAYS, NEVER = 1, 1 << 30  # thresholds of faiss for BLAS
TRIED_CALLS, HOPELESS = 8, 3.0  # calls that each way answers, unless it is hopeless
LEVELS, BATCH_ROWS = (2, 4, 8, 16, 32), (128, 512, 1024, 2048)  # Panorama: defaults 8 and 128


@dataclass(frozen=True)
class Search:
    """The best k of all rows of a table for B queries."""

    queries: Tensor  # [B, F]
    table: Tensor  # [N, F]
    k: int


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


@dataclass(frozen=True)
class Way:
    """A search with some options."""

    options: str
    find: Find

    def __call__(self, queries: Tensor) -> Ids:
        """Search."""
        return self.find(queries)


Ways = Iterator[Way]
Maker = Callable[[Tensor, str, int], Ways]  # ways to search a table by a score for k


def by_torch(table: Tensor, score: str, k: int) -> Ways:
    """Yield matrices of scores and torch.topk."""
    table, extended, block = _as_dot(table, score)
    blocks = {"": block}
    if score != "rotate":
        blocks["rows @ queries.T, "] = lambda queries, rows: (rows @ queries.T).T
    for name, block in blocks.items():
        for chunk in _sizes(CHUNKS, table):
            way = _in_chunks(table, k, block, chunk, extended)
            yield Way(name + way.options, way.find)


def by_compiled(table: Tensor, score: str, k: int) -> Ways:
    """Yield compiled blocks of scores and torch.topk."""
    table, extended, block = _as_dot(table, score)
    blocks, chunks = {"": block}, COMPILED_CHUNKS
    if score == "rotate":
        chunks = SMALL_CHUNKS + COMPILED_CHUNKS
    else:
        blocks["sum of products, "] = _products
    for name, block in blocks.items():
        for chunk in _sizes(chunks, table):
            way = _in_chunks(table, k, _compiled(block), chunk, extended)
            yield Way(name + way.options, way.find)


def _sizes(chunks: tuple[int, ...], table: Tensor) -> list[int]:
    return sorted({min(it, len(table)) for it in chunks})


@cache
def _compiled(block: Block) -> Block:
    return torch.compile(block, dynamic=True)  # once for all shapes, apart from single queries


def _in_chunks(table: Tensor, k: int, block: Block, chunk: int, extended: Find) -> Way:
    name = "the table at once" if chunk >= len(table) else f"chunks of {chunk:,} rows"
    return Way(name, lambda q: ChunkedRows(Search(extended(q), table, k), block, chunk)()[1])


def _as_dot(table: Tensor, score: str) -> tuple[Tensor, Find, Block]:
    """Return table, queries and block of a score; l2 is a dot product of one feature more."""
    if score == "l2":  # 2 q c - |c|^2; |q|^2 orders nothing
        wider = torch.cat([table, table.square().sum(1, keepdim=True)], 1)
        return wider, lambda q: torch.cat([2 * q, -q.new_ones(len(q), 1)], 1), dot_block
    return table, lambda q: q, dot_block if score == "dot" else score_block


def _products(queries: Tensor, rows: Tensor) -> Tensor:
    return (queries[:, None] * rows).sum(-1)


def faiss_flat(table: Tensor, score: str, k: int) -> Ways:
    """Yield faiss's flat index, with BLAS and without."""
    faiss = _faiss(score)
    width = table.shape[1]
    index = faiss.IndexFlatIP(width) if score == "dot" else faiss.IndexFlatL2(width)
    index.add(table.numpy())

    def way(threshold: int, rows: int) -> Find:
        def find(queries: Tensor) -> Ids:
            faiss.cvar.distance_compute_blas_threshold = threshold
            faiss.cvar.distance_compute_blas_database_bs = rows
            return torch.from_numpy(index.search(queries.numpy(), k)[1])

        return find

    yield Way("without BLAS", way(NEVER, BLAS_ROWS[0]))
    for rows in BLAS_ROWS:
        yield Way(f"BLAS, blocks of {rows:,} rows", way(ALWAYS, rows))


def faiss_panorama(table: Tensor, score: str, k: int) -> Ways:
    """Yield faiss's index of levels, on the principal axes of the table."""
    faiss = _faiss(score)
    name = "IndexFlatIPPanorama" if score == "dot" else "IndexFlatL2Panorama"
    if not hasattr(faiss, name):
        raise Missing(f"faiss {faiss.__version__} has no {name}")
    centred = table.double() - table.double().mean(0)  # orders nothing of dot, moves l2's queries
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)
    mean = (table.double() - centred)[0].float() if score == "l2" else 0
    turned, turn = (centred @ axes).float().numpy(), axes.float()

    def way(index: Any) -> Find:
        return lambda q: torch.from_numpy(index.search(((q - mean) @ turn).numpy(), k)[1])

    for levels in LEVELS:
        for rows in BATCH_ROWS:
            index = getattr(faiss, name)(table.shape[1], levels, rows)
            index.add(turned)
            yield Way(f"{levels} levels, batches of {rows}", way(index))


def _faiss(score: str) -> Any:
    _needs_dot_or_l2(score)
    with building():
        import faiss
    faiss.omp_set_num_threads(torch.get_num_threads())
    return faiss


def _needs_dot_or_l2(score: str) -> None:
    if score not in ("dot", "l2"):
        raise Missing(f"no score {score}")


def numkong(table: Tensor, score: str, k: int) -> Ways:
    """Yield NumKong's products with a packed table."""
    _needs_dot_or_l2(score)
    with building():
        import numkong
    table, extended, _ = _as_dot(table, score)
    threads = torch.get_num_threads()
    parts = [numkong.dots_pack(it.numpy(), dtype="f32") for it in table.chunk(threads)]
    pool = ThreadPoolExecutor(threads)

    def scores(queries: Any, part: Any) -> Tensor:
        return torch.from_dlpack(numkong.dots_packed(queries, part))

    def find(queries: Tensor) -> Ids:
        given = extended(queries).numpy()
        if threads == 1:
            return scores(given, parts[0]).topk(k).indices
        both = list(pool.map(lambda part: scores(given, part), parts))
        return torch.cat(both, 1).topk(k).indices

    yield Way("packed float32", find)


def keops(table: Tensor, score: str, k: int) -> Ways:
    """Yield ArgKmin of a symbolic matrix."""
    LazyTensor = import_keops()
    half = table.shape[1] // 2
    planes = table.split(half, 1) if score == "rotate" else (table,)
    rows = [LazyTensor(it.contiguous()[None]) for it in planes]

    def find(queries: Tensor) -> Ids:
        parts = queries.split(half, 1) if score == "rotate" else (queries,)
        given = [LazyTensor(it.contiguous()[:, None]) for it in parts]
        if score == "dot":
            return (-(given[0] * rows[0]).sum(-1)).argKmin(k, dim=1)
        squares = sum((q - c).square() for q, c in zip(given, rows, strict=True))
        distance: Any = squares.sqrt() if score == "rotate" else squares
        return distance.sum(-1).argKmin(k, dim=1)

    yield Way("ArgKmin", find)


PEERS: dict[str, Maker] = {
    "faiss Flat": faiss_flat,
    "faiss Panorama": faiss_panorama,
    "torch": by_torch,
    "torch.compile": by_compiled,
    "NumKong": numkong,
    "KeOps": keops,
}


def best_way(
    name: str,
    work: Search,
    score: str,
    batch: int,
    clock: Callable[[Callable[[], Any]], float],
    limit: float = math.inf,
) -> tuple[float, Way]:
    """Return the seconds of a call and a peer with the options that are fastest in such calls.

    Options that take several times ``limit``, the seconds of another peer, are timed once.
    """
    found: list[tuple[float, Way]] = []
    calls = work.queries.split(batch)[:TRIED_CALLS]
    with building():
        for way in PEERS[name](work.table, score, work.k):
            way(calls[0])  # warms up
            seconds = clock(partial(way, calls[-1]))
            if seconds < HOPELESS * min([limit, *(it for it, _ in found)]):
                seconds = median(clock(partial(way, it)) for it in (*calls, *calls))
            found = [min([*found, (seconds, way)], key=lambda pair: pair[0])]
    return found[0]


def different_scores(work: Search, score: str, ids: Ids, other: Ids) -> int:
    """Count queries whose ids differ where their float64 scores are not alike."""
    found = [_scores(work, score, it) for it in (ids, other)]
    return int((~torch.isclose(*found, rtol=1e-5, atol=1e-6).all(1)).sum())


def _scores(work: Search, score: str, ids: Ids) -> Tensor:
    queries, rows = work.queries.double()[:, None], work.table[ids].double()
    if score == "rotate":
        return rotate_scores(queries, rows)
    return (queries * rows).sum(-1) if score == "dot" else -(queries - rows).square().sum(-1)

"""Queries for ranking, with bits that depend neither on other queries nor on threads.

Libraries choose the order of sums in a matrix product by the number of rows and of threads, MKL
also by the place of a row in memory. So a user's network makes queries one at a time, on one
thread. Models of kgfast make queries in chunks of one shape, with a padded last chunk, by products
that treat rows equally (:func:`product`), perhaps on several threads.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from kgfast.kernels.cpu import threads
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.models.base import RankableModel, Side, for_queries, queries_at
from kgfast.models.wrapper import Wrapper

# Queries of a chunk: with more queries a single query takes longer, with fewer a ranking takes
# longer.
_CHUNK, _CHUNK_ELSEWHERE = 32, 1024
_MAKERS = frozenset(("queries", "_queries"))  # methods


def evaluated_queries(
    model: RankableModel, anchors: Tensor, relations: Tensor, side: Side, dim: int | None
) -> Tensor:
    """Make queries like :func:`queries_at`, so that no query depends on other queries.

    The model's attribute ``query_chunk`` is the number of queries that are made at once; None if no
    query depends on other queries anyway. Without the attribute, a CPU makes one at a time, unless
    kgfast has the arithmetic of the model. The attribute ``parallel_queries`` of the model's own
    class allows several threads to call ``queries`` at once. Raises as :func:`queries_at`.
    """
    maker = model
    while (size := _chunk_of(maker, anchors.device)) is None and isinstance(maker, Wrapper):
        maker = maker.model
    rows = len(anchors)
    if size is None or not rows:
        return queries_at(model, anchors, relations, side, dim)
    if _is_of_kgfast(type(maker)):
        model = for_queries(model, side)
    chunks = -(-rows // size)
    missing = chunks * size - rows
    anchors, relations = (torch.cat([of, of[:1].expand(missing)]) for of in (anchors, relations))
    parts: list[Any] = [None] * chunks
    # A class that inherits the attribute may have changed the method.
    parallel = bool(vars(type(maker)).get("parallel_queries", False))

    def work(number: int) -> None:
        here = slice(number * size, (number + 1) * size)
        queries = queries_at(model, anchors[here], relations[here], side, dim)
        # Another model may return one tensor each time.
        parts[number] = queries if parallel or not isinstance(queries, Tensor) else queries.clone()

    run_alone(work, chunks, anchors.device, parallel=parallel)
    if not all(isinstance(queries, Tensor) for queries in parts):
        return cast(Tensor, parts[0])  # the caller refuses anything but tensors
    return torch.cat(parts)[:rows]


def product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows ``[B, K]`` by a matrix ``[K, N]``; equal rows have equal products.

    This is so only without gradients.
    """
    if rows.device.type != "cpu" or torch.is_grad_enabled():
        return rows @ matrix
    # Column by column: in other layouts MKL has shapes with unequal products of equal rows on an
    # AMD EPYC.
    return rows.mT.contiguous().mT @ matrix.mT.contiguous().mT


def run_alone(
    work: Callable[[int], None], chunks: int, device: torch.device, *, parallel: bool
) -> None:
    """Call ``work(0) ... work(chunks - 1)``, on the CPU with one thread of torch each.

    With ``parallel``, several threads may call ``work`` at once.
    """
    workers = min(torch.get_num_threads(), chunks)
    if device.type != "cpu" or workers < 2 or not parallel or _is_surrounded():
        with threads.one_here() if device.type == "cpu" else nullcontext():
            for number in range(chunks):
                work(number)
        return
    inference = torch.is_inference_mode_enabled()

    def alone(number: int) -> None:
        with (
            torch.inference_mode(inference),
            torch.no_grad(),
            ieee_arithmetic(),
            threads.one_here(),
        ):
            work(number)

    with ThreadPoolExecutor(workers, "kgfast-queries") as pool:
        for _ in pool.map(alone, range(chunks)):  # raises the error of a worker
            pass


def _chunk_of(maker: Any, device: torch.device) -> int | None:
    """Return the number of queries that a model makes at once; None if any number will do."""
    kind: Any = type(maker)
    names = getattr(maker, "__dict__", {}).keys()
    is_ours = _is_of_kgfast(kind) and not names & _MAKERS
    # torch's modules take long to look up a name that they lack
    if "query_chunk" in names or hasattr(kind if is_ours else maker, "query_chunk"):
        size: int | None = maker.query_chunk
        return size
    if is_ours and not hasattr(kind, "parallel_queries"):
        return None  # computes row by row
    if device.type != "cpu":
        return _CHUNK_ELSEWHERE
    return _CHUNK if is_ours else 1


@lru_cache
def _is_of_kgfast(kind: type) -> bool:
    """Return whether the methods of a class that make queries are of this package."""
    homes = [str(getattr(kind, name).__module__) for name in _MAKERS if hasattr(kind, name)]
    return bool(homes) and all(home.startswith("kgfast.") for home in homes)


def _is_surrounded() -> bool:
    """Return whether the calling thread has settings that other threads would lack."""
    is_plain = threads.HAS_OWN_NUMBERS and torch.get_default_device().type == "cpu"
    return torch.is_autocast_enabled("cpu") or not is_plain

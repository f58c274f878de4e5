"""Predicted times of whole calls on GPUs, and the assumptions behind the predictions."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgfast.kernels.checks import Checks
from kgfast.kernels.labels import CrossEntropyBackward, Labels, LossNeed
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.kernels.triton import backend

from .roofline import (
    GPUS,
    MULTIPROCESSORS,
    SCHEDULERS,
    SPECIAL,
    WARP,
    Gpu,
    alone,
    clocks_of,
    limit_of,
    programs_resident,
)

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import aot

SUM_BLOCK = 64  # features between two folds
SPLIT_STEP, SPLIT_PRODUCTS = 32, 3  # features of a step of a split sweep, products of one


@dataclass(frozen=True)
class TestSet:
    """A published test set, both sides; ``known`` counts the known answers of its queries."""

    name: str
    score: str
    queries: int
    entities: int
    dim: int
    known: int


TEST_SETS = (
    TestSet("WN18RR", "rotate", 6_268, 40_943, 512, 100_264),
    TestSet("FB15k-237", "rotate", 40_932, 14_541, 1000, 9_675_129),
    TestSet("WN18RR", "dot", 6_268, 40_943, 200, 100_264),
)
LOSS = 512, 40_943, 200  # batch, entities, features
SMALL_TABLE = 2_041  # rows of the compiled kernels: sizes do not compile a kernel anew
TABLE = 1_000_000, 512  # entities and features of one query


def launches(
    score: str,
    queries: int,
    entities: int,
    dim: int,
    arch: int,
    dims: tuple[int, ...] | None = None,
    has_factor: bool = False,
) -> list[Any]:
    """Return the launches of ``rank_counts``; the tables are never touched."""
    facts_of = get_score(score)
    with aot.recorded(arch) as recorded:
        factor = torch.empty(entities, dim) if has_factor else None
        candidates = Prepared(torch.empty(entities, dim * facts_of.planes), facts_of, None, factor)
        rows = torch.empty(queries, dim * facts_of.query_planes(has_factor))
        targets = torch.zeros(queries, dtype=torch.int64)
        backend.rank_counts(
            Operands(rows, candidates, dims),
            targets,
            Known(torch.arange(queries + 1), targets),
            Checks(deferred=True),
        )
    return recorded


def predictions() -> Iterator[dict[str, Any]]:
    """Yield all predictions, GPU by GPU."""
    for gpu in GPUS:
        for test_set in TEST_SETS:
            yield filtered_ranks(gpu, test_set)
        yield bce_of_products(gpu)
        if gpu.arch == 90:
            yield loss_of_distances(gpu, "bce")
            yield loss_of_distances(gpu, "cross entropy")
        yield one_query(gpu)


def filtered_ranks(gpu: Gpu, test_set: TestSet) -> dict[str, Any]:
    """Predict the seconds of a test set in one call, and the floor of its unit.

    Pairs that canonical scores decide are left out.
    """
    shape = test_set.queries, test_set.entities, test_set.dim
    planes = get_score(test_set.score).planes
    recorded = launches(test_set.score, *shape, gpu.arch)
    sweep_seconds, limits, packed = 0.0, {}, 0
    for launch in recorded:
        if launch.name in ("sweep", "sweep_split"):
            clocks = (split_clocks if launch.name == "sweep_split" else tile_clocks)(launch, gpu)
            programs = -(-launch.grid[0] * launch.grid[1] // gpu.multiprocessors)
            sweep_seconds += programs * max(clocks.values()) * gpu.multiprocessors / gpu.clocks
            limits = clocks
        if launch.name in ("pack", "pack_parts"):  # read and written
            packed += launch.args["count"] * test_set.dim * planes * (4 + 4)
    elements = test_set.queries * test_set.entities * test_set.dim
    unit = MULTIPROCESSORS[gpu.arch]
    rate = SPECIAL if test_set.score == "rotate" else unit.products / SPLIT_PRODUCTS
    known_seconds = test_set.known * test_set.dim * planes * 4 / gpu.bytes_per_second
    pack_seconds = packed / gpu.bytes_per_second
    return {
        **_about(gpu, f"filtered ranks, {test_set.score}, {test_set.name} d={test_set.dim}"),
        "test_set": test_set.name,
        "score": test_set.score,
        "dim": test_set.dim,
        "elements": elements,
        "launches": len(recorded),
        "limit": limit_of(limits),
        "floor_seconds": elements / rate / gpu.clocks,
        "sweep_seconds": sweep_seconds,
        "pack_seconds": pack_seconds,
        "known_seconds": known_seconds,
        "total_seconds": sweep_seconds + pack_seconds + known_seconds,
    }


def tile_clocks(launch: Any, gpu: Gpu) -> dict[str, float]:
    """Count clocks of each unit for one program of a float32 sweep."""
    code = aot.compile_for(launch, gpu.arch)
    warps, features = launch.options["num_warps"], launch.args["num_features"]
    elements = launch.tile.rows * launch.tile.lanes // (WARP * warps)
    inner = code.inner_loop(elements)
    clocks = clocks_of(inner, gpu.arch)
    folds = [loop for loop in code.loops if loop.total() > inner.total()]
    clocks["issue"] += (folds[0].total() - inner.total()) / SUM_BLOCK / 4
    return {name: value * warps * features for name, value in clocks.items()}


def split_clocks(launch: Any, gpu: Gpu) -> dict[str, float]:
    """Count clocks of each unit for one program of a split sweep; bytes come from the L2 cache."""
    tile = launch.tile
    steps = launch.args["num_steps"]
    products = SPLIT_PRODUCTS * tile.rows * tile.lanes * SPLIT_STEP
    moved = 2 * 2 * (tile.rows + tile.lanes) * SPLIT_STEP
    clocks = program_clocks(launch, gpu, products)
    clocks["L2 cache"] = moved / gpu.cache_bytes
    return {name: value * steps for name, value in clocks.items()}


def program_clocks(launch: Any, gpu: Gpu, products: float) -> dict[str, float]:
    """Count clocks of each unit for an iteration of a program with tensor cores.

    ``products``: those of an iteration, at the rate of bfloat16, where instructions do not say how
    many. ``latency``: that of a program alone, over the programs that a multiprocessor holds.
    """
    code, warps = aot.compile_for(launch, gpu.arch), launch.options["num_warps"]
    clocks = clocks_of(code.busiest, gpu.arch)
    if not code.busiest.products:
        clocks["tensor cores"] = products / MULTIPROCESSORS[gpu.arch].products / warps
    lone = alone(code.busiest, clocks, warps)
    clocks = {name: value * warps for name, value in clocks.items()}
    return clocks | {"latency": lone / programs_resident(code, warps, gpu.arch)}


def bce_of_products(gpu: Gpu) -> dict[str, Any]:
    """Predict ``bce`` of ``dot``, value and gradients, from its compiled code.

    Each launch takes as long as its slowest unit, as its waits, or as the memory, through which the
    slopes of a chunk and its rows go.
    """
    batch, entities, dim = LOSS
    tensor, seconds, units = 0.0, 0.0, dict[str, float]()
    for launch in loss_launches("bce", "dot", gpu.arch, batch, dim, entities):
        if launch.name not in ("product_losses", "multiply_slopes"):
            continue
        tile, depth = launch.tile, 32
        count = dim if launch.name == "product_losses" else launch.args["num_others"]
        turns = -(-count // depth) / (launch.grid[2] if len(launch.grid) > 2 else 1)
        clocks = program_clocks(launch, gpu, 3 * 2 * tile.rows * tile.lanes * depth)
        programs = -(-math.prod(launch.grid) // gpu.multiprocessors) * gpu.multiprocessors
        scale = programs * turns / gpu.clocks
        tensor += clocks["tensor cores"] * scale
        part = {name: value * scale for name, value in clocks.items()}
        chunk = launch.args.get("num_candidates") or max(
            launch.args["num_rows"], launch.args["num_others"]
        )
        moved = 4 * chunk * (batch + dim)
        part["memory"] = moved / gpu.bytes_per_second
        limit = limit_of(part)
        units[limit] = units.get(limit, 0.0) + part[limit]
        seconds += part[limit]
    return {
        **_about(gpu, f"bce value and gradients, dot, B={batch} N={entities} d={dim}"),
        "limit": limit_of(units),
        "tensor_seconds": tensor,
        "total_seconds": seconds,
    }


def loss_of_distances(gpu: Gpu, name: str) -> dict[str, Any]:
    """Predict a loss of ``rotate``, value and gradients, from its compiled code.

    ``slots``: issue slots a pair of the kernel that scores, once or twice, and of the one that
    pulls.
    """
    batch, entities, dim = LOSS
    units, seen = dict.fromkeys(("issue", "special functions", "latency"), 0.0), set()
    slots = clocks = 0.0
    for launch in loss_launches(name, "rotate", gpu.arch, batch, dim):
        key = launch.name, launch.variant
        if launch.name not in ("distance_losses", "pull") or key in seen:
            continue
        seen.add(key)
        code = aot.compile_for(launch, gpu.arch)
        if launch.name == "pull":
            of_pair = dim * aot.slots_of_pull(launch, code, batch)
        else:
            of_pair = aot.slots_of_pair(launch, code, dim)
        of_units = {"issue": of_pair / SCHEDULERS, "special functions": dim * WARP / SPECIAL}
        if launch.name == "pull":  # loads begin in the iteration that waits for them
            inner, elements = code.busiest, math.prod(launch.tile[:2]) // WARP
            lone = alone(inner, clocks_of(inner, gpu.arch), 1)
            of_units["latency"] = dim * lone / elements / programs_resident(code, 1, gpu.arch)
        units[limit_of(of_units)] += max(of_units.values())
        slots, clocks = slots + of_pair, clocks + max(of_units.values())
    return {
        **_about(gpu, f"{name} value and gradients, rotate, B={batch} N={entities} d={dim}"),
        "limit": limit_of(units),
        "slots_of_pair": round(slots, 1),
        "slots_of_element": round(slots / dim, 3),
        "total_seconds": clocks * batch * entities / WARP / gpu.clocks,
    }


def loss_launches(
    name: str, score: str, arch: int, batch: int, dim: int, entities: int = SMALL_TABLE
) -> list[Any]:
    """Record the launches of ``bce`` or ``cross entropy`` and its gradients."""
    facts_of, losses = get_score(score), backend.losses
    queries, table = (torch.zeros(rows, dim * facts_of.planes) for rows in (batch, entities))
    operands, need = Operands(queries, Prepared(table, facts_of)), LossNeed(True, True, False)
    targets, grad = torch.zeros(batch, dtype=torch.int64), torch.ones(batch)
    with aot.recorded(arch) as recorded:
        if name == "bce":
            losses.bce_total(
                operands, Labels(torch.arange(batch + 1), targets, 1.0, 0.0), 1.0, need
            )
        else:
            rows = losses.cross_entropy(operands, targets, 0.0)
            made_of = CrossEntropyBackward(grad, rows.logsumexp, targets, 0.0)
            losses.cross_entropy_gradients(operands, made_of, need)
    return recorded


def one_query(gpu: Gpu) -> dict[str, Any]:
    """Predict ranks of one query: the bytes that its launches move, over the size of the table."""
    entities, dim = TABLE
    recorded = launches("dot", 1, entities, dim, gpu.arch)
    packs = [launch for launch in recorded if launch.name == "pack" and launch.args["count"] > 1]
    reads = 1 + 2 * sum(launch.args["count"] for launch in packs) / entities  # written, read again
    size = 4 * entities * dim
    return {
        **_about(gpu, f"ranks of one query, dot, N={entities} d={dim}"),
        "limit": "memory",
        "launches": len(recorded),
        "bytes_over_table": round(reads, 3),
        "total_seconds": reads * size / gpu.bytes_per_second,
    }


def _about(gpu: Gpu, work: str) -> dict[str, Any]:
    return {"gpu": gpu.name, "ghz": gpu.ghz, "work": work, "is_prediction": True}

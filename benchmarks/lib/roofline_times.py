"""How long whole calls should take on GPUs: predictions, and the assumptions they rest on."""

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
    clocks_of,
    limit_of,
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
SMALL_TABLE = 2_041  # rows of what is compiled: sizes do not compile a kernel anew
TABLE = 1_000_000, 512  # of one query


def launches(
    score: str,
    queries: int,
    entities: int,
    dim: int,
    arch: int,
    dims: tuple[int, ...] | None = None,
    has_factor: bool = False,
) -> list[Any]:
    """What ``rank_counts`` would launch; the tables are never touched."""
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
    """All of them, GPU by GPU."""
    for gpu in GPUS:
        for test_set in TEST_SETS:
            yield filtered_ranks(gpu, test_set)
        yield bce_of_products(gpu)
        if gpu.arch == 90:
            yield loss_of_distances(gpu, "bce")
            yield loss_of_distances(gpu, "cross entropy")
        yield one_query(gpu)


def filtered_ranks(gpu: Gpu, test_set: TestSet) -> dict[str, Any]:
    """Seconds that a test set should take in one call, and the floor of its unit.

    Pairs that are decided by canonical scores are not in it.
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
    """Clocks of each unit for one program of a float32 sweep."""
    code = aot.compile_for(launch, gpu.arch)
    warps, features = launch.options["num_warps"], launch.args["num_features"]
    elements = launch.tile.rows * launch.tile.lanes // (WARP * warps)
    inner = code.inner_loop(elements)
    clocks = clocks_of(inner, gpu.arch)
    folds = [loop for loop in code.loops if loop.total() > inner.total()]
    clocks["issue"] += (folds[0].total() - inner.total()) / SUM_BLOCK / 4
    return {name: value * warps * features for name, value in clocks.items()}


def split_clocks(launch: Any, gpu: Gpu) -> dict[str, float]:
    """Clocks of each unit for one program of a split sweep; bytes come from the L2 cache."""
    code, tile = aot.compile_for(launch, gpu.arch), launch.tile
    steps, warps = launch.args["num_steps"], launch.options["num_warps"]
    products = SPLIT_PRODUCTS * tile.rows * tile.lanes * SPLIT_STEP
    moved = 2 * 2 * (tile.rows + tile.lanes) * SPLIT_STEP
    clocks = {
        "issue": code.busiest.total() * warps / 4,
        "tensor cores": products / MULTIPROCESSORS[gpu.arch].products,
        "L2 cache": moved / gpu.cache_bytes,
    }
    return {name: value * steps for name, value in clocks.items()}


def bce_of_products(gpu: Gpu) -> dict[str, Any]:
    """``bce`` of ``dot``, value and gradients: three products of tensor cores at ``tf32x3``.

    By arithmetic, not from compiled code: the slope is written once and read twice, in float32, the
    table read three times and its gradient written once, all by the memory.
    """
    batch, entities, dim = LOSS
    products = 3 * 3 * batch * entities * dim * 2  # tf32 at half the rate of bfloat16
    tensor_seconds = products / MULTIPROCESSORS[gpu.arch].products / gpu.clocks
    slope_seconds = 3 * 4 * batch * entities / gpu.bytes_per_second
    table_seconds = 4 * 4 * entities * dim / gpu.bytes_per_second
    return {
        **_about(gpu, f"bce value and gradients, dot, B={batch} N={entities} d={dim}"),
        "limit": "tensor cores" if tensor_seconds > slope_seconds + table_seconds else "memory",
        "tensor_seconds": tensor_seconds,
        "slope_seconds": slope_seconds,
        "table_seconds": table_seconds,
        "total_seconds": tensor_seconds + slope_seconds + table_seconds,
    }


def loss_of_distances(gpu: Gpu, name: str) -> dict[str, Any]:
    """A loss of ``rotate``, value and gradients, from its compiled code.

    ``slots``: issue slots a pair of what scores, once or twice, and of what pulls.
    """
    batch, entities, dim = LOSS
    units, seen = {"issue": 0.0, "special functions": 0.0}, set()
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
        units[limit_of(of_units)] += max(of_units.values())
        slots, clocks = slots + of_pair, clocks + max(of_units.values())
    return {
        **_about(gpu, f"{name} value and gradients, rotate, B={batch} N={entities} d={dim}"),
        "limit": limit_of(units),
        "slots_of_pair": round(slots, 1),
        "slots_of_element": round(slots / dim, 3),
        "total_seconds": clocks * batch * entities / WARP / gpu.clocks,
    }


def loss_launches(name: str, score: str, arch: int, batch: int, dim: int) -> list[Any]:
    """What ``bce`` or ``cross entropy`` and its gradients would launch, of a small table."""
    facts_of, losses = get_score(score), backend.losses
    queries, table = (torch.zeros(rows, dim * facts_of.planes) for rows in (batch, SMALL_TABLE))
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
    """Ranks of one query: the bytes that its launches move, over the size of the table."""
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

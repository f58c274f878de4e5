"""What limits the Triton kernels, and how long they should take, read from their machine code.

    python benchmarks/static_roofline.py                  about a minute, needs no GPU
    python benchmarks/static_roofline.py --json FILE      instead of results/static-roofline.json

Kernels are compiled for an architecture with the arguments that the launcher passes; issue slots
are counted in the SASS of their innermost loop. Every time here is a PREDICTION, not a
measurement. It assumes that nothing is abandoned early, that a multiprocessor retires 16 square
roots and 128 lane instructions a clock at the clock stated, that programs are spread evenly
(whole programs per multiprocessor), and that what is packed or gathered moves at the bandwidth of
the memory. Latencies, caches and the time between launches are not modelled.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from kgfast.kernels.checks import Checks
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.kernels.triton.backend import BACKEND
from lib.machine import facts
from lib.results import RESULTS, write_json
from lib.tables import console, human_seconds

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import aot

SUM_BLOCK = 64  # features between two folds
LANES, ROOTS = 128, 16  # a multiprocessor's lane instructions and square roots a clock
THREADS, REGISTERS = 2048, 65536  # of a multiprocessor
SCORES = ("rotate", "l1", "l2", "dot")
FILTERED = (("rscf_rotate", True), ("rscf_rotate", False), ("rscf_l2", True))  # with a factor?
CROPS = (25, 50, 100)  # swept at once
BATCHES = {"large": 1000, "small": 100, "single": 1}


@dataclass(frozen=True)
class Gpu:
    """Published numbers; ``ghz`` is the clock that the predictions assume."""

    name: str
    arch: int
    multiprocessors: int
    ghz: float
    bytes_per_second: float


GPUS = (
    Gpu("A100 SXM", 80, 108, 1.41, 2.04e12),
    Gpu("H100 SXM", 90, 132, 1.83, 3.35e12),
    Gpu("H200", 90, 132, 1.98, 4.8e12),
    Gpu("B200", 100, 148, 1.9, 8.0e12),
)


@dataclass(frozen=True)
class TestSet:
    """A published test set, both sides; ``known`` counts the known answers of its queries."""

    name: str
    queries: int
    entities: int
    dim: int
    known: int


TEST_SETS = (
    TestSet("WN18RR", 6_268, 40_943, 512, 100_264),
    TestSet("FB15k-237", 40_932, 14_541, 1000, 9_675_129),
)


def main() -> None:
    """Compile, predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULTS / "static-roofline.json")
    arguments = parser.parse_args()
    kernels = [row for arch in (80, 90, 100) for row in kernel_rows(arch)]
    predictions = [predict(gpu, test_set) for gpu in GPUS for test_set in TEST_SETS]
    print_kernels(kernels)
    print_predictions(predictions)
    write_json(
        arguments.json,
        {
            "what": "predictions from compiled code; nothing here was run on a GPU",
            **facts("cpu"),
            "assumed": [asdict(gpu) for gpu in GPUS],
            "kernels": kernels,
            "predictions": predictions,
        },
    )


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
        BACKEND.rank_counts(
            Operands(rows, candidates, dims),
            targets,
            Known(torch.arange(queries + 1), targets),
            Checks(deferred=True),
        )
    return recorded


def kernel_rows(arch: int) -> Iterator[dict[str, Any]]:
    """Each sweep, and the other kernels of rotate, as compiled for an architecture."""
    for score in SCORES:
        for batch, queries in BATCHES.items():
            seen = set()
            for launch in launches(score, queries, 14_541, 100, arch):
                is_sweep = launch.name == "sweep"
                if launch.name in seen or not (is_sweep or (score, batch) == ("rotate", "large")):
                    continue
                seen.add(launch.name)
                code = aot.compile_for(launch, arch)
                warps = launch.options["num_warps"]
                row = {
                    "arch": f"sm_{arch}",
                    "kernel": launch.name,
                    "score": score,
                    "warps": warps,
                    "registers": code.registers,
                    "stack": code.stack,
                    "shared": code.shared,
                    "warps_resident": warps * programs_resident(code, warps),
                }
                yield {**row, **sweep_facts(launch, code)} if is_sweep else row
    yield from newer_rows(arch)


def newer_rows(arch: int) -> Iterator[dict[str, Any]]:
    """The sweep of crops at once, and those of the filtering scores (their near loop)."""
    cases = [("rotate", False, CROPS), *((score, moved, None) for score, moved in FILTERED)]
    for score, has_factor, dims in cases:
        recorded = launches(score, 1000, 14_541, 100, arch, dims, has_factor)
        launch = next(launch for launch in recorded if launch.name.startswith("sweep"))
        code = aot.compile_for(launch, arch)
        warps = launch.options["num_warps"]
        yield {
            "arch": f"sm_{arch}",
            "kernel": launch.name,
            "score": score + (" with a factor" if has_factor else ""),
            "warps": warps,
            "registers": code.registers,
            "stack": code.stack,
            "shared": code.shared,
            "warps_resident": warps * programs_resident(code, warps),
            **sweep_facts(
                launch, code, loops_beside=1 if score == "rscf_rotate" and has_factor else 0
            ),
        }


def sweep_facts(launch: Any, code: Any, loops_beside: int = 0) -> dict[str, Any]:
    """Tile, issue slots an element, and the unit that limits it.

    ``loops_beside``: other loops within the fold, which add their code to it but not their time.
    """
    rows, lanes = launch.args["TILE"]
    elements = rows * lanes // (32 * launch.options["num_warps"])
    inner = code.inner_loop(elements)
    first = next(i for i, loop in enumerate(code.loops) if loop is inner)
    beside = code.loops[first + 1 : first + 1 + loops_beside]
    fold = next(
        loop for loop in code.loops[first + 1 + loops_beside :] if loop.total() > inner.total()
    )
    slots = inner.total() / elements
    around = fold.total() - inner.total() - sum(loop.total() for loop in beside)
    with_fold = slots + around / (elements * SUM_BLOCK)
    roots = inner["MUFU.SQRT"] / elements
    return {
        "tile": [rows, lanes],
        "slots": round(slots, 3),
        "slots_with_fold": round(with_fold, 3),
        "roots": roots,
        "limit": "square root" if roots * LANES / ROOTS >= with_fold else "issue",
    }


def programs_resident(code: Any, warps: int) -> int:
    """Programs that a multiprocessor holds at once, by registers and threads."""
    by_registers = REGISTERS // (-(-code.registers // 8) * 8 * 32 * warps)
    return min(by_registers, THREADS // (32 * warps), 32)


def predict(gpu: Gpu, test_set: TestSet) -> dict[str, Any]:
    """Seconds that a test set should take in one call, and the floor of its square roots."""
    recorded = launches("rotate", test_set.queries, test_set.entities, test_set.dim, gpu.arch)
    clocks_per_second = gpu.ghz * 1e9
    sweep_seconds = pack_seconds = 0.0
    for launch in recorded:
        if launch.name == "sweep":
            sweep = sweep_facts(launch, aot.compile_for(launch, gpu.arch))
            per_element = max(sweep["roots"] / ROOTS, sweep["slots_with_fold"] / LANES)
            programs = -(-launch.grid[0] * launch.grid[1] // gpu.multiprocessors)
            elements = sweep["tile"][0] * sweep["tile"][1] * test_set.dim
            sweep_seconds += programs * elements * per_element / clocks_per_second
        if launch.name == "pack":
            moved = launch.args["count"] * test_set.dim * 2 * (4 + 4)  # read and written
            pack_seconds += moved / gpu.bytes_per_second
    elements = test_set.queries * test_set.entities * test_set.dim
    known_seconds = test_set.known * test_set.dim * 2 * 4 / gpu.bytes_per_second
    floor = elements / ROOTS / gpu.multiprocessors / clocks_per_second
    return {
        "gpu": gpu.name,
        "ghz": gpu.ghz,
        "test_set": test_set.name,
        "dim": test_set.dim,
        "elements": elements,
        "launches": len(recorded),
        "floor_seconds": floor,
        "sweep_seconds": sweep_seconds,
        "pack_seconds": pack_seconds,
        "known_seconds": known_seconds,
        "total_seconds": sweep_seconds + pack_seconds + known_seconds,
    }


def print_kernels(rows: Sequence[dict[str, Any]]) -> None:
    """One line a kernel and architecture."""
    table = Table(title="Compiled kernels (static; nothing was run)")
    for name in ("arch", "kernel", "score", "tile", "registers", "stack", "shared", "warps/SM"):
        table.add_column(name, justify="left" if name in ("arch", "kernel", "score") else "right")
    for name in ("slots/element", "with fold", "limit"):
        table.add_column(name, justify="right")
    for row in rows:
        tile = "x".join(map(str, row["tile"])) if "tile" in row else ""
        table.add_row(
            row["arch"],
            row["kernel"],
            row["score"],
            tile,
            *(str(row[name]) for name in ("registers", "stack", "shared", "warps_resident")),
            *(str(row.get(name, "")) for name in ("slots", "slots_with_fold", "limit")),
        )
    console().print(table)


def print_predictions(rows: Sequence[dict[str, Any]]) -> None:
    """One line a GPU and test set."""
    table = Table(title="PREDICTED time of filtered ranking, both sides, rotate (not measured)")
    for name in ("GPU", "clock", "test set", "floor", "sweep", "pack", "known", "total"):
        table.add_column(name, justify="left" if name in ("GPU", "test set") else "right")
    for row in rows:
        table.add_row(
            row["gpu"],
            f"{row['ghz']} GHz",
            f"{row['test_set']} d={row['dim']}",
            *(
                human_seconds(row[f"{part}_seconds"])
                for part in ("floor", "sweep", "pack", "known", "total")
            ),
        )
    console().print(table)


if __name__ == "__main__":
    main()

"""Predictions of ``kgfast plan`` beside runs, each measured between calibrations of its case."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast.extras.planning import Plan, Work, planned
from kgfast.extras.planning.calibration import calibrate
from lib import scale_runs as runs
from lib.benchmark import Options
from lib.measure import in_child, timed
from lib.planted import Planted

RELATIONS = 16
MODELS = {
    "rotate": lambda rows, relations: kgfast.RotatE(rows, relations[:, : rows.shape[1] // 2]),
    "transe": lambda rows, relations: kgfast.TransE(rows, relations, norm="l1"),
    "distmult": kgfast.DistMult,
    "complex": kgfast.ComplEx,
}


@dataclass(frozen=True)
class Case:
    """A work, and whether its table is in a file."""

    work: Work
    from_file: bool = False

    @property
    def name(self) -> str:
        """Return the name in words."""
        what = "ranks" if self.work.top is None else f"best {self.work.top}"
        where = "file" if self.from_file else "memory"
        return f"{what}, {self.work.model}, {self.work.dtype}, {where}"

    def quick(self) -> "Case":
        """Return a tiny copy of the case."""
        work = self.work
        return replace(self, work=replace(work, entities=2_000, dim=8, queries=8))


CASES = (
    Case(Work(1_000_000, 64, 256, "float16", sides=1)),
    Case(Work(1_000_000, 64, 256, "float16", sides=1), from_file=True),
    Case(Work(10_000_000, 64, 256, "float16", sides=1), from_file=True),
    Case(Work(200_000, 256, 128, "float32")),
    Case(Work(500_000, 128, 256, "float32", "transe")),
    Case(Work(1_000_000, 100, 256, "float32", "distmult")),
    Case(Work(300_000, 128, 256, "bfloat16", "complex")),
    Case(Work(500_000, 64, 256, "float16", sides=1, top=10)),
)


def plan_rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row a case; by the clock, or by the time of the cores where others use them too."""
    given: dict[str, Any] = {"rounds": 2}
    if options.quick:
        given |= {"block_bytes": 1 << 16, "file_bytes": 1 << 20}
    if options.by_cores:
        given["clock"] = lambda: time.process_time() / torch.get_num_threads()
    for case in CASES:
        row = _row(case.quick() if options.quick else case, options.folder, given, options.rounds)
        yield row | {"clock": "cores" if options.by_cores else "wall"}


def _row(case: Case, folder: Path, options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Predict and measure, in turns."""
    work, by_cores = case.work, "clock" in options
    if not case.from_file:
        options = options | {"file_bytes": 1 << 20}  # not used in memory
    consumer = "rank" if work.top is None else "topk"
    kind = consumer, work.score, work.dtype
    run = _run_of(case, folder)
    plans: list[Plan] = []
    taken: list[dict[str, Any]] = []
    for turn in range(rounds + 1):
        rates = calibrate(folder, cases=[kind], **options)
        # No disk is waited for by cores.
        disk = math.inf if by_cores else None
        plans.append(planned(work, rates, disk=disk, streamed=case.from_file))
        if turn < rounds:
            taken.append(run())
    predicted = statistics.median(it.seconds for it in plans)
    measured = statistics.median(it["seconds"] for it in taken)
    if by_cores:
        measured = statistics.median(it["cpu_seconds"] for it in taken) / torch.get_num_threads()
    row = {
        "work": case.name,
        "model": work.model,
        "dtype": work.dtype,
        "from_file": case.from_file,
        "entities": work.entities,
        "dim": work.dim,
        "queries": work.asked,
        "top": work.top,
        "predicted_seconds": predicted,
        "measured_seconds": measured,
        "error": predicted / measured - 1,
        "binding": plans[len(plans) // 2].binding,
        "rates": rates.as_dict(),  # rates that docs/explanation/scale.md simulates with
    }
    if case.from_file:
        peak = max(it["anonymous_bytes"] for it in taken)
        row |= {"predicted_bytes": plans[-1].memory_bytes, "measured_bytes": peak}
        row["bytes_error"] = plans[-1].memory_bytes / peak - 1
        row["wrong"] = sum(it["wrong"] for it in taken)
    return row


def _run_of(case: Case, folder: Path) -> Callable[[], dict[str, Any]]:
    """Return the call that is measured."""
    work = case.work
    if case.from_file:
        table = Planted(work.entities, work.dim, work.queries)
        path = table.write(folder)
        return lambda: in_child(runs.rank_file, table, path)
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(work.entities, work.columns, generator=generator) * 2 - 1
    relations = torch.rand(RELATIONS, work.columns, generator=generator)
    model = MODELS[work.model](rows.to(getattr(torch, work.dtype)), relations)
    sizes = torch.tensor([work.entities, RELATIONS, work.entities])
    triples = (torch.rand(work.queries, 3, generator=generator) * sizes).long()
    if work.top is not None:
        heads, relation, _ = triples.T
        return lambda: timed(
            lambda: kgfast.topk(model, heads=heads, relations=relation, k=work.top)
        )[1]
    sides = ("head", "tail") if work.sides == 2 else ("tail",)
    return lambda: timed(lambda: kgfast.rank(model, triples, sides=sides))[1]

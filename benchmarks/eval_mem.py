"""The main job: filtered ranks of a whole test set, and the memory and time that they take.

    python benchmarks/eval_mem.py                                 a synthetic graph of WN18RR's size
    python benchmarks/eval_mem.py --json mem.json --plot mem.png  files are written only when named

Every dimension is measured in fresh processes: kgfast on the whole test set, both sides, and then
one small batch of the naive evaluation. Several dimensions are also ranked as sub-models of one
table (MED), with and without filters (RSCF). A random sample of kgfast's ranks is compared with the
float64 specification; a difference ends the run with exit code 1. ``--ways`` measures more ways to
rank sub-models, for docs/how-to/med_rscf.md.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import kgfast
from kgfast import ops
from lib import eval_mem_crops as crops
from lib import naive
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options
from lib.columns import CROP_RANKS
from lib.machine import available_memory
from lib.measure import PeakMemory, Stopwatch, in_child, in_child_or_note, waiting
from lib.results import Row, Rows, finite
from lib.tables import Columns, cell_of, human_bytes, plain

# share of available memory for the naive batch, and bytes that are enough to see
NAIVE_CAP_SHARE, NAIVE_CAP = 0.4, 2.5e9
SAMPLE = 8  # triples compared with the specification; a backend without kernels ranks no more


@dataclass(frozen=True)
class Job:
    """The arguments of a child process."""

    quick: bool
    device: str
    dim: int

    def graph(self) -> Any:
        """Return the dataset."""
        return kgfast.datasets.synthetic(*(QUICK_SIZES if self.quick else ()))

    def model(self, graph: Any) -> kgfast.RotatE:
        """Return planted embeddings."""
        entity, phase = graph.planted(self.dim)
        return kgfast.RotatE(entity, phase, relation_format="phase").to(self.device)


def measure_kgfast(job: Job) -> dict[str, Any]:
    """Rank the whole test set: peak memory, time, metrics, and the check of a sample."""
    graph = job.graph()
    model, known = job.model(graph), graph.known()
    test = graph.test.hrt
    if ops.backend_for(torch.device(job.device)) == "reference":
        test = test[:SAMPLE]
    if job.device == "cpu":  # few entities load code, start threads, and keep no memory
        few = kgfast.RotatE(model.entity[:64], model.relation, relation_format="phase")
        kgfast.rank(few, torch.tensor([[0, 0, 0]]))
    else:  # one call compiles all that the next one needs
        kgfast.rank(model, test, known=known)
    with PeakMemory(job.device) as peak:
        call = partial(kgfast.rank, model, test, known=known)
        ranks, seconds = Stopwatch(job.device).timed(call)
    elements = ranks.greater.numel() * graph.num_entities * job.dim
    return {
        "bytes": peak.bytes,
        "method": peak.method,
        "seconds": seconds,
        "queries": ranks.greater.numel(),
        "elements_per_s": elements / seconds,
        "mrr": finite(ranks.mrr),
        "hits@10": finite(ranks.hits(10)),
        "mrr_raw": finite(ranks.raw.mrr),
        "tail_ranks": ranks.side("tail").optimistic[: naive.BATCH, 0].tolist(),
        "check": crops.check(model, test, known, {"": {job.dim: ranks}}, [job.dim], SAMPLE),
    }


def rank_rows(options: Options) -> Iterator[Row]:
    """Show kgfast's numbers of each dimension as they come; then yield them beside the others'."""
    free = torch.cuda.mem_get_info()[0] if options.device == "cuda" else available_memory()
    cap = min(NAIVE_CAP, NAIVE_CAP_SHARE * free)
    rows: list[dict[str, Any]] = []
    for dim in options.dims:
        job = Job(options.quick, options.device, dim)
        sizes = sizes_of(job)
        entities, known = sizes["entities"], sizes["known_triples"]
        with waiting(f"kgfast, dim {dim}"):
            ours = in_child(measure_kgfast, job)
        formula = {
            kind: naive.formula_bytes(kind, naive.BATCH, entities, dim, known)
            for kind in naive.FLOATS_PER_ELEMENT
        }
        row = {"dim": dim, "graph": sizes, "formula": formula | {"batch": naive.BATCH}}
        row |= {"check": ours.pop("check"), "kgfast": ours}
        lines = list(plain("kgfast: the whole test set, and memory beyond the inputs", OURS, [row]))
        print(*lines[-1 if rows else 0 :], sep="\n", flush=True)
        rows.append(row)
    for row in rows:
        job, tail_ranks = replace(job, dim=row["dim"]), row["kgfast"].pop("tail_ranks")
        with waiting(f"one batch of the official formula, dim {job.dim}"):
            others = naive_row(job, row["graph"], cap, tail_ranks)
        yield row | {"naive": others}


def naive_row(
    job: Job, sizes: Mapping[str, Any], cap: float, tail_ranks: list[int]
) -> dict[str, Any]:
    """Measure a naive batch that fits ``cap`` bytes, or say why there is none."""
    batch = naive.batch_that_fits(sizes["entities"], job.dim, cap)
    if not batch:
        return {"batch": 0, "reason": f"one query does not fit in {human_bytes(cap)}"}
    measured = in_child_or_note(naive.measure, job, batch)
    if "note" in measured:
        return {"batch": 0, "reason": f"a batch of {batch} failed: {measured['note']}"}
    compared = list(zip(measured.pop("ranks"), tail_ranks, strict=False))
    return {
        **measured,
        "formula_bytes": naive.formula_bytes("official", batch, sizes["entities"], job.dim, 0),
        "extrapolated_seconds": measured["seconds"] * 2 * sizes["test_triples"] / batch,
        "agreeing_ranks": sum(theirs == ours for theirs, ours in compared),
        "compared_ranks": len(compared),
    }


def crop_rows(options: Options) -> Iterator[Row]:
    """Yield the ways of ranking sub-models, where there are several dimensions."""
    dims = sorted(set(options.dims))
    if len(dims) > 1:
        widest = Job(options.quick, options.device, dims[-1])
        yield from crops.rows(widest, sizes_of(widest), dims, options.ways)


def sizes_of(job: Job) -> dict[str, Any]:
    """Return the sizes of the graph, and its name."""
    graph = job.graph()
    return {
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        "known_triples": len(graph.known()),
        "test_triples": len(graph.test),
        "name": graph.name,
    }


def notes(rows: Rows) -> Iterator[str]:
    """Yield the conclusion, and what a reader must know to trust the tables."""
    rows = [row for row in rows if row["benchmark"] == "eval_mem"]
    if not rows:
        return
    row = max(rows, key=lambda row: int(row["dim"]))
    sizes = cell_of(row, "dim {dim}: {formula[tensor]:bytes} -> {kgfast[bytes]:bytes}")
    yield sizes + cell_of(row, "; ~{naive[extrapolated_seconds]:time} -> {kgfast[seconds]:time}")
    yield cell_of(
        row,
        "By formula: the live float32 temporaries of {formula[batch]} queries against "
        "N = {graph[entities]:,} entities. ~ extrapolated: one measured batch of the official "
        "formula in plain torch, {naive[batch]} queries here, times the number of batches, without "
        "the official code's Python filter and slow norm.",
    )
    if row["kgfast"]["queries"] < 2 * row["graph"]["test_triples"]:
        yield (
            "kgfast's kernels are not built here: the reference backend ranked few triples. These "
            "times say nothing about kgfast."
        )


def _naive_memory(row: Row) -> str:
    return cell_of(row, "{naive[bytes]:bytes} at batch {naive[batch]}") or "did not fit"


def _verdict(row: Row) -> str:
    check = "equal ({check[queries]} queries)"
    return cell_of(row, check if row["check"]["equal"] else "{check[differing]} DIFFER")


OURS: Columns = (
    ("dim:", "{dim}"),
    ("kgfast, memory:", "{kgfast[bytes]:bytes}"),
    ("kgfast, time:", "{kgfast[seconds]:time}"),
    ("N x dim x queries a s:", "{kgfast[elements_per_s]:billions}"),
    ("MRR:", "{kgfast[mrr]:.4f}"),
    ("hits@10:", "{kgfast[hits@10]:.4f}"),
    ("float64 specification:", _verdict),
)
MEMORY: Columns = (
    ("dim:", "{dim}"),
    ("[128, N, dim] complex:", "{formula[tensor]:bytes}"),
    ("PyKEEN, formula:", "{formula[pykeen]:bytes}"),
    ("LibKGE, formula:", "{formula[libkge]:bytes}"),
    ("official, formula:", "{formula[official]:bytes}"),
    ("official, measured:", _naive_memory),
    ("kgfast, measured:", "{kgfast[bytes]:bytes}"),
)
NAIVE_TIME = "naive, one batch x n:", "~{naive[extrapolated_seconds]:time}"
BENCHMARK = Benchmark(
    "eval_mem",
    __doc__,
    {"ranks": rank_rows, "crops": crop_rows},
    options={
        "dims": Option("dimensions", [128, 256, 512], [8, 16]),
        "ways": Option("sub-models also alone, one by one, and all by the specification", False),
    },
    tables={
        "ranks": [
            ("Memory beyond the inputs", MEMORY),
            (
                "Time for the whole test set of {graph[name]}, {graph[test_triples]:,} triples, "
                "both sides, filtered",
                (OURS[0], NAIVE_TIME, *OURS[2:]),
            ),
        ],
        "crops": (
            "Sub-models {dims}: the whole test set by each (without --ways the specification ranks "
            "RSCF's narrowest alone)",
            (*CROP_RANKS, ("as the specification:", _verdict)),
        ),
    },
    section_of=lambda row: {"eval_mem": "ranks", "eval_mem_crops": "crops"}[row["benchmark"]],
    notes=notes,
    is_right=lambda row: row["check"]["equal"],
    picture="draw_memory",
    has_device=True,
    is_written=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

"""The main job: filtered ranks of a whole test set, and the memory and time that they take.

    python benchmarks/eval_mem.py                                 a synthetic graph of WN18RR's size
    python benchmarks/eval_mem.py --data DIR                      your own, with random embeddings
    python benchmarks/eval_mem.py --json mem.json --plot mem.png  files are written only when named

Every dimension is measured in fresh processes: kgfast on the whole test set, both sides, and one
batch of the naive evaluation as far as it fits. Several dimensions are also ranked as sub-models of
one table (MED), with and without filters (RSCF). A random sample of kgfast's ranks is compared with
the float64 specification; a difference ends the run with exit code 1.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import kgfast
from kgfast import ops
from lib import eval_mem_crops as crops
from lib import naive
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options, Parser, positive
from lib.columns import CROP_RANKS
from lib.machine import available_memory
from lib.measure import PeakMemory, Stopwatch, in_child, in_child_or_note, timed
from lib.results import Row, Rows, finite
from lib.tables import Columns, cell_of, human_bytes

# share of available memory, and bytes that are enough to see
NAIVE_CAP_SHARE, NAIVE_CAP = 0.4, 10e9
REFERENCE_TRIPLES = 8  # triples that a backend without kernels ranks while somebody waits


@dataclass(frozen=True)
class Job:
    """The arguments of a child process."""

    data: str | None
    quick: bool
    device: str
    dim: int
    batch_size: int | None
    sample: int

    def graph(self) -> Any:
        """Return the dataset."""
        if self.data is not None:
            return kgfast.datasets.load(self.data)
        return kgfast.datasets.synthetic(*(QUICK_SIZES if self.quick else ()))

    def model(self, graph: Any) -> kgfast.RotatE:
        """Return planted embeddings of the synthetic graph, random ones of any other."""
        if self.data is None:
            entity, phase = graph.planted(self.dim)
            planted = kgfast.RotatE(entity, phase, relation_format="phase")
            return planted.to(self.device)
        fresh = kgfast.RotatE.init(graph.num_entities, graph.num_relations, self.dim, seed=0)
        return fresh.requires_grad_(False).to(self.device)


def measure_kgfast(job: Job) -> dict[str, Any]:
    """Rank the whole test set: peak memory, time, metrics, and the check of a sample."""
    graph = job.graph()
    model, known = job.model(graph), graph.known()
    test = graph.test.hrt
    if ops.backend_for(torch.device(job.device)) == "reference":
        test = test[:REFERENCE_TRIPLES]
    found: list[kgfast.Ranks] = []

    def run() -> None:
        found.append(kgfast.rank(model, test, known=known, batch_size=job.batch_size))

    if job.device == "cpu":
        _warm_up(model)
    else:
        run()  # one call compiles all that the next one needs
    stopwatch = Stopwatch(job.device)
    with PeakMemory(job.device) as peak:
        seconds = stopwatch.seconds(run)
    ranks = found[-1]
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
        "check": _check_sample(model, test, known, ranks, job.sample),
    }


def _warm_up(model: kgfast.RotatE) -> None:
    """Rank few entities, which loads code, starts threads, and keeps no memory."""
    relation_format = model.relation_format
    few = kgfast.RotatE(
        model.entity[:64], model.relation, gamma=model.gamma, relation_format=relation_format
    )
    kgfast.rank(few, torch.tensor([[0, 0, 0]]))


def _check_sample(
    model: kgfast.RotatE, test: torch.Tensor, known: Any, ranks: kgfast.Ranks, sample: int
) -> dict[str, Any]:
    """Compare the counts of a random sample of triples with those of the specification."""
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    chosen = chosen[: (sample + 1) // 2]  # two queries a triple
    with kgfast.use_backend("reference"):
        expected, taken = timed(lambda: kgfast.rank(model, test[chosen], known=known))
    differs = torch.zeros(len(chosen), 2, dtype=torch.bool)
    for counts, wanted in ((ranks, expected), (ranks.raw, expected.raw)):
        differs |= counts.greater[chosen] != wanted.greater
        differs |= counts.equal[chosen] != wanted.equal
        differs |= counts.num_candidates[chosen] != wanted.num_candidates
    return {
        "queries": differs.numel(),
        "differing": int(differs.sum()),
        "equal": not bool(differs.any()),
        "seconds": taken["seconds"],
    }


def measure_naive(job: Job, batch: int) -> dict[str, Any]:
    """Measure one batch of the naive evaluation, on the tail side."""
    graph = job.graph()
    known = graph.known()
    return naive.measure(job.model(graph), graph.test.hrt, known, batch, job.device)


def row_of(job: Job, sizes: Mapping[str, Any], cap: float) -> dict[str, Any]:
    """Measure one dimension; a cap of 0 leaves the naive evaluation out."""
    entities, known = sizes["entities"], sizes["known_triples"]
    ours = in_child(measure_kgfast, job)
    tail_ranks, check = ours.pop("tail_ranks"), ours.pop("check")
    return {
        "dim": job.dim,
        "batch_size": job.batch_size,
        "graph": sizes,
        "embeddings": "planted" if job.data is None else "random",
        "formula": {
            "batch": naive.BATCH,
            "tensor": naive.tensor_bytes(naive.BATCH, entities, job.dim),
            **{
                library: naive.formula_bytes(library, naive.BATCH, entities, job.dim, known)
                for library in naive.LIBRARIES
            },
        },
        "naive": None if not cap else _naive_row(job, sizes, cap, tail_ranks),
        "kgfast": ours,
        "check": check,
    }


def _naive_row(
    job: Job, sizes: Mapping[str, Any], cap: float, tail_ranks: list[int]
) -> dict[str, Any]:
    batch = naive.batch_that_fits(sizes["entities"], job.dim, cap)
    if not batch:
        return {"batch": 0, "reason": f"one query does not fit in {human_bytes(cap)}"}
    measured = in_child_or_note(measure_naive, job, batch)
    if "note" in measured:
        return {"batch": 0, "reason": f"a batch of {batch} failed: {measured['note']}"}
    compared = list(zip(measured.pop("ranks"), tail_ranks, strict=False))
    queries = 2 * sizes["test_triples"]
    return {
        **measured,
        "formula_bytes": naive.formula_bytes("official", batch, sizes["entities"], job.dim, 0),
        "extrapolated_seconds": measured["seconds"] * queries / batch,
        "agreeing_ranks": sum(theirs == ours for theirs, ours in compared),
        "compared_ranks": len(compared),
    }


def rank_rows(options: Options) -> Iterator[Row]:
    """Yield all about each dimension."""
    for job in jobs(options):
        yield row_of(job, sizes_of(job), options.naive_cap * 1e9)


def crop_rows(options: Options) -> Iterator[Row]:
    """Yield the ways of ranking sub-models, where there are several dimensions."""
    dims = sorted(set(options.dims))
    if len(dims) > 1:
        widest = max(jobs(options), key=lambda job: job.dim)
        yield from crops.rows(widest, sizes_of(widest), dims)


def jobs(options: Options) -> list[Job]:
    """Return a job for each dimension."""
    given = options.data, options.quick, options.device
    return [Job(*given, dim, options.batch_size, options.sample) for dim in options.dims]


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


def check(parser: Parser, options: Options) -> None:
    """Check the graph, and choose how much memory the naive batch may take."""
    if options.naive_cap is None:
        free = torch.cuda.mem_get_info()[0] if options.device == "cuda" else available_memory()
        options.naive_cap = min(NAIVE_CAP, NAIVE_CAP_SHARE * free) / 1e9
    if options.naive_cap < 0:
        parser.error(f"--naive-cap must not be negative; got {options.naive_cap}")
    try:
        graph = jobs(options)[0].graph()
    except (OSError, ValueError) as error:
        parser.error(f"--data {options.data}: {error}")
    if not len(graph.test):
        parser.error(f"{graph.name} has no test triples: there is nothing to rank")


def head(rows: Rows) -> dict[str, str]:
    """Say the largest dimension in one line."""
    ranked = [row for row in rows if row["benchmark"] == "eval_mem"]
    if not ranked:
        return {}
    row = max(ranked, key=lambda row: int(row["dim"]))
    naive = cell_of(row, "; ~{naive[extrapolated_seconds]:time} -> {kgfast[seconds]:time}")
    sizes = cell_of(row, "dim {dim}: {formula[tensor]:bytes} -> {kgfast[bytes]:bytes}")
    return {"conclusion": sizes + naive}


def notes(rows: Rows) -> Iterator[str]:
    """Yield the conclusion, and what a reader must know to trust the tables."""
    yield from head(rows).values()
    rows = [row for row in rows if row["benchmark"] == "eval_mem"]
    if not rows:
        return
    row = rows[-1]
    yield cell_of(
        row,
        "By formula: the live float32 temporaries of {formula[batch]} queries against "
        "N = {graph[entities]:,} entities; the headline takes the one tensor alone.",
    )
    if row["embeddings"] == "random":
        yield (
            "The embeddings are RANDOM (RotatE.init, seed 0): these metrics are those of chance, "
            "and kgfast is slower than on trained ones."
        )
    else:
        yield "The embeddings are those that the synthetic graph was drawn from."
    if row["naive"] and row["naive"]["batch"]:
        yield (
            "~ extrapolated: one measured batch of the official formula in plain torch, as large "
            "as fits, times the number of batches. The official code's Python filter and slow norm "
            "are left out: its true time is longer."
        )
        yield cell_of(
            row,
            "Its ranks are kgfast's in {naive[agreeing_ranks]} of {naive[compared_ranks]} queries "
            "at dim {dim}; it computes in float32.",
        )
    if row["kgfast"]["queries"] < 2 * row["graph"]["test_triples"]:
        yield cell_of(
            row,
            "kgfast's kernels are not built here: the reference backend ranked only "
            "{kgfast[queries]} queries. These times say nothing about kgfast.",
        )


def _naive_memory(row: Row) -> str:
    if row["naive"] is None:
        return "not run"
    return cell_of(row, "{naive[bytes]:bytes} at batch {naive[batch]}") or "did not fit"


def _verdict(row: Row) -> str:
    check = "equal ({check[queries]} queries)"
    return cell_of(row, check if row["check"]["equal"] else "{check[differing]} DIFFER")


MEMORY: Columns = (
    ("dim:", "{dim}"),
    ("[128, N, dim] complex:", "{formula[tensor]:bytes}"),
    ("PyKEEN, formula:", "{formula[pykeen]:bytes}"),
    ("LibKGE, formula:", "{formula[libkge]:bytes}"),
    ("official, formula:", "{formula[official]:bytes}"),
    ("official, measured:", _naive_memory),
    ("kgfast, measured:", "{kgfast[bytes]:bytes}"),
)
TIME: Columns = (
    ("dim:", "{dim}"),
    ("naive, one batch x n:", "~{naive[extrapolated_seconds]:time}"),
    ("kgfast, measured:", "{kgfast[seconds]:time}"),
    ("N x dim x queries a s:", "{kgfast[elements_per_s]:billions}"),
    ("MRR:", "{kgfast[mrr]:.4f}"),
    ("hits@10:", "{kgfast[hits@10]:.4f}"),
    ("float64 specification:", _verdict),
)
BENCHMARK = Benchmark(
    "eval_mem",
    __doc__,
    {"ranks": rank_rows, "crops": crop_rows},
    options={
        "data": Option("a dataset folder, any known layout"),
        "dims": Option("dimensions", [128, 256, 512], [8, 16]),
        "batch_size": Option("of kgfast; chosen by it unless given", keywords={"type": positive}),
        "sample": Option("queries compared with the specification", 16),
        "naive_cap": Option(
            "GB that the naive batch may take, 0: none; 40 % of what is available, at most 10",
            keywords={"type": float},
        ),
    },
    tables={
        "ranks": [
            ("Memory beyond the inputs", MEMORY),
            (
                "Time for the whole test set of {graph[name]}, {graph[test_triples]:,} triples, "
                "both sides, filtered",
                TIME,
            ),
        ],
        "crops": (
            "Sub-models {dims}: the whole test set by each",
            (*CROP_RANKS, ("as the specification:", _verdict)),
        ),
    },
    section_of=lambda row: {"eval_mem": "ranks", "eval_mem_crops": "crops"}[row["benchmark"]],
    check=check,
    head=head,
    notes=notes,
    is_right=lambda row: row["check"]["equal"],
    picture="draw_memory",
    has_device=True,
    is_written=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

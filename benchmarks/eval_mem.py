"""The main job: filtered ranks of a whole test set, and the memory and time that they take.

    python benchmarks/eval_mem.py                                 a synthetic graph of WN18RR's size
    python benchmarks/eval_mem.py --data DIR                      your own, with random embeddings
    python benchmarks/eval_mem.py --json mem.json --plot mem.png  files are written only when named

Every dimension is measured in fresh processes: kgfast on the whole test set, both sides, and one
batch of the naive evaluation as far as it fits. Several dimensions are also ranked as sub-models of
one table (MED), with and without filters (RSCF). A random sample of kgfast's ranks is compared with
the float64 specification; a difference ends the run with exit code 1.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast import ops
from lib import eval_mem_crops, naive
from lib import options as known_options
from lib.eval_mem_tables import conclusion, memory_table, notes, time_table
from lib.machine import available_memory, facts, machine_line
from lib.measure import ChildDied, PeakMemory, Stopwatch, in_child
from lib.options import QUICK_SIZES
from lib.results import draw, finite, write_json
from lib.tables import console, human_bytes

NAIVE_CAP_SHARE, NAIVE_CAP = 0.4, 10e9  # of available memory, and what is enough to see
REFERENCE_TRIPLES = 8  # what a backend without kernels can rank while somebody waits


@dataclass(frozen=True)
class Job:
    """What a child process needs to know."""

    data: str | None
    quick: bool
    device: str
    dim: int
    batch_size: int | None
    sample: int

    def graph(self) -> Any:
        """The dataset."""
        if self.data is not None:
            return kgfast.datasets.load(self.data)
        return kgfast.datasets.synthetic(*(QUICK_SIZES if self.quick else ()))

    def model(self, graph: Any) -> kgfast.RotatE:
        """Planted embeddings of the synthetic graph, random ones of any other."""
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
        run()  # only the same call compiles all that it needs
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
    """A call on a few entities: loads code and starts threads, keeps no memory."""
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
    start = time.perf_counter()
    with kgfast.use_backend("reference"):
        expected = kgfast.rank(model, test[chosen], known=known)
    differs = torch.zeros(len(chosen), 2, dtype=torch.bool)
    for counts, wanted in ((ranks, expected), (ranks.raw, expected.raw)):
        differs |= counts.greater[chosen] != wanted.greater
        differs |= counts.equal[chosen] != wanted.equal
        differs |= counts.num_candidates[chosen] != wanted.num_candidates
    return {
        "queries": differs.numel(),
        "differing": int(differs.sum()),
        "equal": not bool(differs.any()),
        "seconds": time.perf_counter() - start,
    }


def measure_naive(job: Job, batch: int) -> dict[str, Any]:
    """One batch of the naive evaluation, on the tail side."""
    graph = job.graph()
    known = graph.known()
    return asdict(naive.measure(job.model(graph), graph.test.hrt, known, batch, job.device))


def measure_row(job: Job, sizes: Mapping[str, int], cap: float | None) -> dict[str, Any]:
    """Everything about one dimension; ``cap=None`` leaves the naive evaluation out."""
    entities, known = sizes["entities"], sizes["known_triples"]
    ours = in_child(measure_kgfast, job)
    tail_ranks, check = ours.pop("tail_ranks"), ours.pop("check")
    return {
        "benchmark": "eval_mem",
        "dim": job.dim,
        "batch_size": job.batch_size,
        "graph": dict(sizes),
        "embeddings": "planted" if job.data is None else "random",
        "formula": {
            "batch": naive.BATCH,
            "tensor": naive.tensor_bytes(naive.BATCH, entities, job.dim),
            **{
                library: naive.formula_bytes(library, naive.BATCH, entities, job.dim, known)
                for library in naive.LIBRARIES
            },
        },
        "naive": None if cap is None else _naive_row(job, sizes, cap, tail_ranks),
        "kgfast": ours,
        "check": check,
    }


def _naive_row(
    job: Job, sizes: Mapping[str, int], cap: float, tail_ranks: list[int]
) -> dict[str, Any]:
    batch = naive.batch_that_fits(sizes["entities"], job.dim, cap)
    if not batch:
        return {"batch": 0, "reason": f"one query does not fit in {human_bytes(cap)}"}
    try:
        measured = in_child(measure_naive, job, batch)
    except (ChildDied, RuntimeError) as error:
        return {"batch": 0, "reason": f"a batch of {batch} failed: {error}"}
    compared = list(zip(measured.pop("ranks"), tail_ranks, strict=False))
    queries = 2 * sizes["test_triples"]
    return {
        **measured,
        "formula_bytes": naive.formula_bytes("official", batch, sizes["entities"], job.dim, 0),
        "extrapolated_seconds": measured["seconds"] * queries / batch,
        "agreeing_ranks": sum(theirs == ours for theirs, ours in compared),
        "compared_ranks": len(compared),
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__, quick="a tiny graph: a smoke test")
    parser.add_argument("--data", metavar="DIR", help="a dataset folder, any known layout")
    parser.add_argument("--dims", type=int, nargs="+", metavar="D", help="128 256 512 unless given")
    parser.add_argument("--batch-size", type=int, help="of kgfast; chosen by it unless given")
    parser.add_argument("--sample", type=int, default=16, help="queries compared with reference")
    parser.add_argument(
        "--naive-cap",
        type=float,
        metavar="GB",
        help="memory that the naive batch may take; 40 %% of what is available, at most 10",
    )
    parser.add_argument("--no-naive", action="store_true", help="formulas only")
    parser.add_argument("--no-crops", action="store_true", help="leave MED and RSCF out")
    parser.add_argument("--only-crops", action="store_true", help="MED and RSCF alone")
    known_options.add_device(parser)
    known_options.add_outputs(parser)
    options = parser.parse_args(arguments)
    known_options.set_defaults(options, {"dims": [128, 256, 512]}, {"dims": [8, 16]})
    known_options.check_positive(parser, options, "dims", "batch_size")
    if options.only_crops and (options.no_crops or options.plot or len(set(options.dims)) < 2):
        parser.error("--only-crops needs several --dims, and neither --no-crops nor --plot")
    if options.sample < 0:
        parser.error(f"--sample must not be negative; got {options.sample}")
    if options.naive_cap is not None and not options.naive_cap > 0:
        parser.error(f"--naive-cap must be positive; got {options.naive_cap}")
    known_options.check_device(parser, options)
    known_options.check_plot(parser, options.plot)
    return options


def _cap(options: argparse.Namespace) -> float | None:
    if options.no_naive:
        return None
    if options.naive_cap is not None:
        return float(options.naive_cap * 1e9)
    free = torch.cuda.mem_get_info()[0] if options.device == "cuda" else available_memory()
    return min(NAIVE_CAP, NAIVE_CAP_SHARE * free)


def _write(
    path: Path | None, rows: list[dict[str, Any]], crop_rows: Sequence[dict[str, Any]] = ()
) -> None:
    """Write what there is so far: a run that is stopped keeps it."""
    if path is not None:
        said = {"conclusion": conclusion(_widest(rows))} if rows else {}
        write_json(path, said | {"rows": [*rows, *crop_rows]})


def _widest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(rows, key=lambda row: int(row["dim"]))


def main() -> int:
    """Measure, print, write; 1 if a rank differs from the specification."""
    options = parse()
    out = console()
    jobs = [
        Job(options.data, options.quick, options.device, dim, options.batch_size, options.sample)
        for dim in options.dims
    ]
    try:
        graph = jobs[0].graph()
    except (OSError, ValueError) as error:
        out.print(f"[red]--data {options.data}: {error}")
        return 2
    if not len(graph.test):
        out.print(f"[red]{graph.name} has no test triples: there is nothing to rank")
        return 2
    sizes = {
        "entities": graph.num_entities,
        "relations": graph.num_relations,
        "known_triples": len(graph.known()),
        "test_triples": len(graph.test),
    }
    about, cap = facts(options.device), _cap(options)
    out.print(
        f"[bold]{graph.name}[/]: {sizes['entities']:,} entities, {sizes['relations']:,} relations, "
        f"{sizes['known_triples']:,} known triples; {sizes['test_triples']:,} test triples, "
        f"{2 * sizes['test_triples']:,} queries"
    )
    out.print(machine_line(about) + "\n", style="dim")
    rows = []
    for job in [] if options.only_crops else jobs:
        with out.status(f"dim {job.dim}: ranking, the naive batch, and the check ..."):
            rows.append(measure_row(job, sizes | {"name": graph.name}, cap) | about)
        _write(options.json, rows)
    crop_rows = []
    if not options.no_crops and len(set(options.dims)) > 1:
        with out.status("sub-models: MED and RSCF ..."):
            dims = sorted(set(options.dims))
            widest = max(jobs, key=lambda job: job.dim)
            found = eval_mem_crops.rows(widest, sizes | {"name": graph.name}, dims)
            crop_rows = [row | about for row in found]
    if rows:
        out.print(memory_table(rows), "", time_table(rows), "")
    if crop_rows:
        out.print(eval_mem_crops.table(crop_rows), "")
    if rows:
        out.print(f"[bold]{conclusion(_widest(rows))}[/]\n")
        for note in notes(rows[-1], cap):
            out.print(f"- {note}", style="dim")
    _write(options.json, rows, crop_rows)
    draw("draw_memory", rows, options.plot, out)
    if not all(row["check"]["equal"] for row in [*rows, *crop_rows]):
        out.print("\n[bold white on red] RANKS DIFFER FROM THE SPECIFICATION: this is a bug ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

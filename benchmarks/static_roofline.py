"""Limits and predicted times of the Triton kernels, read from their machine code.

    python benchmarks/static_roofline.py                  some minutes, needs no GPU
    python benchmarks/static_roofline.py --json FILE      instead of results/static-roofline.json
    python benchmarks/static_roofline.py --steps          what a step of training launches: seconds

Kernels are compiled for an architecture with the arguments that the launcher passes; what each unit
of a multiprocessor has to do is counted in the SASS of their busiest loop (lib/roofline.py). Every
time here is a PREDICTION, not a measurement. It assumes that nothing is abandoned early, that a
unit is always busy at the clock stated, that programs are spread evenly (whole programs per
multiprocessor), and that what is packed or gathered moves at the bandwidth of the memory. Waits of
tensor cores, barriers and loads are counted in the code of products and of the pull; how long each
takes is assumed ("latencies" of the file). The time between launches is not modelled.

With --steps the trainer's code runs on tensors without values, and results/static-step-counts.json
says how many kernels and operators of torch a step has, and how often the host waits.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kgfast.kernels.checks import Checks
from kgfast.kernels.negatives import NegativeLoss, Sampled
from kgfast.kernels.operands import Need
from kgfast.kernels.scores import get_score
from kgfast.kernels.triton import backend
from kgfast.kernels.triton.negatives import NEGATIVES
from kgfast.ops.run import operands_of
from lib.columns import STEP_COUNTS
from lib.machine import facts
from lib.results import RESULTS, ROOT, write_json
from lib.roofline import GPUS, LATENCIES, WARP, clocks_of, limit_of, programs_resident
from lib.roofline_times import SMALL_TABLE, SUM_BLOCK, launches, loss_launches, predictions
from lib.tables import Columns, plain

sys.path += [str(ROOT / "tools"), str(ROOT / "tests")]
import aot
from support import steps

DIM = 100
BATCHES = {"large": 1000, "small": 100, "single": 1}
LOSSES = "bce", "cross entropy"
CROPS = (25, 50, 100)  # swept at once
Launches = list[Any]

STREAMS = {  # kernels that read and write each row in memory once
    *("pack", "pack_parts", "pack_moved", "describe_moves", "score_targets", "sweep_in_place"),
    *("rescore", "count_known", "score_survivors", "gather_scores", "backward_lists"),
    *("add_pieces", "add_stripes", "make_keys", "finish", "adversarial_rows", "adversarial_slopes"),
    *("finish_negatives", "negative_slopes"),
}
WITHIN = {("sweep", "rscf_rotate with a factor"): 1}  # loops beside the first within a fold
# An iteration is a feature of a tile.
PER_PAIR = {
    "sweep",
    "sweep_crops",
    "collect",
    "score_tiles",
    "distance_losses",
}


def ranks(score: str, has_factor: bool = False, **options: Any) -> Callable[[int], Launches]:
    """Record ``rank_counts`` of a small table."""
    return lambda arch: launches(
        score, options.get("batch", 1000), 14_541, DIM, arch, options.get("dims"), has_factor
    )


def tables(score: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make queries and a table of a score."""
    width = DIM * get_score(score).planes
    return torch.zeros(batch, width), torch.zeros(SMALL_TABLE, width)


def recorded(call: Callable[[], Any]) -> Callable[[int], Launches]:
    """Return a recorder of the launches of a call."""

    def record(arch: int) -> Launches:
        with aot.recorded(arch) as launched:
            call()
        return launched

    return record


def best(score: str) -> Callable[[int], Launches]:
    """Record ``topk``."""
    operands = operands_of(*tables(score, 1000), score)
    return recorded(lambda: backend.topk(operands, 5, None, Checks(deferred=True)))


def pairs(score: str, per_row: int | None) -> Callable[[int], Launches]:
    """Record scores and gradients of all pairs, or of ``per_row`` a query."""
    operands = operands_of(*tables(score, 1000), score)
    index = None if per_row is None else torch.zeros(1000, per_row, dtype=torch.int64)

    def call() -> None:
        grad = torch.zeros_like(backend.scores(operands, index))
        backend.backward(operands, grad, index, need=Need(True, True, False))

    return recorded(call)


def loss(name: str, score: str) -> Callable[[int], Launches]:
    """Compute a loss over all candidates, and its gradients."""
    return lambda arch: loss_launches(name, score, arch, 512, DIM)


def adversarial() -> None:
    """Compute the adversarial loss of scores ``[512, 1024]``, and its gradients."""
    scores = torch.zeros(512, 1024)
    rows, peaks, masses = backend.adversarial.rows(scores, 0.5)
    backend.adversarial.backward(rows, scores, peaks, masses, 0.5)


def negatives(score: str) -> Callable[[int], Launches]:
    """Record ``nssa`` of 512 queries and a pool of 1,024 negatives, and its gradients."""
    width = DIM * get_score(score).planes
    operands = operands_of(torch.zeros(512, width), torch.zeros(1024, width), score)
    loss, sampled = NegativeLoss("nssa", 0.5, reduction="mean"), Sampled(torch.ones(512))

    def call() -> None:
        made = NEGATIVES.rows(operands, sampled, loss, keeps=True, check=None)
        NEGATIVES.gradients(operands, loss, made, torch.ones(()), Need(True, True))

    return recorded(call)


WORKLOADS: dict[str, Callable[[int], Launches]] = {
    **{
        f"ranks, {batch}: {score}": ranks(score, batch=queries)
        for score in ("rotate", "l1", "l2", "dot")
        for batch, queries in BATCHES.items()
    },
    "ranks, crops: rotate": ranks("rotate", dims=CROPS),
    "ranks: rscf_rotate with a factor": ranks("rscf_rotate", True),
    "ranks: rscf_rotate": ranks("rscf_rotate"),
    "ranks: rscf_l2 with a factor": ranks("rscf_l2", True),
    **{f"top-k: {score}": best(score) for score in ("rotate", "dot")},
    **{f"all pairs: {score}": pairs(score, None) for score in ("rotate", "l1", "l2")},
    "pairs of a list: rotate": pairs("rotate", 33),
    **{
        f"{name}: {score}": loss(name, score)
        for name in LOSSES
        for score in ("rotate", "l1", "dot")
    },
    "adversarial: any": recorded(adversarial),
    **{f"nssa of a pool: {score}": negatives(score) for score in ("rotate", "l2")},
}

# architectures beside sm_90: ranks of many queries and a loss, as compiling takes minutes
OF_ARCH = {
    90: tuple(WORKLOADS),
    **dict.fromkeys(
        (80, 100),
        tuple(name for name in WORKLOADS if name.startswith("ranks, l") or name == "bce: rotate"),
    ),
}


def kernel_rows(arch: int, workloads: Sequence[str] = tuple(WORKLOADS)) -> Iterator[dict[str, Any]]:
    """Yield a row of each kernel for every score, tile and loss of the workloads, for ``arch``."""
    seen = set()
    for workload in workloads:
        _, score = workload.split(": ")
        for launch in WORKLOADS[workload](arch):
            name = launch.name
            constants = str(launch.args.get("TILE")), str(launch.variant)
            of_loss = workload if workload.startswith(LOSSES) else ""  # each has all its kernels
            key = (name, of_loss) if name in STREAMS else (name, score, constants, of_loss)
            if key not in seen:
                seen.add(key)
                yield kernel_row(launch, aot.compile_for(launch, arch), arch, workload)


def kernel_row(launch: Any, code: Any, arch: int, workload: str) -> dict[str, Any]:
    """Return the clocks of a kernel, and the unit that limits it."""
    warps, name = launch.options["num_warps"], launch.name
    _, score = workload.split(": ")
    row = {
        "arch": f"sm_{arch}",
        "kernel": name,
        "score": score,
        "workload": workload,
        "warps": warps,
        "registers": code.registers,
        "stack": code.stack,
        "shared": code.shared,
        "warps_resident": warps * programs_resident(code, warps, arch),
    }
    if launch.variant is not None:
        row["loss"] = {it: bool(value) for it, value in launch.variant.loss._asdict().items()}
    if name in PER_PAIR:
        return {**row, **sweep_facts(launch, code, arch, WITHIN.get((name, score), 0))}
    clocks = clocks_of(code.busiest, arch, streams=name in STREAMS)
    if any(op == "UTCHMMA" for op in code.busiest):  # the instruction does not tell its shape
        return {**row, "limit": "tensor cores"}
    return {**row, "clocks": rounded(clocks), "limit": limit_of(clocks)}


def rounded(clocks: dict[str, float]) -> dict[str, float]:
    """Round clocks for the results file."""
    return {name: round(value, 3) for name, value in clocks.items() if value}


def sweep_facts(launch: Any, code: Any, arch: int, loops_beside: int = 0) -> dict[str, Any]:
    """Return the tile, issue slots and words an element, and the unit that limits the sweep.

    ``loops_beside``: other loops within the fold, which add their code to it but not their time.
    """
    rows, lanes = launch.tile[:2]
    elements = rows * lanes // (WARP * launch.options["num_warps"])
    inner = (
        code.loop_of_roots(elements)
        if any(loop["MUFU.SQRT"] >= elements for loop in code.loops)
        else code.inner_loop(2 * elements if launch.name.startswith("distance_") else elements)
    )  # a loss also searches and walks
    first = next(i for i, loop in enumerate(code.loops) if loop is inner)
    beside = code.loops[first + 1 : first + 1 + loops_beside]
    outer = code.loops[first + 1 + loops_beside :]
    fold = next((loop for loop in outer if loop.total() > inner.total()), inner)
    around = fold.total() - inner.total() - sum(loop.total() for loop in beside)
    clocks = {name: value / elements for name, value in clocks_of(inner, arch).items()}
    slots = inner.total() / elements
    with_fold = slots + max(0, around) / (elements * SUM_BLOCK)
    clocks["issue"] = with_fold / 4
    return {
        "tile": [rows, lanes],
        "slots": round(slots, 3),
        "slots_with_fold": round(with_fold, 3),
        "roots": inner["MUFU.SQRT"] / elements,
        "words": round(inner.words / elements, 3),
        "clocks": rounded(clocks),
        "limit": limit_of(clocks),
    }


KERNELS: Columns = (
    ("arch", "{arch}"),
    ("kernel", "{kernel}"),
    ("score", "{score}"),
    ("tile:", "{tile[0]}x{tile[1]}"),
    ("registers:", "{registers}"),
    ("stack:", "{stack}"),
    ("shared:", "{shared}"),
    ("warps/SM:", "{warps_resident}"),
    ("slots/element:", "{slots}"),
    ("with fold:", "{slots_with_fold}"),
    ("words:", "{words}"),
    ("limit:", "{limit}"),
)
PREDICTED: Columns = (
    ("GPU", "{gpu}"),
    ("clock:", "{ghz} GHz"),
    ("work", "{work}"),
    ("limit:", "{limit}"),
    ("total:", "{total_seconds:time}"),
)


def main() -> None:
    """Compile, predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--steps", action="store_true", help="count what steps of training launch")
    arguments = parser.parse_args()
    if arguments.steps:
        count_steps(arguments.json or RESULTS / "static-step-counts.json")
        return
    kernels = [row for arch in (90, 80, 100) for row in kernel_rows(arch, OF_ARCH[arch])]
    predicted = list(predictions())
    print(*plain("Compiled kernels (static; nothing was run)", KERNELS, kernels), sep="\n")
    print(*plain("PREDICTED times (not measured)", PREDICTED, predicted), sep="\n")
    found = {
        "what": "predictions from compiled code; nothing here was run on a GPU",
        **facts("cpu"),
        "assumed": [asdict(gpu) for gpu in GPUS],
        "latencies": LATENCIES,
        "kernels": kernels,
        "predictions": predicted,
    }
    write_json(arguments.json or RESULTS / "static-roofline.json", found)


def count_steps(path: Path) -> None:
    """Count the steps of each mode, print, write."""
    about = facts("cpu", "triton")
    rows = [{**row, **about} for row in steps.rows()]
    print(*plain("A step of training (static; nothing was run)", STEP_COUNTS, rows), sep="\n")
    write_json(path, {"what": "counted on tensors without values, not on a GPU", "rows": rows})


if __name__ == "__main__":
    main()

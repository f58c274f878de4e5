"""Cases of `make gpu`, each in a try: a program that gpu.py starts, and restarts after a crash.

``python gpu_cases.py PLAN FIRST UNTIL [WORDS]`` writes a JSON line before and after each case from
number FIRST on, until a time in seconds since the epoch. PLAN has steps and their seconds, such as
``device=5,rates=20``; cases for which a step has no time left say so. Words: ``rehearse`` over a
driver that launches nothing, results unchecked and times void; ``small`` sizes; ``uncached``.
"""

import faulthandler
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast import losses, ops
from kgfast.kernels.scores import SCORES, get_score
from kgfast.rng import scrambled
from lib.machine import facts
from lib.measure import PeakMemory, Stopwatch
from lib.peers.losses import Work, kgfast_bce
from lib.results import RESULTS, write_json

REHEARSES, IS_SMALL = "rehearse" in sys.argv, "small" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() and not REHEARSES else "cpu"
CASE_SECONDS = 60  # a kernel that hangs costs no more
ENTITIES, BATCH, DIM, POOL, LARGE, TURNS = (
    (300, 8, 8, 16, 300, 2) if IS_SMALL else (40_943, 512, 512, 1024, 1_000_000, 4096)
)
INTEGERS = RESULTS / "cpu-integers.json"
HARD, OF_GRAPH = "dot, hard rows", "rotate, WN18RR's test"
GRAPH = os.environ.get("KGFAST_GRAPH")  # WN18RR's folder
QUERIES = dict.fromkeys(SCORES, (256, 64)) | {HARD: (256, 512), "rotate": (6268, 512)}

Values = dict[str, Any]
Call = Callable[[], object]
Case = tuple[str, Callable[[], Values]]
kernels: Counter[str] = Counter()  # those of a case that were compiled, and those from the cache


def device() -> Iterator[Case]:
    """Yield the key of Triton's cache, and the rate of a copy."""
    yield "Triton's cache", _carried
    source = torch.zeros(LARGE * 256, dtype=torch.float32)
    target = torch.zeros_like(source)
    yield "copy: bytes", lambda: _rate(lambda: target.copy_(source), 2 * source.nbytes)


def _carried() -> Values:
    """Compare the key of the kernels that are compiled here with that of the cache."""
    import triton
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    assembler = make_backend(triton.runtime.driver.active.get_current_target()).hash()
    key = hashlib.sha256(f"{triton_key()} {assembler}".encode()).hexdigest()[:16]
    place = Path(os.environ["TRITON_CACHE_DIR"], "key")
    carried = place.read_text() if place.exists() else None
    place.write_text(key)
    return {"key": key, "carried": carried, "hit": carried == key}


def rates() -> Iterator[Case]:
    """Yield what a second does: square roots, halves' bounds, bytes of rows that are gathered."""
    from lib import gpu_rates

    words = torch.zeros(132 * 16 * gpu_rates.LANES, dtype=torch.float32)
    for name, each in (("roots", 1), ("halves", 4)):
        kernel = getattr(gpu_rates, name)[(132 * 16,)]
        call = partial(kernel, words, TURNS, gpu_rates.LANES, num_warps=4)
        yield name, partial(_rate, call, each * TURNS * len(words))
    queries, table = _normal(1024, DIM), _normal(LARGE, DIM)
    ids = torch.randint(LARGE, (1024, BATCH * 8))
    gather = partial(ops.indexed_scores, queries, table, ids, "l1")
    yield "gathered rows: bytes", lambda: _rate(gather, 4 * DIM * ids.numel())


def _rate(call: Call, amount: float) -> Values:
    times = _timed(call)
    return times | {"rate": amount / times["seconds"]["median"]}


def _timed(call: Call, rounds: int = 9) -> Values:
    """Return the median and the spread of a call's seconds, and the peak of its memory."""
    torch.set_default_device(None)  # whose mode would take the host's time at each call of torch
    call()
    with PeakMemory(DEVICE) as peak:
        call()
    _, timings = Stopwatch(DEVICE).race({"kgfast": call}, rounds)
    return {"seconds": timings["kgfast"].as_dict(), "bytes": peak.bytes}


def _normal(*shape: int) -> Tensor:
    """Draw numbers; a rehearsal does not touch the memory of a table."""
    return torch.zeros(shape, dtype=torch.float32) if REHEARSES else torch.randn(shape)


def headlines() -> Iterator[Case]:
    """Yield six timed works."""
    for name in HEADLINES:
        yield name, lambda name=name: _timed(_work(name))  # type: ignore[misc]


def profile() -> Iterator[Case]:
    """Yield the kernels of each headline: names, launches, seconds."""
    for name in HEADLINES:
        yield name, partial(_profiled, name)


def _profiled(name: str) -> Values:
    call, kind = _work(name), "cpu" if REHEARSES else "cuda"
    call()
    activity = getattr(torch.profiler.ProfilerActivity, kind.upper())
    with torch.profiler.profile(activities=[activity]) as profiler:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    field = f"self_{'cpu' if REHEARSES else 'device'}_time_total"
    events = profiler.key_averages()
    rows = [(getattr(event, field) / 1e6, event.count, event.key[:60]) for event in events]
    return {"busy": sum(row[0] for row in rows), "kernels": sorted(rows)[:-13:-1]}


@cache
def _work(name: str) -> Call:
    """Return a headline's work, whose tables are made once."""
    return HEADLINES[name]()


def _test_set() -> Call:
    with torch.device("cpu"):
        data = kgfast.datasets.synthetic(*(500, 6, 1200, 60, 60) if IS_SMALL else ())
        tables, known, test = data.planted(DIM), data.known(), data.test
    model = kgfast.RotatE(*tables, relation_format="phase").to(DEVICE)
    return lambda: kgfast.rank(model, test, known=known)


def _bce_step(score: str) -> Call:
    with torch.device("cpu"):
        return kgfast_bce(Work.random(score, BATCH, ENTITIES, 8 if IS_SMALL else 200, DEVICE))


def _nssa_step() -> Call:
    """Return a loss, its backward and a step of row-wise Adam."""
    with torch.device("cpu"):
        model = kgfast.RotatE.init(ENTITIES, 11, DIM, seed=0).to(DEVICE)
    optimizer = kgfast.RowAdam(model.parameters(), lr=1e-3)
    triples = torch.arange(3 * BATCH).view(BATCH, 3) % torch.tensor([ENTITIES, 11, ENTITIES])
    negatives = torch.randint(ENTITIES, (POOL,))

    def step() -> None:
        with kgfast.unchecked():
            optimizer.zero_grad()
            losses.nssa(model, triples, negatives, sparse=True).backward()
            optimizer.step()

    return step


def _ranking(name: str, score: str, batch: int, rows: int = ENTITIES) -> Call:
    width, targets = DIM * get_score(score).planes, torch.arange(batch) % rows
    queries, table = _normal(batch, width), _normal(rows, width)
    known = torch.zeros(batch + 1, dtype=torch.int64), targets[:0]
    if name == "ranks":
        return lambda: ops.rank_counts(queries, table, targets, *known, score)
    return lambda: ops.topk(queries, table, 10, score=score)


HEADLINES: dict[str, Callable[[], Call]] = {
    "filtered ranks, rotate, WN18RR d=512": _test_set,
    "bce value and gradients, dot, B=512 N=40943 d=200": partial(_bce_step, "dot"),
    "bce value and gradients, rotate, B=512 N=40943 d=200": partial(_bce_step, "rotate"),
    "nssa step, RotatE d=512, 512 x 1024 shared": _nssa_step,
    "ranks of one query, dot, N=1000000 d=512": partial(_ranking, "ranks", "dot", 1, LARGE),
    "top 10, rotate, 128 queries, WN18RR d=512": partial(_ranking, "top 10", "rotate", 128),
}


def captured() -> Iterator[Case]:
    """Yield steps of the trainer as graphs of the device, against eager ones."""
    for negatives in ("shared", "of each triple"):
        name = f"step of the trainer, RotatE d={DIM}, nssa, negatives {negatives}"
        yield name, partial(_captured, negatives != "shared")


def _captured(per_row: bool) -> Values:
    """Raise if tables differ after the same steps; return the times of a step."""
    from lib.bare_run import TrainerSteps
    from lib.peers.steps import Work as Steps

    torch.set_default_device(None)
    sizes = (ENTITIES, 11, 2 * ENTITIES, 0, 0)
    work = Steps(sizes, DIM, BATCH, POOL // 16 if per_row else POOL, per_row)
    trainers = [work.trainer(capture) for capture in ("auto" if REHEARSES else "always", "never")]
    turns = {i: partial(TrainerSteps(trainer).steps, 10) for i, trainer in enumerate(trainers)}
    for turn in turns.values():
        turn()  # of which three of each side are not captured
    in_graph, eager = Stopwatch(DEVICE).interleave(turns, 9).values()
    if not all(map(torch.equal, *(trainer.model.parameters() for trainer in trainers))):
        raise AssertionError("tables differ")
    return {"seconds": in_graph.scaled(0.1).as_dict(), "eager": eager.scaled(0.1).as_dict()}


def batches() -> Iterator[Case]:
    """Yield ranks and the best of several numbers of queries."""
    for score in ("rotate", "dot"):
        for batch in (1, 16, 128, 1024):
            for name in ("ranks", "top 10"):
                case = f"{name}, {score}, {batch} queries, WN18RR d=512"
                yield case, lambda work=(name, score, batch): _timed(_ranking(*work))  # type: ignore[misc]


def integers() -> Iterator[Case]:
    """Yield ranks and best candidates that a CPU found before, on a table of WN18RR's size."""
    if GRAPH:
        yield f"filtered ranks, {OF_GRAPH}", partial(_same_integers, OF_GRAPH)
    for name in SCORES:
        yield f"ranks and top 5, {name}", partial(_same_integers, name)


def cut() -> Iterator[Case]:
    """Yield what tensor cores lose of sums, and ranks of rows that are hard for them."""
    yield "loss of a sum", _lost
    yield f"ranks and top 5, {HARD}", partial(_same_integers, HARD)


def _same_integers(name: str) -> Values:
    """Raise if integers are not those that a CPU found."""
    counted = _counted(name)
    stored = counted if REHEARSES else json.loads(INTEGERS.read_text())["integers"][name]
    for kind, text in counted.items():
        pairs = zip(text.split(), stored[kind].split(), strict=True)
        if wrong := sum(ours != theirs for ours, theirs in pairs):
            raise AssertionError(f"{kind}: {wrong} differ")
    return {"equal": sum(len(text.split()) for text in counted.values())}


def _counted(name: str) -> dict[str, str]:
    """Return the integers of a problem, by kinds, as text."""
    integers = _graph_ranks() if name == OF_GRAPH else _ranks_and_best(name)
    return {kind: " ".join(map(str, some.flatten().tolist())) for kind, some in integers.items()}


def _graph_ranks() -> dict[str, Tensor]:
    """Return filtered counts of a graph's test triples, both sides."""
    with torch.device("cpu"):
        data = kgfast.datasets.load(GRAPH or "")
        test, known, dim = data.test, data.known(), 32 if IS_SMALL else 512
    tables = (
        _exact_numbers(data.num_entities, 2 * dim, 1),
        _exact_numbers(data.num_relations, dim, 2),
    )
    ranks = kgfast.rank(kgfast.RotatE(*tables, relation_format="phase"), test, known=known)
    return {"greater": ranks.greater, "equal": ranks.equal}


def _ranks_and_best(name: str) -> dict[str, Tensor]:
    """Return counts and best candidates of a score; hard rows are targets of hard rows."""
    queries, dim = (8, 32) if IS_SMALL else QUERIES[name]
    score = get_score(name.partition(",")[0])
    q = _exact_numbers(queries, dim * score.query_planes(has_factor=score.is_rscf), 1)
    table = _exact_numbers(ENTITIES, dim * score.planes, 2)
    table[: ENTITIES // 8] = table[-(ENTITIES // 8) :].clone()  # equal scores
    if name == HARD:
        from kgfast.kernels.triton.host import split

        sides = [split.hard_rows(dim // 32, bits) for bits in split.BITS]
        q, rows = (torch.cat(side).repeat(queries // 8, 1) for side in zip(*sides, strict=True))
        table[:queries], q = rows, q.to(DEVICE)
    options = {"factor": _exact_numbers(ENTITIES, dim, 3) if score.is_rscf else None}
    targets = torch.arange(queries) * (1 if name == HARD else 7919) % (ENTITIES - 1)
    known = torch.arange(queries + 1) * 2, torch.stack([targets, targets + 1], 1).flatten()
    counts = ops.rank_counts(q, table, targets, *known, score.name, **options)
    _, best = ops.topk(q, table, 5, *known, score.name, **options)
    kinds = "greater", "equal", "greater_excluded", "equal_excluded", "best"
    return dict(zip(kinds, (*counts, best), strict=True))


def _exact_numbers(rows: int, columns: int, seed: int) -> Tensor:
    """Mix counters to float32 numbers that are the same on every device, with every version."""
    words = scrambled(torch.arange(rows * columns) + (seed << 40)) & 0xFFFF
    return words.view(rows, columns).float() * 2.0**-16 - 0.5


def write_integers() -> int:
    """Write the integers of this machine's CPU, with which a device compares its own."""
    integers = {name: _counted(name) for name in (*QUERIES, OF_GRAPH)}
    write_json(INTEGERS, facts("cpu") | {"integers": integers})
    return 0


def _lost() -> Values:
    """Raise if tensor cores lose more of a sum than the bound of a sweep assumes."""
    from kgfast.kernels.triton.host import bounds, split

    both = split.largest_loss(torch.device(DEVICE)), split.CUT
    units, assumed = (loss / bounds.UNIT for loss in both)
    if units > assumed and not REHEARSES:
        raise AssertionError(f"{units:.2f} units are lost, {assumed} are assumed")
    return {"units": units, "assumed": assumed}


def main(plan: str, first: int, until: float) -> int:
    """Run cases until one fails, which may have broken the device; return the exit code."""
    if "uncached" in sys.argv:  # the cache of allocations hides the bounds of each
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    if REHEARSES:
        rehearse()
    torch.set_default_device(DEVICE)
    count_kernels()
    place = -1
    for step, seconds in (words.split("=") for words in plan.split(",")):
        end = min(until, time.time() + float(seconds))
        for case, call in globals()[step]():
            place += 1
            if place < first:
                continue
            print(json.dumps({"step": step, "case": case, "begins": place}), flush=True)
            line = {"step": step, "case": case, **run(call, end)}
            print(json.dumps(line | ({"void": True} if REHEARSES else {})), flush=True)
            if "error" in line:
                return 1
    return 0


def run(call: Callable[[], Values], end: float) -> Values:
    """Run a case unless its step is at its end; return the values of its line."""
    kernels.clear()
    started, left = time.perf_counter(), end - time.time()
    if left < 1:
        return {"left_out": "no time was left"}
    faulthandler.dump_traceback_later(min(CASE_SECONDS, left + 10), exit=True)
    try:
        values = call()
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        values = {"error": f"{type(error).__name__}: {error}"[-600:]}
    faulthandler.cancel_dump_traceback_later()
    torch.set_default_device(DEVICE)
    return {**values, "took": time.perf_counter() - started, **kernels}


def count_kernels() -> None:
    """Count the kernels of a case that Triton compiles, and those that its cache has."""
    import triton

    def listen(*, cache_hit: bool, **_: object) -> None:
        kernels["cached" if cache_hit else "compiled"] += 1

    triton.knobs.compilation.listener = listen


def rehearse() -> None:
    """Let Triton's backend serve tensors of the host, over a driver that launches nothing."""
    from kgfast.kernels.triton.host import launch
    from kgfast.ops import dispatch
    from support.stub_driver import StubDriver

    StubDriver(90)
    launch.num_multiprocessors, launch.memory_of = lambda device: 132, lambda device: 140 << 30
    dispatch._BACKEND_OF["cpu"] = "triton"
    # No kernel writes results: where these are ids, zeros are better than old memory.
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    Tensor.new_empty = Tensor.new_zeros


if __name__ == "__main__":
    if code := main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])):
        os._exit(code)  # a broken device can hang the interpreter's end

"""Cases of `make gpu`, each in a try: a program that gpu.py starts, and restarts after a crash.

``python gpu_cases.py STEP SCORE FIRST UNTIL [rehearse | uncached]`` writes a JSON line before and
after each case from number FIRST on, until a time in seconds since the epoch. To rehearse, kernels
go to a driver that launches nothing: few cases, small sizes, results unchecked and times void.
"""

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import kgfast
from kgfast import losses, ops
from kgfast.kernels.scores import get_score
from lib.measure import PeakMemory, Stopwatch
from lib.peers.losses import Work, kgfast_bce
from support import real_jit

REHEARSES = "rehearse" in sys.argv
DEVICE = "cpu" if REHEARSES else "cuda"
EXACT, SCORES, LOSSES = 0.0, 2e-5, 1e-4  # largest errors, relative to the largest number
CASE_SECONDS = 60  # a kernel that hangs costs no more
BROKEN = 3  # the exit code where the device refuses further work
ENTITIES, BATCH, DIM, POOL, LARGE = (
    (300, 8, 8, 16, 300) if REHEARSES else (40_943, 512, 512, 1024, 1_000_000)
)
FEW = ("indexed scores", "nssa, lists")  # graded checks of a rehearsal
MODELS = {
    "rotate": partial(kgfast.RotatE, relation_format="phase"),
    "dot": kgfast.DistMult,
    "l1": kgfast.TransE,
}

Values = dict[str, Any]
Case = tuple[str, Callable[[], Values | None]]


def kernels(score: str) -> Iterator[Case]:
    """Yield calls that compile each kernel of a score."""
    calls = *real_jit.ranking(score), *real_jit.differentiable(score)
    for name, call in sorted(calls, key=lambda call: "float32" not in call[0]):
        if not REHEARSES or name in real_jit.FEW:
            yield name, partial(_launch, call)


def _launch(call: Callable[[], object]) -> None:
    call()
    _synchronize()


def _synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def checks(score: str) -> Iterator[Case]:
    """Yield small problems that are computed on the device and by the reference, in float64."""
    has_factor = get_score(score).is_rscf
    for batch in (64,) if REHEARSES else (64, 8, 1):
        for crops in (None,) if REHEARSES or has_factor else (None, [5, 24]):
            for name, call in (("ranks", _ranks), ("top-k", _best)):
                case = partial(_compare, partial(call, crops), score, batch, EXACT)
                yield f"{name} of {batch} queries{', crops' * bool(crops)}", case
    graded: dict[str, tuple[Callable[[Any], Tensor], float]] = {
        "pairwise scores": (_pairwise, SCORES),
        "indexed scores": (_indexed, SCORES),
    }
    if not has_factor:
        graded |= {"bce": (_bce, LOSSES), "cross entropy": (_cross_entropy, LOSSES)}
    if score in MODELS:
        for formula in ("nssa", "margin", "logistic"):
            for kind in ("pool", "lists"):
                graded[f"{formula}, {kind}"] = partial(_sampled, formula, kind), LOSSES
    for name, (call, limit) in graded.items():
        if REHEARSES and name not in FEW:
            continue
        yield name, partial(_compare, partial(_with_gradients, call), score, 64, limit)


def _compare(call: Callable[[Any], list[Tensor]], score: str, batch: int, limit: float) -> Values:
    """Raise if a call's results are not the reference's; limit 0 asks for equal numbers."""
    problem = vars(real_jit.Problem(score, batch=batch))

    def exact(values: Tensor) -> Tensor:
        values = values.cpu()
        return values.double() if limit and values.is_floating_point() else values

    found = call(SimpleNamespace(**problem))
    if REHEARSES:
        return {}
    with ops.use_backend("reference"), torch.device("cpu"):
        expected = call(SimpleNamespace(**tree_map_only(Tensor, exact, problem)))
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        ours = ours.cpu()
        if not limit:
            if wrong := int((ours != theirs).sum()):
                raise AssertionError(f"{wrong} of {ours.numel()} differ")
            continue
        gap = (ours.double() - theirs).abs().max()
        error = float(gap) / max(float(theirs.abs().max()), 1e-30)
        if not error <= limit:  # or NaN
            raise AssertionError(f"relative error {error:.1e}, allowed {limit:.0e}")
        worst = max(worst, error)
    return {"relative_error": worst} if limit else {}


def _ranks(crops: list[int] | None, p: Any) -> list[Tensor]:
    given = p.queries, p.table, p.targets, *p.known, p.score
    return [*ops.rank_counts(*given, dims=crops, **p.options)]


def _best(crops: list[int] | None, p: Any) -> list[Tensor]:
    given = p.queries, p.table, 5, *p.known, p.score
    return [*ops.topk(*given, dims=crops, **p.options)]


def _with_gradients(call: Callable[[Any], Tensor], p: Any) -> list[Tensor]:
    """Return the result of a call and its gradients in the queries and the table."""
    p.queries, p.table = (it.detach().requires_grad_() for it in (p.queries, p.table))
    result = call(p)
    weights = torch.linspace(-1, 2, result.numel(), device=result.device).view(result.shape)
    result.backward(weights.to(result.dtype))
    gradients = [it.grad for it in (p.queries, p.table) if it.grad is not None]
    return [result.detach(), *gradients]


def _pairwise(p: Any) -> Tensor:
    return ops.pairwise_scores(p.queries, p.table, p.score, **p.options)


def _indexed(p: Any) -> Tensor:
    return ops.indexed_scores(p.queries, p.table, _lists(p), p.score, **p.options)


def _lists(p: Any) -> Tensor:
    ids = torch.arange(len(p.queries) * 7, device=p.table.device)
    return ids.view(-1, 7) % len(p.table)


def _bce(p: Any) -> Tensor:
    return ops.bce(p.queries, p.table, p.options["bias"], *p.known, 0.9, 0.001, p.score)


def _cross_entropy(p: Any) -> Tensor:
    return ops.cross_entropy(p.queries, p.table, p.options["bias"], p.targets, 0.1, p.score)


def _sampled(formula: str, kind: str, p: Any) -> Tensor:
    """Return a loss of a model whose entities are the table, and one relation."""
    width = p.table.shape[1] // get_score(p.score).planes
    relation = torch.linspace(-1, 1, width, dtype=p.table.dtype, device=p.table.device)[None]
    triples = torch.stack([p.targets, p.targets * 0, p.targets + 1], 1)
    negatives = _lists(p) if kind == "lists" else _lists(p).flatten()[:90]
    loss: Tensor = getattr(losses, formula)(MODELS[p.score](p.table, relation), triples, negatives)
    return loss


def headlines(_: str) -> Iterator[Case]:
    """Yield six timed works."""
    yield "filtered ranks, rotate, WN18RR d=512", _test_set
    for score in ("dot", "rotate"):
        name = f"bce value and gradients, {score}, B=512 N=40943 d=200"
        yield name, partial(_bce_step, score)
    yield "nssa step, RotatE d=512, 512 x 1024 shared", _nssa_step
    yield "ranks of one query, dot, N=1000000 d=512", _one_query
    yield "top 10, rotate, 128 queries, WN18RR d=512", _top_10


def _timed(call: Callable[[], object], rounds: int = 9) -> Values:
    """Return the median and the spread of a call's seconds, and the peak of its memory."""
    call()
    with PeakMemory(DEVICE) as peak:
        call()
    _, timings = Stopwatch(DEVICE).race({"kgfast": call}, rounds)
    return {"seconds": timings["kgfast"].as_dict(), "bytes": peak.bytes}


def _test_set() -> Values:
    with torch.device("cpu"):
        sizes = (500, 6, 1200, 60, 60) if REHEARSES else ()
        data = kgfast.datasets.synthetic(*sizes)
        tables, known, test = data.planted(DIM), data.known(), data.test
    model = kgfast.RotatE(*tables, relation_format="phase").to(DEVICE)
    return _timed(lambda: kgfast.rank(model, test, known=known))


def _bce_step(score: str) -> Values:
    with torch.device("cpu"):
        work = Work.random(score, BATCH, ENTITIES, 8 if REHEARSES else 200, DEVICE)
    return _timed(kgfast_bce(work))


def _nssa_step() -> Values:
    """Time a loss, its backward and a step of row-wise Adam."""
    with torch.device("cpu"):
        model = kgfast.RotatE.init(ENTITIES, 11, DIM, seed=0).to(DEVICE)
    optimizer = kgfast.RowAdam(model.parameters(), lr=1e-3)
    triples = torch.arange(3 * BATCH).view(BATCH, 3) % torch.tensor([ENTITIES, 11, ENTITIES])
    negatives = torch.randint(ENTITIES, (POOL,))

    def step() -> None:
        optimizer.zero_grad()
        losses.nssa(model, triples, negatives, sparse=True).backward()
        optimizer.step()

    with kgfast.unchecked():
        return _timed(step, 30)


def _one_query() -> Values:
    query, table = torch.randn(1, DIM), torch.randn(LARGE, DIM)
    known = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    target = torch.tensor([7])
    return _timed(lambda: ops.rank_counts(query, table, target, *known, "dot"), 30)


def _top_10() -> Values:
    queries, table = torch.randn(BATCH // 4, 2 * DIM), torch.randn(ENTITIES, 2 * DIM)
    return _timed(lambda: ops.topk(queries, table, 10, score="rotate"))


def main(step: str, score: str, first: int, until: float) -> int:
    """Run cases; return the exit code."""
    if "uncached" in sys.argv:  # the cache of allocations hides the bounds of each
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    if REHEARSES:
        rehearse()
    else:
        torch.set_default_device(DEVICE)
    for place, (name, call) in enumerate(globals()[step](score)):
        if place < first:
            continue
        if time.time() + 1 > until:
            break
        line: Values = {"step": step, "case": f"{score}: {name}".removeprefix(": ")}
        print(json.dumps(line | {"begins": place}), flush=True)
        faulthandler.dump_traceback_later(min(CASE_SECONDS, until - time.time()), exit=True)
        started = time.perf_counter()
        try:
            line |= call() or {}
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            line["error"] = f"{type(error).__name__}: {error}"[-600:]
        line["took"] = time.perf_counter() - started
        print(json.dumps(line | ({"void": True} if REHEARSES else {})), flush=True)
        if "error" in line and not _works():
            return BROKEN
    faulthandler.cancel_dump_traceback_later()
    return 0


def rehearse() -> None:
    """Let Triton's backend serve tensors of the host, over a driver that launches nothing."""
    from kgfast.ops import dispatch
    from support.stub_driver import StubDriver

    StubDriver(90)
    dispatch._BACKEND_OF["cpu"] = "triton"
    # No kernel writes results: where these are ids, zeros are better than old memory.
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    Tensor.new_empty = Tensor.new_zeros


def _works() -> bool:
    """Free the rest of a failed case; return whether the device still computes."""
    try:
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
            torch.ones(1).sum().item()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    if code := main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])):
        os._exit(code)  # a broken device can hang the interpreter's end

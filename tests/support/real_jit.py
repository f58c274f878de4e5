"""Runs operators over Triton's own launcher and writes what fails: a program of test_real_jit.py.

``python real_jit.py ARCH SCORES WHICH``, in the environment of :func:`support.stub_driver.build`;
scores with commas between. WHICH is a key of :data:`WHICH`. Writes JSON: the version of Triton, the
launches, those that were like an earlier one, the stack of each kernel that has one, and the error
of each call that has one.
"""

import json
import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kgfast.kernels.backend import AdagradStep, AdamStep, Composition
from kgfast.kernels.labels import Bce, LossNeed
from kgfast.kernels.operands import Lists, Need
from kgfast.kernels.sampled import NegativeLoss, Sampled
from kgfast.kernels.scores import get_score
from kgfast.kernels.triton.host import launch, status
from support.flat import operands_of, triton
from support.stub_driver import StubDriver

ROWS, DIM, BATCH = 300, 24, 64
BATCHES = 1, 8, BATCH
DTYPES = torch.float32, torch.float16, torch.bfloat16, torch.float64
# Each of what Triton 3.6 did not compile.
FEW = (
    "ranks of float32, 64 queries",
    "pool of float32, nssa, masked",
    "lists of float32, nssa, masked",
    "bce total of float32",
    "bf16 bce total of float32",
    "row adam counted",
    "row adam read",
    "row adagrad counted",
    "row adagrad read",
    "filters",
    "queries of rotate",
    "queries of multiply_complex",
)
Call = Callable[[], object]


class Problem:
    """Queries and a table of a score."""

    def __init__(self, score: str, dtype: torch.dtype = torch.float32, batch: int = BATCH) -> None:
        facts, self.score, self.batch = get_score(score), score, batch
        factor = torch.ones(ROWS, DIM) if facts.is_rscf else None
        width = DIM * facts.query_planes(has_factor=facts.is_rscf)
        self.queries = torch.randn(batch, width, dtype=torch.float32)
        self.table = torch.randn(ROWS, DIM * facts.planes, dtype=torch.float32).to(dtype)
        if dtype == torch.float64:
            self.queries = self.queries.double()
        self.options = {"factor": factor, "bias": torch.randn(ROWS)}
        self.targets = torch.arange(batch, dtype=torch.int64)
        self.known = torch.arange(batch + 1, dtype=torch.int64), self.targets
        self.crops = [DIM // 2, DIM] if not facts.is_rscf else None

    def operands(self, **options: object) -> object:
        given = self.options | options
        return operands_of(self.queries, self.table, self.score, **given)


def ranking(score: str) -> Iterator[tuple[str, Call]]:
    """Yield rankings and top-k: table types, few and many queries, crops, subsets, lists."""
    for dtype in DTYPES:
        for batch in BATCHES if dtype == torch.float32 else (BATCH,):
            p = Problem(score, dtype, batch)
            flat = p.queries, p.table
            name = f"{dtype}, {batch} queries".removeprefix("torch.")
            subset = {"candidate_ids": torch.arange(0, ROWS, 2, dtype=torch.int64)}
            kinds = {"": {}, ", some candidates": subset}
            if p.crops is not None:
                kinds[", crops"] = {"dims": p.crops}
            for kind, options in kinds.items():
                every = p.options | options
                yield (
                    f"ranks of {name}{kind}",
                    lambda p=p, a=flat, o=every: triton.rank_counts(
                        *a, p.targets, *p.known, p.score, **o
                    ),
                )
                yield (
                    f"top-k of {name}{kind}",
                    lambda p=p, a=flat, o=every: triton.topk(*a, 5, *p.known, p.score, **o),
                )
    p = Problem(score)
    count = torch.arange(0, 10 * BATCH + 1, 10, dtype=torch.int64)
    lists = Lists(count, torch.arange(10, dtype=torch.int64).repeat(BATCH))
    arguments = p.queries, p.table
    known = *p.known, p.score
    yield (
        "ranks of lists",
        lambda: triton.rank_counts(*arguments, p.targets, *known, lists=lists, **p.options),
    )
    yield ("top-k of lists", lambda: triton.topk(*arguments, 5, *known, lists=lists, **p.options))


def differentiable(score: str) -> Iterator[tuple[str, Call]]:
    """Yield scores, losses over all candidates and of negatives, with their gradients."""
    backend = triton.backend
    for dtype in DTYPES[:3]:
        p = Problem(score, dtype)
        name = str(dtype).removeprefix("torch.")
        index = torch.arange(BATCH * 7, dtype=torch.int64).view(BATCH, 7) % ROWS
        need = Need(True, True, p.options["factor"] is not None)
        for kind, ids, width in (("pairwise", None, ROWS), ("indexed", index, 7)):
            yield f"{kind} scores of {name}", lambda p=p, i=ids: backend.scores(p.operands(), i)
            grad = torch.randn(BATCH, width, dtype=torch.float32)
            yield (
                f"{kind} gradients of {name}",
                lambda p=p, i=ids, g=grad, n=need: backend.backward(p.operands(), g, i, need=n),
            )
        for formula in ("nssa", "margin", "logistic"):
            for masked in (False, True):
                yield from negatives(p, f"{name}, {formula}", formula, masked=masked)
        if p.options["factor"] is None:
            yield from over_all(p, name)


def negatives(p: Problem, name: str, formula: str, *, masked: bool) -> Iterator[tuple[str, Call]]:
    """Yield a loss of a pool of negatives and of those of each query."""
    kernels = triton.backend.negatives
    for kind in ("pool", "lists"):
        width = ROWS if kind == "pool" else 9
        mask = torch.ones(BATCH, width, dtype=torch.bool) if masked else None
        weights = torch.ones(BATCH) if formula == "nssa" and masked else None
        loss = NegativeLoss(formula, 0.5, mask, "mean", weights)
        ids = torch.arange(BATCH * 9, dtype=torch.int64).view(BATCH, 9) % ROWS
        pool = Sampled(torch.randn(BATCH), None, None)
        sampled = pool if kind == "pool" else Sampled(None, p.targets, ids)

        def both(sampled: Sampled = sampled, loss: NegativeLoss = loss) -> None:
            made = kernels.value(p.operands(), sampled, loss, check=lambda: None)
            made = made._replace(ids=torch.zeros_like(made.ids))  # nobody wrote them
            kernels.gradients(p.operands(), loss, made, torch.ones(()), Need(True, True))

        yield f"{kind} of {name}{', masked' if masked else ''}", both


def over_all(p: Problem, name: str) -> Iterator[tuple[str, Call]]:
    labels = Bce(*p.known, 0.9, 0.001)
    backend, need = triton.backend, LossNeed(True, True, True)
    losses = backend.losses
    yield f"bce of {name}", lambda: losses.value(p.operands(), labels)
    yield (
        f"bce gradients of {name}",
        lambda: losses.gradients(p.operands(), labels, torch.randn(BATCH), need),
    )
    yield (
        f"bce total of {name}",
        lambda: losses.value_and_gradients(p.operands(), labels, 2.0, need),
    )

    if p.score == "dot":
        rounded = replace(p.operands(), precision="bf16")
        yield (
            f"bf16 bce total of {name}",
            lambda: losses.value_and_gradients(rounded, labels, 2.0, need),
        )

    def cross_entropy() -> None:
        made = triton.cross_entropy(p.queries, p.table, p.options["bias"], p.targets, 0.1, p.score)
        triton.cross_entropy_backward(
            *(torch.randn(BATCH), made[1], p.queries, p.table, p.options["bias"]),
            *(p.targets, 0.1, p.score),
        )

    yield f"cross entropy of {name}", cross_entropy


def row_updates() -> Iterator[tuple[str, Call]]:
    """Step optimizers on some rows of a table."""
    kernel, tables = triton.backend.row_updates, torch.zeros(3, ROWS, DIM).unbind()
    ids, rows = torch.arange(5, dtype=torch.int64), torch.ones(5, DIM)
    for name, lr, number in (("counted", 0.1, 1), ("read", *torch.ones(2).unbind())):
        step, other = AdamStep(lr, (0.9, 0.999), 1e-8, 0.0, number), AdagradStep(lr, 1e-10, 0.0)
        yield f"row adam {name}", lambda step=step: kernel.adam(tables, ids, rows, step)
        yield f"row adagrad {name}", lambda step=other: kernel.adagrad(tables[:2], ids, rows, step)
    for dtype in (torch.float32, torch.float64, torch.float16):
        given = ids, ids, rows.to(dtype)
        yield f"row sums {dtype}", lambda given=given: triton.backend.row_sums(*given)


def queries() -> Iterator[tuple[str, Call]]:
    """Make queries of training and their gradients."""
    kernel, anchors = triton.backend.compose, torch.ones(BATCH, 2 * DIM)
    for kind in ("rotate", "multiply_complex"):
        relations = torch.ones(BATCH, DIM if kind == "rotate" else 2 * DIM)

        def both(how: Composition, relations: torch.Tensor) -> None:
            made = kernel.compose(anchors, relations, how)
            kernel.compose_backward(made, anchors, relations, how)

        yield f"queries of {kind}", partial(both, Composition(kind, True, unit=0.5), relations)


def croppable() -> Iterator[tuple[str, Call]]:
    """Filter by RSCF at two crops, and compute gradients."""
    kernel, matrix = triton.backend.filters, torch.ones(2 * DIM, DIM)

    def both() -> None:
        rows, widths = torch.ones(BATCH, 2 * DIM), [DIM // 2, DIM]
        made = kernel.filters(rows, matrix, widths, DIM)
        kernel.filters_backward(made[0], made, rows, matrix, widths, DIM, (True, True))

    yield "filters", both


def calls_of(score: str) -> Iterator[tuple[str, Call]]:
    """Yield every call of a score; with ``dot`` those that have none."""
    yield from ranking(score)
    yield from differentiable(score)
    if score == "dot":
        yield from (*row_updates(), *queries(), *croppable())


def every_choice(kernel: Any, args: dict[str, Any], options: dict[str, Any]) -> set[Hashable]:
    """Return what a launch chooses: table types, and what the kernel is compiled for and left out.

    Each type is compiled with some formula and mask, each formula and mask with some type.
    """
    free = [args[it.name] for it in kernel.params if not it.is_constexpr]
    leaves = tree_leaves(free, is_leaf=lambda leaf: leaf is None)
    tensors = (leaf for leaf in leaves if torch.is_tensor(leaf))
    types = frozenset(leaf.dtype for leaf in tensors if leaf.is_floating_point())
    constants = [args[it.name] for it in kernel.params if it.is_constexpr]
    kinds = map(type, leaves)  # None, a number or a tensor
    return {("types", types), (*options.items(), *constants, *kinds)}


def settings(kernel: Any, args: dict[str, Any], options: dict[str, Any]) -> set[Hashable]:
    """Return warps and registers, which an architecture limits."""
    return {tuple(options.items())}


# The choices of which a launch must have a new one, else it is not made.
WHICH = {"few": every_choice, "choices": every_choice, "settings": settings}


class Distinct:
    """Launches that show something new; ``alike`` counts those that were not made."""

    def __init__(self, choices: Callable[..., set[Hashable]], real: Callable[..., None]) -> None:
        self.alike, self._choices, self._real = 0, choices, real
        self._seen: set[Hashable] = set()

    def __call__(self, kernel: Any, grid: tuple[int, ...], args: dict, **options: object) -> None:
        found = {(kernel.__name__, it) for it in self._choices(kernel, args, options)}
        if all(grid) and found <= self._seen:
            self.alike += 1
            return
        self._real(kernel, grid, args, **options)
        if all(grid):
            self._seen |= found


def stacks_of(utils: Any) -> dict[str, int]:
    """Return a dictionary that will hold the bytes of stack of each kernel that has some."""
    from support.aot import NvidiaCode

    stacks: dict[str, int] = {}
    load = utils.load_binary

    def load_binary(name: str, cubin: bytes, *others: object) -> object:
        if stack := NvidiaCode({"cubin": cubin}, 0).stack:
            stacks[name] = max(stack, stacks.get(name, 0))
        return load(name, cubin, *others)

    utils.load_binary = load_binary
    return stacks


def main(arch: int, scores: list[str], which: str) -> None:
    """Make every call, and write what failed."""
    import triton as compiler

    driver = StubDriver(arch)
    stacks = stacks_of(compiler.runtime.driver.active.utils)
    status.raise_if_bad = lambda rows: None  # no kernel said which rows are bad
    failures: dict[str, str] = {}
    real, calls, alike = launch.launch, 0, 0
    for score in scores:
        launch.launch = distinct = Distinct(WHICH[which], real)
        for name, call in calls_of(score):
            if which == "few" and name not in FEW:
                continue
            calls += 1
            try:
                call()
            except Exception as error:
                while error.__cause__ is not None:
                    error = error.__cause__
                failures[f"{score}: {name}"] = f"{type(error).__name__}: {error}"[-600:]
        alike += distinct.alike
    found = {"triton": compiler.__version__, "calls": calls, "launches": driver.launches}
    print(json.dumps(found | {"alike": alike, "stacks": stacks, "failures": failures}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3])

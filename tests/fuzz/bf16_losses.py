"""Losses with products of bf16 numbers against float64 of rounded operands, within their bounds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fuzz.case import Case, expect, refused
from fuzz.operands import BATCHES, DIMS, DTYPES, ROWS, Operands, drawn
from fuzz.surroundings import variable
from kgfast import ops, use_backend
from kgfast.kernels import cpu
from kgfast.kernels.cpu import bf16
from support import tiers
from support.rounded import TINY, Asked, U, excess, expected
from support.sampled import threads

# Beside those of other kinds, what is cut into blocks, stripes and parts.
_DIMS = (*DIMS, 200, 256, 300, 530)
_ROWS = (*ROWS, 300, 511, 700, 1000, 2100, 5000)
_BATCHES = (*BATCHES, 32, 64, 100, 256, 257, 300, 1030)
_NUMBERS = {"cpu": 300_000, "reference": 20_000}  # numbers of scores and of a table
_VALUES = ("normal", "normal", "grid", "signs", "zero", "lognormal", "cauchy", "same", "few")
_HALVES = (torch.float16, torch.bfloat16)


class _Loss(NamedTuple):
    """A call of queries, table and bias, its labels, and what its rows are divided by."""

    call: Callable[..., Tensor]
    asked: Asked
    divisor: float | None
    name: str


def lacks() -> str:
    """Say why these losses cannot be attacked here."""
    return tiers.lacks("bf16 losses")


def losses(case: Case) -> None:
    """Attack ``ops.bce``, ``ops.cross_entropy`` and their totals."""
    backend = "reference" if case.chance(0.1) else "cpu"
    operands = _operands(case, _NUMBERS[backend])
    loss = _loss(case, operands)
    given = [operands.queries, operands.table, operands.bias]
    needs = [it is not None and case.chance(0.8) for it in given]
    grad = case.normal(*(() if loss.divisor else (len(operands.queries),))).float()
    case.note(needs=needs)

    def made() -> list[Tensor]:
        leaves = [
            None if it is None else it.detach().requires_grad_(need)
            for it, need in zip(given, needs, strict=True)
        ]
        found = loss.call(*leaves)
        asked = [it for it in leaves if it is not None and it.requires_grad]
        return [found.detach(), *(torch.autograd.grad(found, asked, grad) if asked else ())]

    isa = case.choice(cpu.available_isas()) if case.chance(0.1) else cpu.isa()
    case.note(backend=backend, isa=isa)
    with use_backend(backend), variable("KGFAST_CPU_ISA", isa):
        if backend == "cpu" and not bf16.is_available():
            message = refused(made, errors=(ValueError,))
            expect("no bf16 products" in message, message)
            return
        with threads(1):
            found = made()
        with threads(case.choice((2, 2, 3, 4))):
            again = made()
    for one, other in zip(found, again, strict=True):
        expect(torch.equal(one, other), f"{loss.name} depends on the number of threads")
    _check(loss, given, needs, grad, found)


def _operands(case: Case, most: int) -> Operands:
    dim, rows, batch = case.choice(_DIMS), case.choice(_ROWS), case.choice(_BATCHES)
    rows = min(rows, most // max(batch, dim))
    operands = drawn(case, "dot", case.choice(_VALUES), case.choice(DTYPES), dim, rows, batch)
    scale = case.choice((1.0, 1.0, 0.1, 0.01, 3.0))
    dtype = case.choice((*3 * [torch.float32], *_HALVES))
    limit = torch.finfo(dtype).max
    operands.queries = (operands.queries * scale).clamp(-limit, limit).to(dtype)
    case.note(scale=scale, dtype=dtype)
    return operands


def _loss(case: Case, operands: Operands) -> _Loss:
    """Draw a loss; some have candidates that a bias leaves out."""
    name = case.choice(("bce", "bce_total", "cross_entropy"))
    batch, rows = len(operands.queries), len(operands.table)
    own = operands.bias is not None and len(operands.bias) == rows
    left = case.pick.randint(1, rows - 1) if own and rows > 1 and case.chance(0.2) else 0
    if left:
        assert operands.bias is not None
        operands.bias[:left] = -torch.inf
    most = 1 if name == "cross_entropy" else case.choice((1, 3, 8, 40))
    lengths = case.ids(most, batch) + 1
    indptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    indices = case.ids(rows - left, int(indptr[-1])) + left
    if case.chance(0.5) and most > 1:
        indices[1::2] = indices[: len(indices) // 2 * 2 : 2]  # some twice
    positives = torch.zeros(batch, rows, dtype=torch.bool)
    positives[torch.arange(batch).repeat_interleave(lengths), indices] = True
    divisor = case.choice((1.0, 7.5, float(max(1, batch))))
    case.note(loss=name, left=left, most=most, divisor=divisor)
    options = {"precision": "bf16"}
    if name == "cross_entropy":
        smoothing = 0.0 if left else case.choice((0.0, 0.1, 0.9))
        total = divisor if case.chance(0.5) else None
        case.note(smoothing=smoothing, total=total)

        def cross_entropy(*tensors: Tensor) -> Tensor:
            given = *tensors, indices, smoothing, "dot"
            if total is not None:
                return ops.cross_entropy_total(*given, total, **options)
            return ops.cross_entropy(*given, **options)

        asked = Asked(name, positives, 1 - smoothing, smoothing / rows)
        return _Loss(cross_entropy, asked, total, name)
    a, c = case.choice(((1.0, 0.0), (0.9, 0.01), (0.8, 0.2 / rows), (-0.5, 0.3)))
    c = 0.0 if left else c
    labels = indptr, indices, a, c, "dot"
    case.note(a=a, c=c)
    if name == "bce":
        return _Loss(
            lambda *it: ops.bce(*it, *labels, **options),
            *(Asked("bce", positives, a, c), None, name),
        )
    return _Loss(
        lambda *it: ops.bce_total(*it, *labels, divisor=divisor, **options),
        *(Asked("bce", positives, a, c), divisor, name),
    )


def _check(
    loss: _Loss,
    given: Sequence[Tensor | None],
    needs: Sequence[bool],
    grad: Tensor,
    found: Sequence[Tensor],
) -> None:
    """Hold a value and gradients against those of rounded operands."""
    queries, table, bias = given
    assert queries is not None
    assert table is not None
    whole = None if bias is None else bias.expand(len(table))
    kept = slice(None)
    if whole is not None and bool(whole.isinf().any()):
        kept = whole.isfinite()
    # Gradients of a total that are made with it are scaled by what comes in.
    of_rows, factor = grad, 1.0
    if loss.divisor is not None:
        of_rows, factor = torch.full((len(queries),), 1 / loss.divisor), float(grad)
        is_half = any(it is not None and it.dtype in _HALVES for it in (table, bias))
        if is_half:
            of_rows, factor = of_rows * factor, 1.0
    asked = loss.asked._replace(positives=loss.asked.positives[:, kept])
    right = expected(asked, queries, table[kept], None if whole is None else whole[kept], of_rows)
    rows, bound = right.rows, right.row_bound
    if loss.divisor is not None:
        bound = (bound + len(rows) * U * rows.abs()).sum() / loss.divisor
        rows = rows.sum() / loss.divisor
    _expect_close(loss.name, found[0], rows, bound)
    gradients = iter(found[1:])
    for place, (tensor, need) in enumerate(zip(given, needs, strict=True)):
        if tensor is None or not need:
            continue
        got, want, off = next(gradients), factor * right.gradients[place], right.bounds[place]
        expect(got.dtype == tensor.dtype, f"{loss.name}: gradient {place} is {got.dtype}")
        off = abs(factor) * off + 2 * U * want.abs() + TINY
        if place and not isinstance(kept, slice):
            expect(not got[~kept].any(), f"{loss.name}: what is left out has gradient {place}")
            got = got[kept]
        if place == 2 and len(tensor) == 1:
            off = (off + len(want) * U * want.abs()).sum(0, keepdim=True)
            want = want.sum(0, keepdim=True)
        _expect_close(f"{loss.name}: gradient {place}", got, want, off)


def _expect_close(name: str, got: Tensor, want: Tensor, bound: Tensor) -> None:
    expect(got.shape == want.shape, f"{name}: shape {list(got.shape)}, not {list(want.shape)}")
    if got.dtype in _HALVES:
        info = torch.finfo(got.dtype)
        fits = want.abs() + bound < info.max
        bound = bound + info.eps * (want.abs() + bound) + info.tiny * info.eps
        got, want, bound = (it[fits] for it in (got, want, bound))
    worst = excess(got, want, bound)
    expect(not worst, f"{name}: off by {worst:.3g} more than the bound says")

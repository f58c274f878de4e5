"""Losses whose products are of bf16 numbers: they are those of operands that are rounded first.

The oracle computes in float64. Errors of float32 sums in a score move that score's gradient by as
much. Only a gradient that crosses the middle of two bf16 numbers is rounded to another one.
"""

import warnings
from contextlib import ExitStack
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.operands import PRECISIONS
from kgfast.ops import run
from support.engines import INTERPRETED
from support.tensor_cores import tensor_cores

RARE = [pytest.mark.slow] if INTERPRETED else []  # (33, 300, 64) shows as many tiles, and more
SHAPES = [(1, 1, 1), (1, 5, 3), (17, 15, 31), (33, 300, 64), (40, 140, 530)]

U = 2.0**-24
TINY = 2.0**-126  # smaller numbers are flushed


class Asked(NamedTuple):
    """A loss, ``bce`` or ``cross_entropy``, and the labels ``a [positive] + c`` of its rows."""

    loss: str
    positives: Tensor  # bool [B, N], one of a row for cross entropy
    a: float
    c: float


class Expected(NamedTuple):
    """Results of rounded operands in float64, each with a bound on what float32 adds."""

    rows: Tensor
    row_bound: Tensor
    gradients: list[Tensor]  # gradients of queries, table, bias
    bounds: list[Tensor]


def rounded(numbers: Tensor) -> Tensor:
    """Round to bf16, as float64."""
    return numbers.detach().float().bfloat16().double()


def expected(
    asked: Asked, queries: Tensor, table: Tensor, bias: Tensor | None, grad: Tensor
) -> Expected:
    """Compute row losses, and the gradients that come of ``grad [B]`` of them."""
    q, t, grad = rounded(queries), rounded(table), grad.double()[:, None]
    bias = torch.zeros(len(t)) if bias is None else bias.detach()
    x = q @ t.T + bias.double()
    # error of a score
    far = U * ((q.shape[1] + 4) * (q.abs() @ t.abs().T) + 4 * bias.double().abs() + 1)
    labels = asked.a * asked.positives + asked.c
    if asked.loss == "bce":
        steepness = x.sigmoid()
        rows = torch.logaddexp(x, torch.zeros_like(x)).sum(1) - (labels * x).sum(1)
        row_bound = ((1 + labels.abs()) * far).sum(1) + 64 * U * (x.abs() + 1).sum(1)
    else:
        steepness, largest = x.softmax(1), x.abs().amax(1)
        rows = x.logsumexp(1) - (labels * x).sum(1)
        row_bound = 2 * far.amax(1) + 64 * U * (1 + largest)
        far = far + (far.amax(1) + 64 * U * (1 + largest))[:, None]
    slopes, size = (steepness - labels) * grad, steepness * grad.abs()
    moved = (size * (2 * far).expm1()).nan_to_num(torch.inf)  # 0 times infinity says nothing
    moved = torch.minimum(moved, grad.abs())  # slopes are at most 1
    off = moved + 16 * U * (slopes.abs() + size) + TINY  # error of a slope
    near = rounded(slopes)
    flips = torch.maximum(
        (rounded(slopes + off) - near).abs(), (rounded(slopes - off) - near).abs()
    )
    of_queries = U * len(t) * (near.abs() @ t.abs()) + flips @ t.abs()
    of_table = U * len(q) * (near.abs().T @ q.abs()) + flips.T @ q.abs()
    return Expected(
        rows,
        row_bound,
        [near @ t, near.T @ q, slopes.sum(0)],
        [of_queries, of_table, off.sum(0) + U * len(q) * slopes.abs().sum(0)],
    )


def excess(got: Tensor, want: Tensor, bound: Tensor) -> float:
    """Measure by how much the worst number passes its bound; 0 if none does."""
    if not got.numel():
        return 0.0
    worst = ((got.double() - want).abs() - bound - 1e-30).max()
    return float(worst.clamp_min(0.0))


ELSEWHERE = pytest.mark.skipif(not INTERPRETED, reason="runs in test_interpreted.py's processes")
ON_CORES = pytest.param("triton on tensor cores", marks=ELSEWHERE)
WITHOUT = pytest.param("triton", marks=[ELSEWHERE, pytest.mark.slow])


@pytest.fixture(params=["reference", ON_CORES, WITHOUT])
def backend(request, monkeypatch):
    """Each backend with such products, forced; Triton's is interpreted."""
    name, *cores = request.param.split(" on ")
    with ExitStack() as stack:
        if cores:
            precision_of = "kgfast.kernels.triton.loss_tiles.precision_of"
            on_cores = {"bf16": "bf16", "float32": "ieee"}
            monkeypatch.setattr(precision_of, lambda asked, _: on_cores[asked.precision])
            stack.enter_context(tensor_cores())
        stack.enter_context(ops.use_backend(name))
        yield name


def problem(batch: int, rows: int, dim: int) -> tuple[Tensor, ...]:
    """Return queries, table, bias, targets and grad of rows; targets stand on seams, too."""
    generator = torch.Generator().manual_seed(batch + rows + dim)
    shapes = (batch, dim), (rows, dim), (rows,), (batch,)
    queries, table, bias, grad = (torch.randn(*it, generator=generator) for it in shapes)
    targets = torch.randint(rows, (batch,), generator=generator)
    targets[0] = rows - 1
    scale = dim**-0.25
    return scale * queries, scale * table, bias, targets, grad


def of_loss(
    loss: str, queries, table, bias, targets, smoothing, *, precision="bf16", score="dot"
) -> Tensor:
    if loss == "cross_entropy":
        return ops.cross_entropy(
            queries, table, bias, targets, smoothing, score, precision=precision
        )
    indptr = torch.arange(len(queries) + 1)
    labels = indptr, targets, 1 - smoothing, smoothing / len(table)
    return ops.bce(queries, table, bias, *labels, score, precision=precision)


EACH_LOSS = pytest.mark.parametrize("loss", ["bce", "cross_entropy"])


# Scores of 1e8 and 1e12: a softmax compares their differences, however they are rounded.
CASES = [(shape, 1.0, *of) for shape in SHAPES for of in ((0.0, False), (0.1, True))]
CASES += [((17, 90, 64), scale, 0.0, False) for scale in (1e4, 1e6)]
CASES += [pytest.param((70, 1000, 100), 1.0, *of, marks=RARE) for of in ((0.0, False), (0.1, True))]


@EACH_LOSS
@pytest.mark.parametrize(("shape", "scale", "smoothing", "has_bias"), CASES)
@pytest.mark.usefixtures("backend")
def test_rows_and_gradients_are_those_of_rounded_operands(loss, shape, scale, smoothing, has_bias):
    queries, table, bias, targets, grad = problem(*shape)
    leaves = [(scale * it).requires_grad_() for it in (queries, table)]
    leaves += [bias.requires_grad_()] if has_bias else []
    given = (*leaves, None)[:3]
    positives = torch.nn.functional.one_hot(targets, len(table)).bool()
    asked = Asked(loss, positives, 1 - smoothing, smoothing / len(table))
    want = expected(asked, *given, grad)
    rows = of_loss(loss, *given, targets, smoothing)
    assert rows.dtype == torch.float32
    assert not excess(rows.detach(), want.rows, want.row_bound)
    found = torch.autograd.grad(rows, leaves, grad)
    for got, right, bound in zip(found, want.gradients, want.bounds, strict=False):
        assert not excess(got, right, bound)


@EACH_LOSS
def test_what_it_is_not_for_is_refused(loss):
    queries, table, _, targets, _ = problem(3, 9, 4)
    for message, dtype, options in (
        ("must be one of float32, bf16; got 'fp8'", torch.float32, {"precision": "fp8"}),
        ("is for dot products of float32 queries; got score 'l1'", torch.float32, {"score": "l1"}),
        ("precision: bf16 .* and torch.float64", torch.float64, {}),
    ):
        with pytest.raises(ValueError, match=message):
            of_loss(loss, queries.to(dtype), table.to(dtype), None, targets, 0.0, **options)


@EACH_LOSS
@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_the_cpu_multiplies_in_float32_and_says_so_once(loss):
    queries, table, bias, targets, grad = problem(33, 90, 40)
    found = {}
    run._warn_of_float32.cache_clear()
    with ops.use_backend("cpu"), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for precision in PRECISIONS:
            leaves = [it.clone().requires_grad_() for it in (queries, table, bias)]
            rows = of_loss(loss, *leaves, targets, 0.1, precision=precision)
            found[precision] = [rows, *torch.autograd.grad(rows, leaves, grad)]
    assert [str(it.message) for it in told] == [
        "precision: bf16 is for GPUs; on the CPU losses multiply in float32"
    ]
    assert all(torch.equal(a, b) for a, b in zip(*found.values(), strict=True))


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_losses_of_a_model_hand_it_on(loss):
    model = kgfast.ComplEx.init(30, 2, 8, seed=0)
    anchors, relations = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0])
    make = {"bce": kgfast.losses.BCELoss, "cross_entropy": kgfast.losses.CrossEntropyLoss}[loss]
    plain, half = (
        make(precision=precision, reduction="none")(model, (anchors, relations), anchors)
        for precision in PRECISIONS
    )
    assert not torch.equal(plain, half)
    torch.testing.assert_close(plain, half, rtol=1e-3, atol=1e-3)
    rotate = kgfast.RotatE.init(30, 2, 8, seed=0)
    with pytest.raises(ValueError, match="precision: bf16 is for dot products"):
        make(precision="bf16")(rotate, (anchors, relations), anchors)

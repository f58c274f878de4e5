"""The oracle of losses whose products are of bf16 numbers: in float64, of rounded operands.

It rounds as the losses say they do. Errors of float32 sums in a score move that score's gradient by
as much. Only a gradient that crosses the middle of two bf16 numbers is rounded to another one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

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

"""Losses of sampled negatives, of queries and their candidates."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.checks import checks_values, decided_once
from kgfast.kernels.operands import NamedRows, Need, Operands
from kgfast.kernels.sampled import Formula, NegativeLoss, NegativeRows, Sampled
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator
from kgfast.ops.scores import whole_factor
from kgfast.ops.values import check_moves, name_not_finite, safe_ids


def fusing_backend(
    queries: Tensor, bias: Tensor | None, negatives: Tensor, loss: NegativeLoss
) -> str | None:
    """Return the backend whose :func:`negative_loss` takes these arguments; None if none does."""
    weights = loss.weights
    if not (len(queries) and negatives.numel()):
        return None
    if weights is not None and (weights.dtype == torch.float64 or weights.requires_grad):
        return None
    if negatives.ndim == 2 and bias is not None and bias.requires_grad:
        return None
    backend = common.chosen_backend(queries)
    return backend if _fuses(backend, loss.formula, loss.mask is not None) else None


@decided_once
def _fuses(backend: str, formula: Formula, has_mask: bool) -> bool:
    kernels = getattr(get_backend(backend), "negatives", None)
    return kernels is not None and bool(kernels.fuses(formula, has_mask=has_mask))


def negative_loss(operands: Operands, sampled: Sampled, loss: NegativeLoss, backend: str) -> Tensor:
    """Return the loss of queries, each with one positive and negatives: ``[]``, or ``[B]``.

    The negatives are a pool, the rows of the operands, or lists of rows of the operands' table,
    int64. Shapes and dtypes are checked before, and :func:`fusing_backend` names the backend. The
    loss is differentiable in all operands but weights, labels and the bias of lists.
    """
    weights = None if loss.weights is None else loss.weights.float()
    loss = loss._replace(parameter=float(loss.parameter), weights=weights)
    return _negative_loss(operands, sampled, loss, backend)[0]


@operator("negative_loss", waits=True)
def _negative_loss(
    operands: Operands, sampled: Sampled, loss: NegativeLoss, backend: str
) -> NegativeRows:
    """Return the rows, without the positives of a pool."""

    def look_closer() -> None:
        if sampled.negatives is None or sampled.targets is None:
            return name_not_finite(operands)
        index = torch.cat([sampled.targets[:, None], sampled.negatives], 1)
        return name_not_finite(operands, safe_ids("index", index, len(operands.table)), "table")

    check_moves(operands)
    check: Callable[[], None] | None = look_closer if checks_values() else None
    kernels: Any = get_backend(backend)
    rows: NegativeRows = kernels.negatives.value(operands, sampled, loss, check=check)
    if sampled.negatives is None:
        rows = rows._replace(positive=rows.masses.new_empty(0))
    return rows


@_negative_loss.fake
def _(operands: Operands, sampled: Sampled, loss: NegativeLoss) -> tuple[Tensor, ...]:
    count, negatives = operands.num_queries, sampled.negatives
    is_listed = negatives is not None
    width = len(operands.table) if negatives is None else 1 + negatives.shape[1]
    new = operands.queries.new_empty
    index = new(count, width) if is_listed else new(0)
    reduced = loss.reduction != "none"
    return (
        *(new(() if reduced else count), new(count if is_listed else 0), new(count), new(count)),
        new(int(reduced)),
        new(count, width),
        torch.empty(index.shape, dtype=torch.int64, device=index.device),
    )


@_negative_loss.gradient("queries", "table", "bias", "factor", "sampled.positive", rows=True)
def _negative_backward(
    grad: Tensor,
    forward: NegativeRows,
    operands: Operands,
    sampled: Sampled,
    loss: NegativeLoss,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    if sampled.positive is not None:
        forward = forward._replace(positive=sampled.positive)
    kernels: Any = get_backend(backend)
    pulled, of_bias, of_positive = kernels.negatives.gradients(
        operands,
        loss,
        forward,
        grad.resolve_neg(),
        Need(need[0], need[1], need[3]),
        bias=need[2] and not sampled.sparse,
        rows=NamedRows(sampled.besides) if sampled.sparse else None,
    )
    if operands.bias is not None and of_bias is not None:
        of_bias = common.bias_gradient(of_bias, operands.bias)
    ids = forward.ids.new_empty(0) if pulled.ids is None else pulled.ids
    of_factor = whole_factor(pulled, operands)
    return pulled.queries, pulled.table, of_bias, of_factor, of_positive, ids

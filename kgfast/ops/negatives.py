"""Losses of sampled negatives, of queries and their candidates."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kgfast.kernels.checks import checks_values
from kgfast.kernels.operands import NamedRows, Need, Operands
from kgfast.kernels.sampled import NegativeLoss, NegativeRows, Sampled
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_candidates, check_index, check_queries
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator
from kgfast.ops.scores import whole_factor
from kgfast.ops.values import check_moves, name_not_finite, safe_ids


def fuses_negatives(
    queries: Tensor, bias: Tensor | None, negatives: Tensor, weights: Tensor | None = None
) -> bool:
    """Return whether :func:`pool_loss` or :func:`list_loss` takes these arguments.

    Neither takes empty arguments, or weights with a gradient or of float64. Lists take no bias with
    a gradient.
    """
    if not (len(queries) and negatives.numel()):
        return False
    if weights is not None and (weights.dtype == torch.float64 or weights.requires_grad):
        return False
    return not (negatives.ndim == 2 and bias is not None and bias.requires_grad)


def pool_loss(operands: Operands, positive: Tensor, loss: NegativeLoss) -> Tensor:
    """Return the loss of queries and a pool of negatives, the rows of the operands.

    ``positive [B]`` are the scores of the positives. The result is a scalar, or ``[B]`` if
    not reduced. The loss is differentiable in all operands but the weights. Errors are those of
    :func:`kgfast.ops.pairwise_scores`.
    """
    keeps = _keeps(operands.queries, operands.table, operands.bias, operands.factor, positive)
    return _served(operands, Sampled(positive), loss, keeps)


def list_loss(
    operands: Operands,
    targets: Tensor,
    negatives: Tensor,
    loss: NegativeLoss,
    *,
    sparse: bool = False,
    besides: Tensor | None = None,
) -> Tensor:
    """Return the loss of queries, each with one positive and its own negatives.

    ``targets [B]`` and ``negatives [B, K]`` are int64 rows of the operands' table. The result is
    that of :func:`pool_loss`, differentiable in queries, table and factor. ``sparse``, ``besides``
    and errors are those of :func:`kgfast.ops.indexed_scores`.
    """
    shape = operands.num_queries, None
    check_index("index", negatives, shape, operands.table, "the rows of the table")
    if sparse:
        common.refuse_sparse("list_loss")
    sampled = Sampled(None, targets, negatives, besides)
    keeps = _keeps(operands.queries, operands.table, operands.factor)
    return _served(operands, sampled, loss, keeps, sparse, "table")


def _served(
    operands: Operands,
    sampled: Sampled,
    loss: NegativeLoss,
    keeps: bool,
    sparse: bool = False,
    table_name: str = "candidates",
) -> Tensor:
    check_candidates(operands.candidates, None, table_name)
    queries = common.full_precision(operands.queries)
    check_queries(queries, operands.candidates)
    if queries is not operands.queries:
        operands = replace(operands, queries=queries)
    weights = None if loss.weights is None else loss.weights.float()
    loss = loss._replace(parameter=float(loss.parameter), weights=weights)
    backend = common.chosen_backend(queries)
    return _negative_loss(operands, sampled, loss, keeps, backend, sparse)[0]


def _keeps(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(it is not None and it.requires_grad for it in tensors)


@operator("negative_loss", waits=True)
def _negative_loss(
    operands: Operands,
    sampled: Sampled,
    loss: NegativeLoss,
    keeps: bool,
    backend: str,
    sparse: bool,
) -> NegativeRows:
    """Return the rows, without the positives of a pool."""

    def look_closer() -> None:
        if sampled.negatives is None or sampled.targets is None:
            return name_not_finite(operands)
        index = torch.cat([sampled.targets[:, None], sampled.negatives], 1)
        return name_not_finite(operands, safe_ids("index", index, len(operands.table)), "table")

    check_moves(operands)
    check: Callable[[], None] | None = look_closer if checks_values() else None
    kernels = get_backend(backend).negatives
    made = kernels.value(operands, sampled, loss, keeps=keeps, check=check)
    if sampled.negatives is None:
        made = made._replace(positive=made.masses.new_empty(0))
    return made


@_negative_loss.fake
def _(operands: Operands, sampled: Sampled, loss: NegativeLoss, keeps: bool) -> tuple[Tensor, ...]:
    count, negatives = operands.num_queries, sampled.negatives
    is_listed = negatives is not None
    width = len(operands.table) if negatives is None else 1 + negatives.shape[1]
    new = operands.queries.new_empty
    index = new(count, width) if is_listed else new(0)
    reduced = loss.reduction != "none"
    return (
        *(new(() if reduced else count), new(count if is_listed else 0), new(count), new(count)),
        new(int(reduced)),
        new(count if keeps else 0, width),
        torch.empty(index.shape, dtype=torch.int64, device=index.device),
    )


@_negative_loss.gradient(
    *("queries", "table", "bias", "factor", "positive"), of="losses of negatives", rows=True
)
def _negative_backward(
    grad: Tensor,
    own: Tensor,
    masses: Tensor,
    peaks: Tensor,
    scale: Tensor,
    raw: Tensor,
    ids: Tensor,
    operands: Operands,
    sampled: Sampled,
    loss: NegativeLoss,
    backend: str,
    sparse: bool,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    positive = own if sampled.positive is None else sampled.positive
    made, of_bias, of_positive = get_backend(backend).negatives.gradients(
        operands,
        loss,
        NegativeRows(grad, positive, masses, peaks, scale, raw, ids),
        grad.resolve_neg(),
        Need(need[0], need[1], need[3]),
        bias=need[2] and not sparse,
        rows=NamedRows(sampled.besides) if sparse else None,
    )
    if operands.bias is not None and of_bias is not None:
        of_bias = common.bias_gradient(of_bias, operands.bias)
    own_ids = ids.new_empty(0) if made.ids is None else made.ids
    return made.queries, made.table, of_bias, whole_factor(made, operands), of_positive, own_ids

"""Losses of sampled negatives, if a backend reduces scores as they are computed.

On other backends the losses are computed of scores (:mod:`kgfast.losses.negatives`), which is the
specification.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.negatives import NegativeLoss, NegativeRows, Sampled
from kgfast.kernels.operands import Need, Operands
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import check_operands
from kgfast.ops.registry import call, operator
from kgfast.ops.scores import check_row_index, whole_factor


def fuses_negatives(
    queries: Tensor, bias: Tensor | None, negatives: Tensor, weights: Tensor | None = None
) -> bool:
    """Return whether :func:`pool_loss` or :func:`list_loss` takes these operands.

    Both take float32, if the backend fuses such losses. Lists take no bias with a gradient, and
    both take no weights with a gradient.
    """
    if queries.dtype == torch.float64 or not (len(queries) and negatives.numel()):
        return False
    if weights is not None and (weights.dtype == torch.float64 or weights.requires_grad):
        return False
    if negatives.ndim == 2 and bias is not None and bias.requires_grad:
        return False
    return common.offers(queries.device, "negatives")


def pool_loss(operands: Operands, positive: Tensor, loss: NegativeLoss) -> Tensor:
    """Return the loss of queries and a pool of negatives, the rows of the operands.

    ``positive [B]`` are the scores of the positives. The result is float32, a scalar, or ``[B]`` if
    not reduced. The loss is differentiable in all operands but the weights. Errors are those of
    :func:`kgfast.ops.pairwise_scores`.
    """
    queries, table, bias, factor = _checked(operands, "pool_loss")
    made: tuple[Tensor, ...] = call(
        "negative_loss",
        *(queries, table, bias, factor, positive, None, None),
        *(operands.score.name, *_flat(loss), _keeps(queries, table, bias, factor, positive)),
        common.chosen_backend(queries),
        False,
    )
    return made[0]


def list_loss(
    operands: Operands,
    targets: Tensor,
    negatives: Tensor,
    loss: NegativeLoss,
    *,
    sparse: bool = False,
) -> Tensor:
    """Return the loss of queries, each with one positive and its own negatives.

    ``targets [B]`` and ``negatives [B, K]`` are int64 rows of the operands' table. The result is
    that of :func:`pool_loss`, differentiable in queries, table and factor. ``sparse`` and errors
    are those of :func:`kgfast.ops.indexed_scores`.
    """
    queries, table, bias, factor = _checked(operands, "list_loss", "table")
    check_row_index(negatives, queries, table)
    if sparse:
        common.refuse_sparse("list_loss")
    made: tuple[Tensor, ...] = call(
        "negative_loss",
        *(queries, table, bias, factor, None, targets, negatives),
        *(operands.score.name, *_flat(loss)),
        _keeps(queries, table, factor),
        common.chosen_backend(queries),
        sparse,
    )
    return made[0]


def _checked(operands: Operands, name: str, table_name: str = "candidates") -> tuple[Any, ...]:
    """Return queries, in float32, table, bias and factor."""
    queries, candidates = common.full_precision(operands.queries), operands.candidates
    tensors = queries, candidates.table, candidates.bias, candidates.factor
    common.refuse_forward_mode(name, *tensors)
    score = operands.score.name
    check_operands(queries, tensors[1], score, *tensors[2:], None, table_name=table_name)
    return tensors


def _flat(loss: NegativeLoss) -> tuple[str, float, Tensor | None, str, Tensor | None]:
    weights = None if loss.weights is None else loss.weights.float()
    return loss.formula, float(loss.parameter), loss.mask, loss.reduction, weights


def _keeps(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(it is not None and it.requires_grad for it in tensors)


@operator("negative_loss", waits=True)
def _negative_loss(
    queries: Tensor,
    table: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    positive: Tensor | None,
    targets: Tensor | None,
    negatives: Tensor | None,
    score: str,
    formula: str,
    parameter: float,
    mask: Tensor | None,
    reduction: str,
    weights: Tensor | None,
    keeps: bool,
    backend: str,
    sparse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return :class:`~kgfast.kernels.negatives.NegativeRows`, without the positives of a pool."""
    operands = run.operands_of(queries, table, score, bias, factor)
    loss = _loss(formula, parameter, mask, reduction, weights)
    sampled = Sampled(positive, targets, negatives)
    made = run.negative_rows(operands, sampled, loss, keeps=keeps, backend=backend)
    if negatives is None:
        made = made._replace(positive=made.masses.new_empty(0))
    return (*made,)


@_negative_loss.fake
def _(args: SimpleNamespace) -> tuple[Tensor, ...]:
    count, is_listed = len(args.queries), args.negatives is not None
    width = 1 + args.negatives.shape[1] if is_listed else len(args.table)
    new = args.queries.new_empty
    index = new(count, width) if is_listed else new(0)
    reduced = args.reduction != "none"
    return (
        *(new(() if reduced else count), new(count if is_listed else 0), new(count), new(count)),
        new(int(reduced)),
        new(count if args.keeps else 0, width),
        torch.empty(index.shape, dtype=torch.int64, device=index.device),
    )


@_negative_loss.gradient(
    *("queries", "table", "bias", "factor", "positive"),
    of="losses of negatives",
    grads=("grad",),
    kept=("own", "masses", "peaks", "scale", "raw", "ids"),
    unsaved=("targets", "negatives"),
    rows="table",
    named="ids",
)
def _negative_backward(args: SimpleNamespace) -> tuple[Tensor | None, ...]:
    operands = run.operands_of(args.queries, args.table, args.score, args.bias, args.factor)
    positive = args.own if args.positive is None else args.positive
    kept = args.masses, args.peaks, args.scale, args.raw, args.ids
    need = args.need
    made, of_bias, of_positive = run.negative_gradients(
        operands,
        _loss(args.formula, args.parameter, args.mask, args.reduction, args.weights),
        NegativeRows(args.grad, positive, *kept),
        args.grad,
        Need(need[0], need[1], need[3]),
        bias=need[2] and not args.sparse,
        rows_only=args.sparse,
        backend=args.backend,
    )
    if args.bias is not None and of_bias is not None:
        of_bias = common.bias_gradient(of_bias, args.bias)
    return made.queries, made.table, of_bias, whole_factor(made, operands), of_positive, made.ids


def _loss(
    formula: Any, parameter: float, mask: Tensor | None, reduction: Any, weights: Tensor | None
) -> NegativeLoss:
    return NegativeLoss(formula, parameter, mask, reduction, weights)

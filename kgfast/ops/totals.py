"""Sums of row losses over a whole batch, with gradients made together with the value."""

from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgfast.kernels.labels import Bce, CrossEntropy, LossGradients, LossNeed
from kgfast.kernels.operands import Operands
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import check_bounded, check_scale
from kgfast.ops.dispatch import get_backend
from kgfast.ops.losses import (
    as_gradients,
    bce_of,
    bce_rows,
    cross_entropy_of,
    cross_entropy_rows,
    loss_operands,
)
from kgfast.ops.registry import Operator, operator

_FULL = (torch.float32, torch.float64)
_BACKEND = -2  # place of the backend among the options of an operator
_BLOCK = 1 << 20  # numbers of a product in memory at once
_MOST_ROWS = 1 << 14  # rows that one thread sums, so in an order that no thread count changes


def bce_total(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    positive_indptr: Tensor,
    positive_indices: Tensor,
    label_a: float,
    label_c: float,
    score: str,
    divisor: float = 1.0,
    *,
    scale: Tensor | None = None,
    precision: str = "float32",
) -> Tensor:
    """Return the sum of the rows of :func:`kgfast.ops.bce`, divided.

    Needed gradients are computed together with the value. So scores are swept once and not twice,
    but gradients are stored from the forward on. For a table or bias in half precision, and under a
    transform of torch, :func:`kgfast.ops.bce` computes the rows: a gradient in half precision would
    be rounded before scaling.

    Parameters
    ----------
    queries, candidates, bias, positive_indptr, positive_indices, label_a, label_c, score
        See :func:`kgfast.ops.bce`.
    divisor : float
        Positive; ``B N`` makes a mean over all labels.
    scale : Tensor, optional
        ``[]`` floating point, only for ``dot``: a factor of queries, so that scores are ``scale q .
        t + bias``. The scale is differentiable; no second tensor of the size of queries is made.
    precision : {"float32", "bf16"}
        As of :func:`kgfast.ops.bce`.

    Returns
    -------
    Tensor
        A scalar; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.ops.bce`, and for a divisor that is not positive.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [2.0]])
    >>> positives = torch.tensor([0, 1]), torch.tensor([1])
    >>> bce_total(torch.tensor([[1.0]]), table, None, *positives, 1.0, 0.0, "dot", divisor=2)
    tensor(0.4100)
    """
    check_divisor(divisor)
    operands = loss_operands("bce_total", queries, candidates, bias, score, precision)
    operands = _with_scale("bce_total", operands, scale)
    loss = bce_of(operands, positive_indptr, positive_indices, label_a, label_c)
    if not _is_one_sweep(operands):
        return bce_rows(operands.scaled(), loss).sum() / divisor
    return _total(_bce_total, operands, loss, float(divisor))


def cross_entropy_total(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
    divisor: float = 1.0,
    *,
    scale: Tensor | None = None,
    precision: str = "float32",
) -> Tensor:
    """Return the sum of the rows of :func:`kgfast.ops.cross_entropy`, divided.

    Gradients are made as in :func:`bce_total`, if the backend can do so in one sweep.

    Parameters
    ----------
    queries, candidates, bias, targets, label_smoothing, score, precision
        See :func:`kgfast.ops.cross_entropy`.
    divisor : float
        Positive; ``B`` makes a mean.
    scale : Tensor, optional
        See :func:`bce_total`.

    Returns
    -------
    Tensor
        A scalar; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.ops.cross_entropy`, and for a divisor that is not positive.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [1.0], [3.0]])
    >>> cross_entropy_total(torch.tensor([[1.0]]), table, None, torch.tensor([2]), 0.0, "dot")
    tensor(0.1698)
    """
    check_divisor(divisor)
    name = "cross_entropy_total"
    operands = loss_operands(name, queries, candidates, bias, score, precision)
    operands = _with_scale(name, operands, scale)
    loss = cross_entropy_of(operands, targets, label_smoothing)
    if not _is_one_sweep(operands):
        return cross_entropy_rows(operands.scaled(), loss).sum() / divisor
    return _total(_cross_entropy_total, operands, loss, float(divisor))


def check_divisor(divisor: float) -> None:
    """Check that a sum can be divided by a number."""
    check_bounded("divisor", divisor)
    if divisor <= 0:
        raise ValueError(f"divisor must be positive; got {divisor}")


def _with_scale(name: str, operands: Operands, scale: Tensor | None) -> Operands:
    if scale is None:
        return operands
    common.refuse_forward_mode(name, scale)
    check_scale(scale, operands.queries, operands.score.name)
    return replace(operands, scale=scale)


def _is_one_sweep(operands: Operands) -> bool:
    """Return whether one sweep makes the value and the gradients.

    One sweep serves neither gradients that would be rounded nor transforms of torch. One sweep also
    serves a value alone if queries are scaled, block by block.
    """
    tensors = _tensors(operands)
    is_half = any(it is not None and it.dtype not in _FULL for it in tensors[1:])
    if is_half or not operands.num_queries:
        return False
    is_scaled = operands.scale is not None and not common.is_transformed()
    return common.has_gradients(*tensors) or is_scaled


def _tensors(operands: Operands) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    return operands.queries, operands.table, operands.bias, operands.scale


def _total(chosen: Operator[..., Any], operands: Operands, *given: Any) -> Tensor:
    """Call an operator so that the backward returns gradients without a copy."""
    needs, tensors = torch.is_grad_enabled(), _tensors(operands)
    need = [needs and it is not None and it.requires_grad for it in tensors]
    given = operands, *given, common.chosen_backend(operands.queries), need
    if torch.compiler.is_compiling():
        result: tuple[Tensor, ...] = chosen(*given)
        return result[0]
    total: Tensor = _Total.apply(*tensors, chosen, given)  # type: ignore[no-untyped-call]
    return total


class _Total(Function):
    """Operator with a backward that returns the gradients of the forward, without a copy.

    The gradients are used once: a second backward through a retained graph sweeps again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        operator: Operator[..., Any],
        given: tuple[Any, ...],
    ) -> Tensor:
        ctx.operator, ctx.given = operator, given
        total: Tensor
        total, *gradients = operator(*given)
        labels = [it for it in operator.flat(*given) if isinstance(it, Tensor)]
        ctx.save_for_backward(queries, candidates, bias, scale, *labels)
        ctx.gradients = gradients
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors[:4]  # raises if a saved tensor was changed meanwhile
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            with torch.no_grad():
                _, *gradients = ctx.operator(*ctx.given)
        if torch.is_grad_enabled():  # create_graph: this operator refuses a second derivative
            gradients = _total_backward(grad_total, *gradients, *tensors)
        elif type(grad_total) is Tensor:
            grad_total = grad_total.resolve_neg()
            get_backend(ctx.given[_BACKEND]).losses.scale(gradients[:3], grad_total)
            if ctx.needs_input_grad[3]:
                gradients[3] = gradients[3] * grad_total
        else:  # under a transform of torch
            for gradient in gradients:
                gradient.mul_(grad_total)
        needed = zip(gradients, ctx.needs_input_grad, strict=False)
        return *(gradient if need else None for gradient, need in needed), None, None


_FiveTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _body(
    operands: Operands, loss: Any, divisor: float, backend: str, need: Sequence[bool]
) -> _FiveTensors:
    """Return the total and the gradients; gradients that are not needed are empty."""
    given = operands, loss.contiguous(), divisor, _of_sweep(need)
    made = run.loss_total(*given, backend=backend)
    return _with_gradients(made.total, made.gradients, operands, need)


def _of_sweep(need: Sequence[bool]) -> LossNeed:
    """Return the gradients that a sweep makes; the scale's gradient needs the queries' gradient."""
    of_queries, of_table, of_bias, of_scale = need
    return LossNeed(of_queries or of_scale, of_table, of_bias)


def _with_gradients(
    total: Tensor, made: LossGradients, operands: Operands, need: Sequence[bool]
) -> _FiveTensors:
    of_queries, of_table, of_bias = as_gradients(made, operands.bias)
    of_scale = None
    if operands.scale is not None and of_queries is not None:
        if need[3]:
            of_scale = _sum_of_products(of_queries, operands.queries).to(operands.scale.dtype)
        of_queries = of_queries.mul_(operands.scale) if need[0] else None
    queries, table, bias, scale = (
        common.or_empty(it, operands.queries) for it in (of_queries, of_table, of_bias, of_scale)
    )
    return total, queries, table, bias, scale


def _sum_of_products(one: Tensor, other: Tensor) -> Tensor:
    """Sum the products of all numbers ``[B, F]``, in float64, in a fixed order."""
    total = torch.zeros((), dtype=torch.float64, device=one.device)
    step = max(1, min(_MOST_ROWS, _BLOCK // max(1, one.shape[1])))
    for part, its in zip(one.split(step), other.split(step), strict=True):
        total += (part * its).sum(1).double().sum()
    return total


@operator("total_backward")
def _total_backward(
    grad_total: Tensor,
    grad_queries: Tensor,
    grad_candidates: Tensor,
    grad_bias: Tensor,
    grad_scale: Tensor,
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multiply the gradients of a total by the total's own gradient.

    The operands let a second derivative be refused.
    """
    gradients = grad_queries, grad_candidates, grad_bias, grad_scale
    queries, candidates, bias, scale = (it * grad_total for it in gradients)
    return queries, candidates, bias, scale


@_total_backward.fake
def _(
    grad_queries: Tensor, grad_candidates: Tensor, grad_bias: Tensor, grad_scale: Tensor
) -> tuple[Tensor, ...]:
    gradients = grad_queries, grad_candidates, grad_bias, grad_scale
    return tuple(torch.empty_like(it) for it in gradients)


def _fake(operands: Operands, need: Sequence[bool]) -> tuple[Tensor, ...]:
    total = common.empty_scores(operands.queries, ())
    return total, *common.zero_gradients(_tensors(operands), need)


_DIFFERENTIABLE = ("queries", "table", "bias", "scale")


def _save(ctx: Any, values: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    tensors = [values[place] for place in _bce_total.places(_DIFFERENTIABLE)]
    ctx.save_for_backward(*output[1:], *tensors)


def _differentiate(
    ctx: Any, need: list[bool], grad_total: Tensor, *_: Tensor | None
) -> tuple[Tensor, ...]:
    if torch.compiler.is_compiling():
        # The compiler replaces saved tensors by a product that it sees, and only this graph has
        # them; a compiled graph has no second derivative.
        return tuple(gradient * grad_total for gradient in ctx.saved_tensors[:4])
    return _total_backward(grad_total, *ctx.saved_tensors)


def _operator(name: str, loss: type) -> Operator[..., _FiveTensors]:
    """Make the operator of a kind of losses."""
    body = FunctionType(_body.__code__, _body.__globals__, name)
    body.__annotations__ = _body.__annotations__ | {"loss": loss}
    made: Operator[..., _FiveTensors] = Operator(name, body, waits=True)
    made.fake(_fake)
    made.differentiate(_differentiate, _save, _DIFFERENTIABLE)
    return made


_bce_total = _operator("bce_total", Bce)
_cross_entropy_total = _operator("cross_entropy_total", CrossEntropy)
_total_backward.refuse_second_derivative("bce_total and cross_entropy_total")

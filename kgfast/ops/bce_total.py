"""Binary cross entropy of a whole batch, whose gradients come from the sweep of its value."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgfast.kernels.labels import Labels, LossNeed
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import check_operands
from kgfast.ops.dispatch import get_backend
from kgfast.ops.losses import (
    as_outputs,
    bce,
    check_divisor,
    check_labels,
    check_rounded,
    fake_gradients,
)
from kgfast.ops.registry import operator

_FULL = (torch.float32, torch.float64)
_BACKEND = -2  # of the options that a backward keeps


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
    precision: str = "float32",
) -> Tensor:
    """The sum of the rows of :func:`kgfast.ops.bce`, divided.

    Where a gradient is needed, it is made together with the value: scores are swept once and not
    twice, at the price of gradients that are held from the forward on. A table or bias in half
    precision is served by :func:`kgfast.ops.bce`: its gradient would be rounded before it is
    scaled.

    Parameters
    ----------
    queries, candidates, bias, positive_indptr, positive_indices, label_a, label_c, score
        As of :func:`kgfast.ops.bce`.
    divisor : float
        Positive; ``B N`` makes a mean over all labels.
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
    common.refuse_forward_mode("bce_total", queries, candidates, bias)
    queries = common.full_precision(queries)
    check_operands(queries, candidates, score, bias, None, None)
    check_labels(queries, candidates, positive_indptr, positive_indices, label_a, label_c)
    check_rounded(precision, queries, score)
    tensors = (queries, candidates, bias)
    has_gradients = torch.is_grad_enabled()
    need = [has_gradients and part is not None and part.requires_grad for part in tensors]
    labels = positive_indptr, positive_indices, float(label_a), float(label_c), score
    is_half = any(part is not None and part.dtype not in _FULL for part in tensors)
    if is_half or not any(need) or not len(queries):
        rows = bce(queries, candidates, bias, *labels, precision=precision)
        return rows.sum() / divisor
    options = *labels, precision, float(divisor), common.chosen_backend(queries), need
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        result: tuple[Tensor, ...] = torch.ops.kgfast.bce_total(*tensors, *options)
        return result[0]
    total: Tensor = _Total.apply(*tensors, options)  # type: ignore[no-untyped-call]
    return total


class _Total(Function):
    """The operator, whose gradients the backward hands on as they are, without a second copy.

    They are new tensors that only this function has. A second backward through a graph that was
    retained sweeps again, as the first one gave them away.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        options: tuple[Any, ...],
    ) -> Tensor:
        total: Tensor
        total, *gradients = torch.ops.kgfast.bce_total(queries, candidates, bias, *options)
        indptr, indices, *ctx.options = options
        ctx.save_for_backward(queries, candidates, bias, indptr, indices)
        ctx.gradients = gradients
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, indptr, indices = ctx.saved_tensors  # raises where one was changed meanwhile
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            with torch.no_grad():
                arguments = (*tensors, indptr, indices, *ctx.options)
                _, *gradients = torch.ops.kgfast.bce_total(*arguments)
        if torch.is_grad_enabled():  # create_graph: this operator refuses a second derivative
            gradients = torch.ops.kgfast.bce_total_backward(grad_total, *gradients, *tensors)
        elif type(grad_total) is Tensor:
            get_backend(ctx.options[_BACKEND]).losses.scale(gradients, grad_total.resolve_neg())
        else:  # of a transform of torch
            for gradient in gradients:
                gradient.mul_(grad_total)
        needed = zip(gradients, ctx.needs_input_grad, strict=False)
        return *(gradient if need else None for gradient, need in needed), None


@operator("bce_total", waits=True)
def _bce_total(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    positive_indptr: Tensor,
    positive_indices: Tensor,
    label_a: float,
    label_c: float,
    score: str,
    precision: str,
    divisor: float,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The total, and its gradients for a backward; of those that are not needed, nothing."""
    operands = run.operands_of(queries, candidates, score, bias, precision=precision)
    labels = Labels(positive_indptr.contiguous(), positive_indices.contiguous(), label_a, label_c)
    made = run.bce_total(operands, labels, divisor, LossNeed(*need), backend=backend)
    return made.total, *as_outputs(made.gradients, operands)


@_bce_total.fake
def _(args: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return common.empty_scores(args.queries, (), None), *fake_gradients(args)


@operator("bce_total_backward")
def _bce_total_backward(
    grad_total: Tensor,
    grad_queries: Tensor,
    grad_candidates: Tensor,
    grad_bias: Tensor,
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the total, times the total's own.

    They were made of the operands, which is what lets a second derivative be refused.
    """
    return grad_queries * grad_total, grad_candidates * grad_total, grad_bias * grad_total


@_bce_total_backward.fake
def _(args: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    empty = torch.empty_like
    return (
        empty(args.grad_queries),
        empty(args.grad_candidates),
        empty(args.grad_bias),
    )


def _save(ctx: Any, args: SimpleNamespace, output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:], args.queries, args.candidates, args.bias)


def _differentiate(
    ctx: Any, need: list[bool], grad_total: Tensor, *_: Tensor | None
) -> tuple[Tensor, ...]:
    if torch.compiler.is_compiling():
        # The compiler writes a product that it sees in the place of what was saved, which only this
        # graph has; a compiled graph has no second derivative.
        return tuple(gradient * grad_total for gradient in ctx.saved_tensors[:3])
    gradients: tuple[Tensor, ...] = torch.ops.kgfast.bce_total_backward(
        grad_total, *ctx.saved_tensors
    )
    return gradients


_bce_total.differentiate(_differentiate, _save, wrt=("queries", "candidates", "bias"))
_bce_total_backward.refuse_second_derivative("bce_total")

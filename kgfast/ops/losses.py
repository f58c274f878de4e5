"""Row losses over all candidates, streamed: no ``[B, N]`` tensor forward or backward."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgfast.kernels.labels import Bce, CrossEntropy, LossGradients, LossNeed, LossRows
from kgfast.kernels.operands import Operands
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import (
    check_bounded,
    check_index,
    check_number,
    check_precision,
    checked_operands,
)
from kgfast.ops.registry import operator

_DIFFERENTIABLE = ("queries", "table", "bias")


def bce(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    positive_indptr: Tensor,
    positive_indices: Tensor,
    label_a: float,
    label_c: float,
    score: str,
    *,
    precision: str = "float32",
) -> Tensor:
    """Compute binary cross entropy of each query's scores with all candidates.

    With scores ``x`` (bias included) and labels ``a [j positive] + c``::

        rows = sum_j softplus(x_j) - c sum_j x_j - a sum_{j positive} x_j

    The loss is differentiable in queries, candidates and bias. The backward runs on the backend of
    the forward and computes scores again, chunk by chunk. Two runs give equal bits. There is no
    second derivative.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32; half precision is cast to float32. Float64 is computed in float64, by
        the reference backend.
    candidates : Tensor
        ``[N, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    bias : Tensor or None
        ``[N]`` or ``[1]`` floating point, added to scores last. A margin gamma goes here. -inf
        leaves a candidate out. Such a candidate must not be a positive, and ``label_c`` must be 0.
    positive_indptr, positive_indices : Tensor
        ``[B + 1]`` and ``[nnz]`` int64, CSR: the positives of each query, at least one, in any
        order; duplicates count once.
    label_a, label_c : float
        Addition to the labels of positives, and base of all labels. :func:`kgfast.losses.bce` has
        the smoothing conventions of the field in these terms.
    score : str
        ``dot``, ``l1``, ``l2``, ``rotate`` or ``rotate_interleaved``.
    precision : {"float32", "bf16"}
        ``bf16``, only for ``dot`` and float32 queries, rounds the factors of products to bfloat16
        (to nearest, ties to even). The factors are queries and candidates, and in gradients also
        the gradient of the scores. Products are summed in float32, and all other arithmetic is
        float32. ``bf16`` is for GPUs. The CPU's kernels multiply in float32, and a warning says so
        once.

    Returns
    -------
    Tensor
        Row losses ``[B]``; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device or id that does not fit, a row without positives, a precision
        that does not fit, and a NaN or an infinity that takes part (:mod:`kgfast.ops.finite`);
        the message names the argument and the first offending row.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [2.0]])
    >>> positives = torch.tensor([0, 1]), torch.tensor([1])
    >>> bce(torch.tensor([[1.0]]), table, None, *positives, 1.0, 0.0, "dot")
    tensor([0.8201])
    """
    operands = loss_operands("bce", queries, candidates, bias, score, precision)
    loss = bce_of(operands, positive_indptr, positive_indices, label_a, label_c)
    return bce_rows(operands, loss)


def cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
    *,
    precision: str = "float32",
) -> Tensor:
    """Compute softmax cross entropy of each query's scores with all candidates.

    With scores ``x`` (bias included), target ``t`` and smoothing eps::

        rows = logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

    All else is as in :func:`bce`.

    Parameters
    ----------
    queries, candidates, bias, score, precision
        As in :func:`bce`; a bias of -inf needs ``label_smoothing`` 0.
    targets : Tensor
        ``[B]`` int64 in ``0 .. N-1``.
    label_smoothing : float
        Smoothing eps, in ``[0, 1)``.

    Returns
    -------
    Tensor
        Row losses ``[B]``; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        As :func:`bce`.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [1.0], [3.0]])
    >>> cross_entropy(torch.tensor([[1.0]]), table, None, torch.tensor([2]), 0.0, "dot")
    tensor([0.1698])
    """
    operands = loss_operands("cross_entropy", queries, candidates, bias, score, precision)
    return cross_entropy_rows(operands, cross_entropy_of(operands, targets, label_smoothing))


def bce_rows(operands: Operands, loss: Bce) -> Tensor:
    """Return :func:`bce` of checked arguments."""
    return _bce(operands, loss, common.chosen_backend(operands.queries))


def cross_entropy_rows(operands: Operands, loss: CrossEntropy) -> Tensor:
    """Return :func:`cross_entropy` of checked arguments."""
    tensors = operands.queries, operands.table, operands.bias
    given = operands, loss, common.chosen_backend(operands.queries)
    if torch.compiler.is_compiling() or not common.has_gradients(*tensors):
        return _cross_entropy(*given)[0]
    rows: Tensor = _KeptScores.apply(*tensors, given)  # type: ignore[no-untyped-call]
    return rows


class _KeptScores(Function):
    """Operator with scores that a backend may keep for the first backward, which overwrites them.

    A second backward through a retained graph computes the scores again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        given: tuple[Operands, CrossEntropy, str],
    ) -> Tensor:
        operands, loss, backend = given
        made = run.loss_value(operands, loss.contiguous(), backend=backend, keep=True)
        ctx.save_for_backward(made.logsumexp, queries, candidates, bias, loss.targets)
        ctx.facts, ctx.made = given, made
        return made.rows

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor) -> tuple[Tensor | None, ...]:
        logsumexp, queries, candidates, bias, _ = ctx.saved_tensors
        operands, loss, backend = ctx.facts
        need, made, ctx.made = ctx.needs_input_grad[:3], ctx.made, None
        if made is None or torch.is_grad_enabled() or type(grad_rows) is not Tensor:
            score, precision = operands.score.name, operands.precision
            operands = run.operands_of(queries, candidates, score, bias, precision=precision)
            gradients = _cross_entropy_backward(
                grad_rows, logsumexp, operands, loss, backend, list(need)
            )
        else:
            needed = LossNeed(*need)
            given = operands, loss.contiguous(), grad_rows, needed, made
            gradients = as_gradients(run.loss_gradients(*given, backend=backend), bias)
        pairs = zip(gradients, need, strict=True)
        return *(it if is_needed else None for it, is_needed in pairs), None


def loss_operands(
    name: str,
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    score: str,
    precision: str,
) -> Operands:
    """Make the operands of a loss, checked."""
    common.refuse_forward_mode(name, queries, candidates, bias)
    operands = checked_operands(queries, candidates, score, bias, precision=precision)
    check_precision(precision)
    if precision != "float32" and score != "dot":
        raise ValueError(f"precision: {precision} is for dot products; got score {score!r}")
    if precision != "float32" and operands.queries.dtype != torch.float32:
        dtype = operands.queries.dtype
        raise ValueError(f"precision: {precision} is for float32 queries; got {dtype}")
    return operands


def bce_of(
    operands: Operands, indptr: Tensor, indices: Tensor, label_a: float, label_c: float
) -> Bce:
    """Make the loss of :func:`bce`, checked except for the values of tensors."""
    check_index("positive_indptr", indptr, (operands.num_queries + 1,), operands.table)
    check_index("positive_indices", indices, (None,), operands.table)
    for name, value in (("label_a", label_a), ("label_c", label_c)):
        check_bounded(name, value)
    return Bce(indptr, indices, float(label_a), float(label_c))


def cross_entropy_of(operands: Operands, targets: Tensor, label_smoothing: float) -> CrossEntropy:
    """Make the loss of :func:`cross_entropy`, checked except for the values of targets."""
    check_index("targets", targets, (operands.num_queries,), operands.table)
    check_smoothing(label_smoothing)
    return CrossEntropy(targets, float(label_smoothing))


def check_smoothing(label_smoothing: float) -> None:
    """Check that a smoothing of labels leaves a part of the labels."""
    check_number("label_smoothing", label_smoothing)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1); got {label_smoothing}")


@operator("bce", waits=True)
def _bce(operands: Operands, loss: Bce, backend: str) -> Tensor:
    return run.loss_value(operands, loss.contiguous(), backend=backend).rows


@_bce.fake
def _(operands: Operands) -> Tensor:
    return common.empty_scores(operands.queries, (operands.num_queries,))


@_bce.gradient(*_DIFFERENTIABLE, of="bce")
def _bce_backward(
    grad: Tensor, operands: Operands, loss: Bce, backend: str, need: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    given = operands, loss.contiguous(), grad, LossNeed(*need)
    return as_gradients(run.loss_gradients(*given, backend=backend), operands.bias)


@operator("cross_entropy", waits=True)
def _cross_entropy(operands: Operands, loss: CrossEntropy, backend: str) -> tuple[Tensor, Tensor]:
    """Return row losses, and the logsumexp of each in float64 for the backward."""
    made = run.loss_value(operands, loss.contiguous(), backend=backend)
    assert made.logsumexp is not None
    return made.rows, made.logsumexp


@_cross_entropy.fake
def _(operands: Operands) -> tuple[Tensor, Tensor]:
    rows = common.empty_scores(operands.queries, (operands.num_queries,))
    return rows, torch.empty(rows.shape, dtype=torch.float64, device=rows.device)


@_cross_entropy.gradient(*_DIFFERENTIABLE, of="cross_entropy")
def _cross_entropy_backward(
    grad: Tensor,
    logsumexp: Tensor,
    operands: Operands,
    loss: CrossEntropy,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    made = LossRows(grad, logsumexp, logsumexp)
    given = operands, loss.contiguous(), grad, LossNeed(*need), made
    return as_gradients(run.loss_gradients(*given, backend=backend), operands.bias)


def as_gradients(made: LossGradients, bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, candidates and bias, with the bias's shape and dtype."""
    of_bias = made.bias
    if bias is not None and of_bias is not None:
        of_bias = common.bias_gradient(of_bias, bias)
    return made.queries, made.table, of_bias

"""Losses over all candidates, streamed: no ``[B, N]`` tensor forward or backward."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function

from kgfast.kernels.labels import Bce, CrossEntropy, LossGradients, LossNeed, LossRows
from kgfast.kernels.operands import PRECISIONS, Operands
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import check_bounded, check_index, check_share, checked_operands
from kgfast.ops.registry import operator

_FULL = (torch.float32, torch.float64)


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
    divisor: float | None = None,
    precision: str = "float32",
) -> Tensor:
    """Compute binary cross entropy of each query's scores with all candidates.

    With scores ``x`` (bias included) and labels ``a [j positive] + c``::

        rows = sum_j softplus(x_j) - c sum_j x_j - a sum_{j positive} x_j

    The loss is differentiable once in queries, candidates and bias, on the backend of the forward.
    Two runs give equal bits.

    Parameters
    ----------
    queries, candidates
        ``[B, F]`` and ``[N, G]``, as in :func:`kgfast.ops.pairwise_scores`.
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
    divisor : float, optional
        Positive: return the sum of the rows, divided. Scores are then swept once for value and
        gradients, unless table or bias are in half precision or the call is compiled.
    precision : {"float32", "bf16"}
        ``bf16``, for ``dot`` and float32 queries on GPUs, rounds queries, candidates and the
        gradient of the scores to bfloat16 in products, which are summed in float32.

    Returns
    -------
    Tensor
        Row losses ``[B]``, or a scalar; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        For an argument that does not fit, a row without positives, and a NaN or an infinity that
        takes part (:mod:`kgfast.ops.values`); the message names argument and row.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [2.0]])
    >>> positives = torch.tensor([0, 1]), torch.tensor([1])
    >>> bce(torch.tensor([[1.0]]), table, None, *positives, 1.0, 0.0, "dot")
    tensor([0.8201])
    """
    operands = _checked(queries, candidates, bias, score, divisor, precision)
    check_index("positive_indptr", positive_indptr, (operands.num_queries + 1,), candidates)
    check_index("positive_indices", positive_indices, (None,), candidates)
    for name, value in (("label_a", label_a), ("label_c", label_c)):
        check_bounded(name, value)
    loss = Bce(positive_indptr, positive_indices, float(label_a), float(label_c))
    return _loss(operands, loss, divisor)


def cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
    *,
    divisor: float | None = None,
    precision: str = "float32",
) -> Tensor:
    """Compute softmax cross entropy of each query's scores with all candidates.

    With scores ``x`` (bias included), target ``t`` and smoothing eps::

        rows = logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

    The result, errors and all else are as in :func:`bce`.

    Parameters
    ----------
    queries, candidates, bias, score, divisor, precision
        As in :func:`bce`; a bias of -inf needs ``label_smoothing`` 0.
    targets : Tensor
        ``[B]`` int64 in ``0 .. N-1``.
    label_smoothing : float
        Smoothing eps, in ``[0, 1)``.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [1.0], [3.0]])
    >>> cross_entropy(torch.tensor([[1.0]]), table, None, torch.tensor([2]), 0.0, "dot")
    tensor([0.1698])
    """
    operands = _checked(queries, candidates, bias, score, divisor, precision)
    check_index("targets", targets, (operands.num_queries,), candidates)
    check_share("label_smoothing", label_smoothing)
    return _loss(operands, CrossEntropy(targets, float(label_smoothing)), divisor)


def _checked(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    score: str,
    divisor: float | None,
    precision: str,
) -> Operands:
    check_precision(precision)
    operands = checked_operands(queries, candidates, score, bias, precision=precision)
    if precision != "float32" and (score != "dot" or operands.queries.dtype != torch.float32):
        raise ValueError(
            f"precision: {precision} is for dot products of float32 queries; got score {score!r} "
            f"and {operands.queries.dtype}"
        )
    if divisor is not None:
        check_bounded("divisor", divisor)
        if divisor <= 0:
            raise ValueError(f"divisor must be positive; got {divisor}")
    return operands


def check_precision(precision: str) -> None:
    """Check the name of a precision of products."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")


def _loss(operands: Operands, loss: Bce | CrossEntropy, divisor: float | None) -> Tensor:
    tensors = operands.queries, operands.table, operands.bias
    backend, loss = common.chosen_backend(operands.queries), loss.contiguous()
    # a gradient in half precision would be rounded before it is scaled
    is_full = all(tensor is None or tensor.dtype in _FULL for tensor in tensors)
    is_eager = common.has_gradients(*tensors) and not torch.compiler.is_compiling()
    if is_eager and (divisor is None or (is_full and operands.num_queries)):
        call = operands, loss, None if divisor is None else float(divisor), backend
        return cast(Tensor, _Eager.apply(*tensors, *call))  # type: ignore[no-untyped-call]
    of_bce = loss if isinstance(loss, Bce) else None
    softmax = None if isinstance(loss, Bce) else loss
    rows = _rows(operands, of_bce, softmax, backend)[0]
    return rows if divisor is None else rows.sum() / divisor


class _Eager(Function):
    """Loss with a backward that consumes the forward's results; a second one recomputes them."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        operands: Operands,
        loss: Bce | CrossEntropy,
        divisor: float | None,
        backend: str,
    ) -> Tensor:
        labels = [value for value in vars(loss).values() if isinstance(value, Tensor)]
        ctx.save_for_backward(queries, candidates, bias, *labels)
        need = LossNeed(*ctx.needs_input_grad[:3])
        ctx.call = operands, loss, divisor, backend, need
        if divisor is None:
            rows = run.loss_value(operands, loss, backend=backend, keep=True)
            ctx.kept = rows._replace(rows=rows.linear)
            return rows.rows
        total = run.loss_total(*ctx.call)
        ctx.kept = total.gradients
        return total.total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        common.refuse_second()
        _ = ctx.saved_tensors  # raises if one was changed meanwhile
        operands, loss, divisor, backend, need = ctx.call
        kept, grad, ctx.kept = ctx.kept, grad.resolve_neg(), None
        with common.no_autocast(grad.device):
            losses = run.losses_of(operands, backend)
            if divisor is None:
                ctx.kept = kept._replace(scores=None)
                gradients = losses.gradients(operands, loss, grad, need, kept)
            else:
                gradients = kept or run.loss_total(*ctx.call).gradients
                losses.scale([each for each in gradients if each is not None], grad)
        return *_shaped(gradients, operands.bias), None, None, None, None


@operator("loss_over_all", waits=True)
def _rows(
    operands: Operands, bce: Bce | None, softmax: CrossEntropy | None, backend: str
) -> tuple[Tensor, Tensor]:
    """Return row losses and, for softmax, the logsumexp of each in float64 for the backward."""
    rows = run.loss_value(operands, _one_of(bce, softmax), backend=backend)
    if rows.logsumexp is None or bce is not None:
        return rows.rows, rows.linear.new_empty(0)
    return rows.rows, rows.logsumexp


@_rows.fake
def _(operands: Operands, bce: Bce | None) -> tuple[Tensor, Tensor]:
    rows = operands.queries.new_empty(operands.num_queries)
    return rows, rows.new_empty(0 if bce else len(rows), dtype=torch.float64)


@_rows.gradient("queries", "table", "bias")
def _rows_backward(
    grad: Tensor,
    logsumexp: Tensor,
    operands: Operands,
    bce: Bce | None,
    softmax: CrossEntropy | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    rows, losses = LossRows(grad, logsumexp, logsumexp), run.losses_of(operands, backend)
    call = operands, _one_of(bce, softmax), grad.resolve_neg(), LossNeed(*need), rows
    return _shaped(losses.gradients(*call), operands.bias)


def _one_of(bce: Bce | None, softmax: CrossEntropy | None) -> Bce | CrossEntropy:
    loss = bce or softmax
    assert loss is not None
    return loss.contiguous()


def _shaped(gradients: LossGradients, bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, candidates and bias, with the bias's shape and dtype."""
    if bias is None or gradients.bias is None:
        return gradients
    return gradients._replace(bias=common.bias_gradient(gradients.bias, bias))

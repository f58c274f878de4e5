"""Losses of sampled negatives, where a backend reduces them as scores arise.

Elsewhere they are formulas of scores (:mod:`kgfast.losses.formula`), which are the specification.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgfast.kernels.negatives import NegativeLoss, NegativeRows, Sampled
from kgfast.kernels.operands import Need, Operands
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import check_operands
from kgfast.ops.collected import Collect
from kgfast.ops.registry import operator
from kgfast.ops.scores import check_row_index

PoolRows = tuple[Tensor, Tensor]
ListRows = tuple[Tensor, Tensor, Tensor]


def fuses_negatives(queries: Tensor, bias: Tensor | None, negatives: Tensor) -> bool:
    """Whether :func:`pool_rows` or :func:`list_rows` takes these.

    They do float32 where the backend fuses such losses; negatives of each row without the gradient
    of a bias.
    """
    if queries.dtype == torch.float64 or not (len(queries) and negatives.numel()):
        return False
    if negatives.ndim == 2 and bias is not None and bias.requires_grad:
        return False
    return common.offers(queries.device, "negatives")


def pool_rows(operands: Operands, positive: Tensor, loss: NegativeLoss) -> PoolRows:
    """What a pool of negatives, the rows of the operands, adds to the loss of each query.

    Parameters
    ----------
    operands : Operands
        Differentiable in all; see :func:`fuses_negatives`.
    positive : Tensor
        ``[B]``: the scores of the positives.
    loss : NegativeLoss
        Its formula says what is added. The mask fits.

    Returns
    -------
    rows, masses : Tensor
        float32 ``[B]``; of ``margin`` and ``logistic`` masses are the negatives that take part.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.ops.pairwise_scores`.
    """
    queries, table, bias, factor = _checked(operands, "pool_rows")
    rows: tuple[Tensor, ...] = torch.ops.kgfast.negative_rows(
        *(queries, table, bias, factor, positive if loss.formula == "margin" else None, None, None),
        *(operands.score.name, *_flat(loss), _keeps(queries, table, bias, factor, positive)),
        common.chosen_backend(queries),
        False,
    )
    return rows[0], rows[2]


def list_rows(
    operands: Operands,
    targets: Tensor,
    negatives: Tensor,
    loss: NegativeLoss,
    *,
    sparse: bool = False,
    collect: Collect | None = None,
) -> ListRows:
    """What negatives of each query add to its loss, and the score of its positive.

    Parameters
    ----------
    operands : Operands
        The table that ids are rows of; differentiable in all but the bias.
    targets, negatives : Tensor
        int64 ``[B]`` and ``[B, K]``.
    loss : NegativeLoss
    sparse : bool
        As of :func:`kgfast.ops.indexed_scores`.
    collect : callable, optional
        Takes the table's gradient instead, as of :func:`kgfast.ops.collected.collected_scores`.

    Returns
    -------
    positive, rows, masses : Tensor
        float32 ``[B]``.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.ops.indexed_scores`.
    RuntimeError
        For ``sparse=True`` under ``torch.compile``.
    """
    queries, table, bias, factor = _checked(operands, "list_rows", "table")
    check_row_index(negatives, queries, table)
    if sparse and torch.compiler.is_compiling():
        raise RuntimeError("sparse=True is eager only; use sparse=False under torch.compile")
    if collect is not None:
        operands = replace(operands, queries=queries)
        collected: ListRows = _Collected.apply(  # type: ignore[no-untyped-call]
            queries, operands, (targets, negatives), loss, collect
        )
        return collected
    rows: tuple[Tensor, ...] = torch.ops.kgfast.negative_rows(
        *(queries, table, bias, factor, None, targets, negatives),
        *(operands.score.name, *_flat(loss)),
        _keeps(queries, table, factor),
        common.chosen_backend(queries),
        sparse,
    )
    return rows[1], rows[0], rows[2]


def _checked(operands: Operands, name: str, table_name: str = "candidates") -> tuple[Any, ...]:
    """Queries, in float32, table, bias and factor."""
    queries, candidates = common.full_precision(operands.queries), operands.candidates
    tensors = queries, candidates.table, candidates.bias, candidates.factor
    common.refuse_forward_mode(name, *tensors)
    score = operands.score.name
    check_operands(queries, tensors[1], score, *tensors[2:], None, table_name=table_name)
    return tensors


def _flat(loss: NegativeLoss) -> tuple[str, float, Tensor | None]:
    return loss.formula, float(loss.parameter), loss.mask


def _keeps(*tensors: Tensor | None) -> bool:
    """Whether a backward may follow."""
    return torch.is_grad_enabled() and any(it is not None and it.requires_grad for it in tensors)


@operator("negative_rows", waits=True)
def _negative_rows(
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
    keeps: bool,
    backend: str,
    sparse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As :class:`~kgfast.kernels.negatives.NegativeRows`, but no positives of a pool."""
    operands = run.operands_of(queries, table, score, bias, factor)
    loss, sampled = _loss(formula, parameter, mask), Sampled(positive, targets, negatives)
    made = run.negative_rows(operands, sampled, loss, keeps=keeps, backend=backend)
    if negatives is None:
        made = made._replace(positive=made.rows.new_empty(0))
    return made.rows, made.positive, made.masses, made.peaks, made.raw, made.ids


@_negative_rows.fake
def _(args: SimpleNamespace) -> tuple[Tensor, ...]:
    count, is_listed = len(args.queries), args.negatives is not None
    width = 1 + args.negatives.shape[1] if is_listed else len(args.table)
    new = args.queries.new_empty
    index = new(count, width) if is_listed else new(0)
    return (
        *(new(count), new(count if is_listed else 0), new(count), new(count)),
        new(count if args.keeps else 0, width),
        torch.empty(index.shape, dtype=torch.int64, device=index.device),
    )


@operator("negative_backward", waits=True)
def _negative_backward(
    grad_rows: Tensor,
    grad_positive: Tensor,
    positive: Tensor,
    masses: Tensor,
    peaks: Tensor,
    raw: Tensor,
    index: Tensor,
    queries: Tensor,
    table: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    mask: Tensor | None,
    score: str,
    formula: str,
    parameter: float,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, table, bias and factor; of what is not needed, nothing."""
    operands = run.operands_of(queries, table, score, bias, factor)
    made = NegativeRows(grad_rows, positive, masses, peaks, raw, index)
    gradients, of_bias = run.negative_gradients(
        operands,
        _loss(formula, parameter, mask),
        made,
        (grad_rows, grad_positive),
        Need(need[0], need[1], need[3]),
        bias=need[2],
        backend=backend,
    )
    if bias is not None and of_bias is not None:
        of_bias = common.bias_gradient(of_bias, bias)
    found = gradients.queries, gradients.table, of_bias, gradients.factor
    whole = [queries.new_empty(0) if part is None else part for part in found]
    return whole[0], whole[1], whole[2], whole[3]


@_negative_backward.fake
def _(args: SimpleNamespace) -> tuple[Tensor, ...]:
    tensors = args.queries, args.table, args.bias, args.factor
    return tuple(common.zero_gradients(tensors, args.need))


@operator("negative_backward_rows", waits=True)
def _negative_backward_rows(
    grad_rows: Tensor,
    grad_positive: Tensor,
    positive: Tensor,
    masses: Tensor,
    peaks: Tensor,
    raw: Tensor,
    index: Tensor,
    queries: Tensor,
    table: Tensor,
    bias: Tensor | None,
    factor: Tensor | None,
    mask: Tensor | None,
    score: str,
    formula: str,
    parameter: float,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of lists: those of queries, ids and rows of the table, and the whole of the factor."""
    operands = run.operands_of(queries, table, score, bias, factor)
    made = NegativeRows(grad_rows, positive, masses, peaks, raw, index)
    of_kernel = Need(need[0], need[1], need[3])
    gradients, _ = run.negative_gradients(
        operands,
        _loss(formula, parameter, mask),
        made,
        (grad_rows, grad_positive),
        of_kernel,
        rows_only=True,
        backend=backend,
    )
    whole = gradients.spread(operands, Need(False, False, need[3]))
    found = gradients.queries, gradients.ids, gradients.table, whole.factor
    rows = [queries.new_empty(0) if part is None else part for part in found]
    return rows[0], rows[1], rows[2], rows[3]


@_negative_backward_rows.fake
def _(args: SimpleNamespace) -> tuple[Tensor, ...]:
    grad_queries, _, grad_factor = common.zero_gradients(
        (args.queries, None, args.factor), [args.need[0], False, args.need[3]]
    )
    count = torch.library.get_ctx().new_dynamic_size()
    rows = args.table.new_empty(count, args.table.shape[1])
    return grad_queries, args.index.new_empty(count), rows, grad_factor


def _loss(formula: str, parameter: float, mask: Tensor | None) -> NegativeLoss:
    return NegativeLoss(formula, parameter, mask)  # type: ignore[arg-type]


def _save(ctx: Any, args: SimpleNamespace, output: tuple[Tensor, ...]) -> None:
    _, positive, masses, peaks, raw, index = output
    ctx.set_materialize_grads(False)  # zeros for what has no gradient would be as large as scores
    ctx.is_listed = args.negatives is not None
    ctx.mark_non_differentiable(masses, peaks, raw, index)
    if not ctx.is_listed:
        ctx.mark_non_differentiable(positive)
        positive = positive if args.positive is None else args.positive
    made = positive, masses, peaks, raw, index
    ctx.save_for_backward(*made, args.queries, args.table, args.bias, args.factor, args.mask)
    ctx.facts = args.score, args.formula, args.parameter, args.backend
    ctx.sparse = args.sparse


def _differentiate(ctx: Any, need: list[bool], *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    grad_rows, grad_positive = _of_outputs(grads[0], grads[1], ctx.saved_tensors[1])
    arguments = grad_rows, grad_positive, *ctx.saved_tensors, *ctx.facts, need[:4]
    of_positive = None
    if need[4]:  # of a margin's pool: minus the number of negatives over it
        of_positive = -grad_rows * ctx.saved_tensors[2]
    if not ctx.sparse:
        return *torch.ops.kgfast.negative_backward(*arguments), of_positive
    queries, ids, rows, factor = torch.ops.kgfast.negative_backward_rows(*arguments)
    shape = ctx.saved_tensors[6].shape
    of_table = torch.sparse_coo_tensor(
        ids[None], rows, shape, device=rows.device, check_invariants=False, is_coalesced=True
    )
    return queries, of_table, None, factor, of_positive


def _of_outputs(
    grad_rows: Tensor | None, grad_positive: Tensor | None, like: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of rows and positives ``[B]``; zeros of what was not used."""
    rows = torch.zeros_like(like) if grad_rows is None else grad_rows
    return rows, torch.zeros_like(like) if grad_positive is None else grad_positive


_negative_rows.differentiate(
    _differentiate, _save, wrt=("queries", "table", "bias", "factor", "positive")
)
_negative_backward.refuse_second_derivative("losses of negatives")
_negative_backward_rows.refuse_second_derivative("losses of negatives")


class _Collected(Function):
    """The same of lists, whose backward hands on the table's rows."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        operands: Operands,
        ids: tuple[Tensor, Tensor],
        loss: NegativeLoss,
        collect: Callable[[Tensor, Tensor], None],
    ) -> ListRows:
        ctx.backend = common.chosen_backend(queries)
        sampled = Sampled(None, *ids)
        made = run.negative_rows(operands, sampled, loss, keeps=True, backend=ctx.backend)
        ctx.mark_non_differentiable(made.masses)
        ctx.save_for_backward(
            queries, operands.table, operands.bias, made.positive, *made[2:], loss.mask
        )
        ctx.loss, ctx.score, ctx.collect = loss._replace(mask=None), operands.score.name, collect
        return made.positive, made.rows, made.masses

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_positive: Tensor, grad_rows: Tensor, *unused: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        queries, table, bias, *kept, mask = ctx.saved_tensors
        gradients, _ = run.negative_gradients(
            run.operands_of(queries, table, ctx.score, bias),
            ctx.loss._replace(mask=mask),
            NegativeRows(grad_rows, *kept),
            (grad_rows, grad_positive),
            Need(ctx.needs_input_grad[0], True),
            rows_only=True,
            backend=ctx.backend,
        )
        assert gradients.ids is not None
        assert gradients.table is not None
        ctx.collect(gradients.ids, gradients.table)
        return gradients.queries, None, None, None, None

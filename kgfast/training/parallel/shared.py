"""What several processes compute together in a step: scores, and losses over all entities.

Every process has the queries of the whole batch, and gets the scores of the whole batch: those of
its span of the rows it computes, those of the others it receives. In the backward each query's
gradient, and each candidate's, is summed by one process, over all that the batch has for it. So no
sum of scores depends on the number of processes. A loss over all entities is a sum over the batch
in one pass; of that each process adds its span's.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgfast.kernels.operands import Need, Operands
from kgfast.models.base import Candidates, Side
from kgfast.ops import run
from kgfast.ops.checks import check_operands, safe_rows
from kgfast.ops.collected import Collect
from kgfast.ops.differentiable import chosen_backend, full_precision
from kgfast.ops.scores import bias_gradient_of, check_row_index
from kgfast.training.parallel.crew import Crew

_TERMS = 1024  # of a sum of products that is not cut
_STRIPE = 256  # candidates of a sum of distances that is not cut
_PARTS = 1 << 22  # numbers that fit beside each other where sums are cut
_ROOTS = 1 << 19  # scores at once, where the root of a distance is taken


def shared_scores(
    crew: Crew,
    queries: Tensor,
    candidates: Candidates,
    index: Tensor | None,
    score: str,
    dims: list[int] | None,
    collect: tuple[slice, Collect] | None = None,
) -> Tensor:
    """Scores as of :func:`kgfast.ops.pairwise_scores`, or with an index of ``indexed_scores``.

    Parameters
    ----------
    crew : Crew
        All of whom call this with the same queries, index and rows.
    queries, candidates, index, score, dims
        As of those operators.
    collect : tuple, optional
        With an index: the ids whose rows' gradients this process sums, and what takes them, as of
        :func:`kgfast.ops.collected.collected_scores`. Otherwise all processes get all gradients.
    """
    queries, table = full_precision(queries), candidates.table
    what = "candidates" if index is None else "table"
    check_operands(queries, table, score, candidates.bias, candidates.factor, dims, table_name=what)
    if index is not None:
        check_row_index(index, queries, table)
        index = safe_rows(index, len(table)).contiguous()
    table = table if collect is None else table.detach()
    tensors = queries, table, candidates.bias, candidates.factor
    scores: Tensor = _SharedScores.apply(*tensors, index, crew, score, dims, collect)  # type: ignore[no-untyped-call]
    return scores


class _SharedScores(Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        factor: Tensor | None,
        index: Tensor | None,
        crew: Crew,
        score: str,
        dims: list[int] | None,
        collect: tuple[slice, Collect] | None,
    ) -> Tensor:
        ctx.save_for_backward(queries, table, bias, factor, index)
        ctx.crew, ctx.score, ctx.dims, ctx.collect = crew, score, dims, collect
        ctx.backend = chosen_backend(queries)
        rows = crew.span(len(queries))
        operands = run.operands_of(queries, table, score, bias, factor, dims).of_queries(rows)
        own = None if index is None else index[rows]
        name = "candidates" if index is None else "table"
        found = run.scores(operands, own, backend=ctx.backend, table_name=name)
        joined = crew.join(found.movedim(-2, 0), len(queries))
        return joined.movedim(0, -2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, table, bias, factor, index = ctx.saved_tensors
        operands = run.operands_of(queries, table, ctx.score, None, factor, ctx.dims)
        needs = ctx.needs_input_grad
        of_queries = _of_queries(ctx, operands, grad, index) if needs[0] else None
        of_table = of_factor = None
        if ctx.collect is not None:
            span, collect = ctx.collect
            options = {"need": Need(False, True), "rows_only": True, "within": span}
            own = run.backward(operands, grad, index, **options, backend=ctx.backend)
            collect(own.ids, own.table)
        elif needs[1] or needs[3]:
            of_table, of_factor = _of_rows(ctx, operands, grad, index)
        of_bias = bias_gradient_of(grad, index, bias) if needs[2] else None
        return of_queries, of_table, of_bias, of_factor, *[None] * 5


def _of_queries(ctx: Any, operands: Operands, grad: Tensor, index: Tensor | None) -> Tensor | None:
    """The gradients of all queries, of which this process sums its span."""
    need, count = Need(True, False), operands.num_queries
    if index is None and not are_summed_alone(operands, grad, of_queries=True):
        return run.backward(operands, grad, need=need, backend=ctx.backend).queries
    rows = ctx.crew.span(count)
    own = None if index is None else index[rows]
    part = operands.of_queries(rows), grad[..., rows, :], own
    joined: Tensor = ctx.crew.join(
        run.backward(*part, need=need, backend=ctx.backend).queries, count
    )
    return joined


def _of_rows(
    ctx: Any, operands: Operands, grad: Tensor, index: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of table and factor, of whose rows this process sums a span."""
    crew, table = ctx.crew, operands.table
    need = Need(False, ctx.needs_input_grad[1], ctx.needs_input_grad[3])
    span = crew.span(len(table))
    if index is not None:
        options = {"need": need, "rows_only": True, "within": span}
        own = run.backward(operands, grad, index, **options, backend=ctx.backend)
        whole = own.spread(operands, need)
        found = [None if it is None else it[span] for it in (whole.table, whole.factor)]
    elif are_summed_alone(operands, grad, of_queries=False):
        part = operands.of_rows(span), grad[..., span]
        found = list(run.backward(*part, need=need, backend=ctx.backend)[1:3])
    else:
        return run.backward(operands, grad, need=need, backend=ctx.backend)[1:3]
    joined = [None if it is None else crew.join(it, len(table)) for it in found]
    return joined[0], joined[1]


def are_summed_alone(operands: Operands, grad: Tensor, *, of_queries: bool) -> bool:
    """Return whether gradients of some queries, or candidates, of a pool have the bits of all.

    The kernels of the CPU cut long sums by the shape of the whole problem (host/backward.cpp and
    host/product.cpp), so that a part of it may be cut elsewhere.
    """
    score, pool = operands.score, grad.shape[-1]
    if score.is_rscf:  # queries and candidates are turned in groups
        return False
    if not score.monotone:
        return (pool if of_queries else grad.shape[-2]) <= _TERMS
    stripes = -(-pool // _STRIPE)
    numbers = operands.num_queries * (operands.queries.shape[1] + 64)
    fits = stripes == 1 or stripes * numbers <= _PARTS
    return not of_queries or (fits and not (score.root and grad.numel() > _ROOTS))


def shared_mean(
    crew: Crew,
    model: Any,
    queries: Tensor,
    candidates: Candidates,
    mean: Callable[[Any, slice], Tensor],
) -> Tensor:
    """The mean of a loss over all entities, whose rows processes share out.

    Parameters
    ----------
    crew : Crew
    model : Model
        Of which the queries and candidates are.
    queries : Tensor
        ``[B, F]``, of the whole batch.
    candidates : Candidates
    mean : callable
        Takes a model and the span of the rows, and returns their mean.
    """

    def of_span(queries: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
        own = replace(candidates, table=table, bias=bias)
        rows = crew.span(count)
        return mean(_Given(model, queries, own), rows) * (len(queries) / count)

    count = len(queries)
    tensors = queries, candidates.table, candidates.bias
    loss: Tensor = _Mean.apply(*tensors, crew, of_span)  # type: ignore[no-untyped-call]
    return loss


class _Given:
    """A model with the queries and candidates that it is given."""

    def __init__(self, model: Any, queries: Tensor, candidates: Candidates) -> None:
        self.score, self.gamma = model.score, model.gamma
        self.num_entities, self.num_relations = model.num_entities, model.num_relations
        self._queries, self._candidates = queries, candidates

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        return self._queries

    def candidates(self, side: Side) -> Candidates:
        return self._candidates


class _Mean(Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        crew: Crew,
        of_span: Callable[..., Tensor],
    ) -> Tensor:
        span, needs = crew.span(len(queries)), ctx.needs_input_grad
        ctx.crew, ctx.count, ctx.loss = crew, len(queries), None
        ctx.leaves = [
            None if it is None else it.detach().requires_grad_(need)
            for it, need in zip((queries[span], table, bias), needs, strict=False)
        ]
        own = torch.zeros(1, dtype=torch.float64, device="cpu")
        if len(range(span.start, span.stop)):
            with torch.enable_grad():
                ctx.loss = of_span(*ctx.leaves)
            own = ctx.loss.detach().double().reshape(1).cpu()
        return crew.gather(own).sum().to(queries.device, torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [it for it in ctx.leaves if it is not None and it.requires_grad]
        if ctx.loss is None:
            found = [torch.zeros_like(it) for it in leaves]
        else:
            found = list(torch.autograd.grad(ctx.loss, leaves, grad))
        made = {id(leaf): it for leaf, it in zip(leaves, found, strict=True)}
        of_queries, *others = [made.get(id(leaf)) for leaf in ctx.leaves]
        if of_queries is not None:
            of_queries = ctx.crew.join(of_queries, ctx.count)
        return of_queries, *[None if it is None else ctx.crew.sum(it) for it in others], None, None

"""Scores of pairs, and their gradients, of an engine against float64."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from support.engines import Engine, assert_same
from support.sampled import Sampled, assert_close, dense


class Result(NamedTuple):
    """Scores, and gradients of the queries, of the whole table and of the factor."""

    scores: Tensor
    queries: Tensor | None
    table: Tensor | None
    factor: Tensor | None


def run(
    engine: Engine,
    problem: Sampled,
    grad: Tensor,
    index: Tensor | None,
    need: Sequence[bool] = (True, True, True),
) -> Result:
    """Return the gradients of an engine; rows of gradients are put where they belong."""
    given = problem.queries, problem.table, *(() if index is None else (index,)), problem.score
    if index is None:
        scores = engine.pairwise_scores(*given, problem.bias, problem.factor, problem.dims)
        made = engine.pairwise_backward(grad, *given, problem.factor, problem.dims, need)
        return Result(scores, *made)
    if not engine.is_triton:  # Triton reads any strides; for others the operator lays ids out
        given = (*given[:2], index.contiguous(), problem.score)
    scores = engine.indexed_scores(*given, problem.bias, problem.factor, problem.dims)
    of_queries, rows, of_factor = engine.indexed_backward(
        grad, *given, problem.factor, problem.dims, need
    )
    ids, of_table = rows or (index.unique(), None)
    assert torch.equal(ids, index.unique())
    whole = [
        None if it is None else it.new_zeros(len(problem.table), it.shape[1]).index_copy(0, ids, it)
        for it in (of_table, of_factor)
    ]
    return Result(scores, of_queries, *whole)


def oracle(problem: Sampled, grad: Tensor, index: Tensor | None, dtype: torch.dtype) -> Result:
    """Return the gradients by torch, in float64 or float32."""
    leaves = [
        None if it is None else it.detach().to(dtype, copy=True).requires_grad_()
        for it in (problem.queries, problem.table, problem.factor)
    ]
    queries, table, factor = leaves
    bias = None if problem.bias is None else problem.bias.to(dtype).expand(len(table))
    if index is not None:
        table, factor, bias = (None if it is None else it[index] for it in (table, factor, bias))
    scores = dense(problem, queries[:, None], table, bias, factor)
    found = torch.autograd.grad(scores, [it for it in leaves if it is not None], grad.to(dtype))
    return Result(scores.detach(), *found, *([None] * (3 - len(found))))


def check(engine: Engine, problem: Sampled, index: Tensor | None = None) -> Result:
    """Values and gradients against float64; two runs of compiled kernels are bit-equal."""
    shape = (len(problem.queries), len(problem.table) if index is None else index.shape[1])
    shape = shape if problem.dims is None else (len(problem.dims), *shape)
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    found, exact = run(engine, problem, grad, index), oracle(problem, grad, index, torch.float64)
    float32 = oracle(problem, grad, index, torch.float32)
    assert found.scores.dtype == torch.float32
    # a moved query is turned and scaled in float32 by torch, too: its error is that of the product
    assert_close(found.scores, exact.scores, float32.scores)
    # A near candidate has more of that error in the direction of the small difference.
    rel = 1e-5 if problem.factor is None else 5e-5
    likes = problem.queries, problem.table, problem.factor
    for got, right, like in zip(found[1:], exact[1:], likes, strict=True):
        assert (got is None) == (right is None)
        if got is not None:
            assert got.dtype == like.dtype
            assert_close(got, right, rel=rel)
    if engine.name == "reference":  # test_bits_do_not_depend_on_threads runs it four times
        return found
    again = run(engine, problem, grad, index)
    assert_same(*([it for it in run if it is not None] for run in (again, found)), problem)
    return found

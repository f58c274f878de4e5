"""Scores whose table has no gradient: its rows are handed on, bit-equal to a sparse gradient's."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels.scores import get_score
from kgfast.ops.collected import collected_scores
from kgfast.ops.run import operands_of
from support.problems import SCORES

ROWS, DIM = 23, 17


def tensors_of(score):
    """Queries, table and bias that require gradients, and an index with duplicates."""
    generator = torch.Generator().manual_seed(1)
    width = DIM * get_score(score).planes
    shapes = (5, width), (ROWS, width), (ROWS,)
    made = [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]
    return *made, torch.randint(ROWS, (5, 7), generator=generator)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dims", [None, [3, 17, 8]], ids=["full", "crops"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.usefixtures("backend")
def test_rows_are_those_of_a_sparse_gradient(score, dims, biased):
    queries, table, bias, index = tensors_of(score)
    bias = bias if biased else None
    expected = ops.indexed_scores(queries, table, index, score, bias=bias, dims=dims, sparse=True)
    parts = []
    scores = collected_scores(
        operands_of(queries, table, score, bias, dims=dims), index, lambda *part: parts.append(part)
    )
    assert torch.equal(scores, expected)
    grad = torch.linspace(-1, 1, scores.numel()).view(scores.shape)
    leaves = [queries, bias] if biased else [queries]
    gradients = torch.autograd.grad(scores, leaves, grad)
    of_table, *others = torch.autograd.grad(expected, [table, *leaves], grad)
    assert all(torch.equal(*pair) for pair in zip(gradients, others, strict=True))
    ((ids, rows),) = parts
    assert torch.equal(ids, of_table.indices()[0])
    assert torch.equal(rows, of_table.values())


@pytest.mark.usefixtures("backend")
def test_the_table_gets_no_gradient():
    queries, table, bias, index = tensors_of("l1")
    parts = []
    scores = collected_scores(
        operands_of(queries, table, "l1", bias), index, lambda *part: parts.append(part)
    )
    scores.sum().backward()
    assert table.grad is None
    assert queries.grad is not None
    assert len(parts) == 1


@pytest.mark.usefixtures("backend")
def test_no_pairs_have_no_rows():
    queries, table, _, index = tensors_of("dot")
    parts = []
    operands = operands_of(queries, table, "dot")
    collected_scores(operands, index[:, :0], lambda *part: parts.append(part)).sum().backward()
    assert [[len(it) for it in part] for part in parts] == [[0, 0]]
    assert not bool(queries.grad.any())


def test_bad_rows_are_named():
    queries, table, _, index = tensors_of("dot")
    operands = operands_of(queries, table, "dot")
    with pytest.raises(ValueError, match=r"index\[0, 0\] must be in 0 .. 22; got"):
        collected_scores(operands, index + ROWS, print)
    with pytest.raises(TypeError, match="index must be int64"):
        collected_scores(operands, index.int(), print)
    poisoned = operands_of(queries, torch.full_like(table, torch.nan), "dot")
    with pytest.raises(ValueError, match="table: row"):
        collected_scores(poisoned, index, print)

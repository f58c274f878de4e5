"""The specification of scores with gradients and of streamed losses, against dense torch."""

import pytest
import torch

from kgfast.kernels import losses
from kgfast.kernels.labels import Bce, CrossEntropy, LossNeed
from kgfast.kernels.operands import Gradients, Operands, Prepared
from kgfast.kernels.passes import TORCH_PASSES
from kgfast.kernels.scores import get_score
from support import oracles
from support.flat import reference
from support.problems import SCORES

B, N, K = 4, 9, 3


def tensors(score: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Return Queries, a table and a bias; the first query equals the third row."""
    generator = torch.Generator().manual_seed(2)
    width = 5 * get_score(score).planes
    queries = torch.randn(B, width, generator=generator, dtype=torch.float64)
    table = torch.randn(N, width, generator=generator, dtype=torch.float64)
    bias = torch.randn(N, generator=generator, dtype=torch.float64)
    table[2] = queries[0]
    return queries.to(dtype), table.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_canonical_and_rounded_once(score):
    queries, table, bias = tensors(score, torch.float32)
    scores = reference.pairwise_scores(queries, table, score, bias, dims=[2, 5])
    assert scores.dtype == torch.float32
    for crop, dim in enumerate([2, 5]):
        exact = oracles.canonical_scores(queries, table, score, bias, dim=dim)
        assert torch.equal(scores[crop], torch.from_numpy(exact).float())


class Table:
    """A backend whose scores stand in a table; what the loop carries back is written to another.

    The only feature of a candidate is its number.
    """

    name, defers_checks, passes = "table", False, TORCH_PASSES

    def __init__(self, scores: torch.Tensor) -> None:
        self.table, self.gradient = scores, torch.full_like(scores, torch.nan)

    def operands(self) -> Operands:
        rows, count = self.table.shape
        queries, candidates = torch.arange(rows), torch.arange(count)
        prepared = Prepared(candidates[:, None].float(), get_score("dot"))
        return Operands(queries[:, None].float(), prepared)

    def scores(self, operands, index=None, *, out=None):
        return out.copy_(self.table[places(operands)])

    def backward(self, operands, grad, index=None, **options):
        self.gradient[places(operands)] = grad
        return Gradients()


def places(operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    return operands.queries[:, :1].long(), operands.table[:, 0].long()


@pytest.mark.parametrize(
    ("scale", "shift", "scratch", "num_queries"),
    [
        *((*of, 5, 3) for of in ((1.0, 0.0), (30.0, 0.0), (1e4, 0.0), (1.0, 3e4), (1.0, -3e4))),
        *((30.0, 0.0, scratch, 3) for scratch in (1, 7 * 64, 10**6)),
        *((1.0, 3e4, scratch, None) for scratch in (1, 5, 7 * 64, 10**6)),
    ],
)
def test_the_shared_loop_is_accurate(scale, shift, scratch, num_queries):
    generator = torch.Generator().manual_seed(0)
    scores = shift + scale * torch.randn(7, 150, generator=generator)
    targets = torch.randint(150, (7,), generator=generator)
    leaf = scores.double().requires_grad_()
    grad = torch.randn(7, generator=generator)
    backend, plan = Table(scores), losses.LossPlan(scratch, torch.float32, num_queries)
    operands, need = backend.operands(), LossNeed(False, True, True)
    chunked = losses.Losses(backend, plan)

    exact = oracles.softmax_cross_entropy(leaf, targets, 0.1)
    dense = oracles.softmax_cross_entropy(scores, targets, 0.1)
    loss = CrossEntropy(targets, 0.1)
    made = chunked.value(operands, loss)
    oracles.assert_accurate(made.rows, exact.detach(), dense)
    chunked.gradients(operands, loss, grad, need, made)
    (expected,) = torch.autograd.grad(exact, leaf, grad.double())
    oracles.assert_accurate(backend.gradient, expected)

    labels = Bce(torch.arange(8), targets, 0.9, 0.01)
    exact = oracles.binary_cross_entropy(leaf, [[int(it)] for it in targets], 0.9, 0.01)
    rows = chunked.value(operands, labels).rows
    oracles.assert_accurate(rows, exact.detach())
    (expected,) = torch.autograd.grad(exact, leaf, grad.double())
    gradients = chunked.gradients(operands, labels, grad, need)
    oracles.assert_accurate(backend.gradient, expected)
    oracles.assert_accurate(gradients.bias, expected.sum(0))

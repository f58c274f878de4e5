"""The specification of scores with gradients and of streamed losses, against dense torch."""

import pytest
import torch

from kgfast.kernels import streamed_losses
from kgfast.kernels.reference import indexed, losses, pairwise
from support import oracles
from support.problems import SCORES

B, N, K = 4, 9, 3


def operands(score: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """Queries, a table and a bias; the first query equals the third row."""
    generator = torch.Generator().manual_seed(2)
    width = 10 if score.startswith("rotate") else 5
    queries = torch.randn(B, width, generator=generator, dtype=torch.float64)
    table = torch.randn(N, width, generator=generator, dtype=torch.float64)
    bias = torch.randn(N, generator=generator, dtype=torch.float64)
    table[2] = queries[0]
    return queries.to(dtype), table.to(dtype), bias.to(dtype)


@pytest.fixture(params=[None, 11], ids=["whole", "tiny tiles"])
def tile(request, monkeypatch):
    """Also with tiles so small that every operand is split."""
    if request.param is not None:
        monkeypatch.setattr(pairwise, "_TILE", request.param)
        monkeypatch.setattr(indexed, "_TILE", 20)
        monkeypatch.setattr(losses._Sweep, "scratch_scores", request.param)


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_canonical_and_rounded_once(score):
    queries, table, bias = operands(score, torch.float32)
    scores = pairwise.pairwise_scores(queries, table, score, bias, dims=[5, 2])
    assert scores.dtype == torch.float32
    for crop, dim in enumerate([5, 2]):
        for b in range(B):
            for n in range(N):
                q, c = queries[b].double().tolist(), table[n].double().tolist()
                exact = oracles.canonical(q, c, score, bias[n].double().item(), dim)
                assert scores[crop, b, n].item() == torch.tensor(exact).float().item()


@pytest.mark.parametrize("dims", [None, [3, 1, 5, 3]], ids=["full", "crops"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.usefixtures("tile")
def test_pairwise(score, dims):
    queries, table, bias = (it.requires_grad_() for it in operands(score))
    exact = torch.stack(
        [
            oracles.dense_scores(queries[:, None], table, score, bias=bias, dim=dim)
            for dim in dims or [None]
        ]
    )
    exact = exact[0] if dims is None else exact
    grad = torch.randn_like(exact)
    expected = torch.autograd.grad(exact, (queries, table), grad)
    operand = queries.detach(), table.detach()
    scores = pairwise.pairwise_scores(*operand, score, bias.detach(), dims=dims)
    torch.testing.assert_close(scores, exact)
    gradients = pairwise.pairwise_backward(grad, *operand, score, dims=dims)[:2]
    torch.testing.assert_close(gradients, expected)
    only = pairwise.pairwise_backward(grad, *operand, score, dims=dims, need=(False, True, False))[
        :2
    ]
    assert only[0] is None
    assert torch.equal(only[1], gradients[1])


@pytest.mark.parametrize("dims", [None, [3, 1, 5, 3]], ids=["full", "crops"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.usefixtures("tile")
def test_indexed(score, dims):
    queries, table, bias = (it.requires_grad_() for it in operands(score))
    index = torch.tensor([[2, 2, 8], [7, 0, 0], [2, 7, 7], [0, 8, 2]])
    exact = torch.stack(
        [
            oracles.dense_scores(queries[:, None], table[index], score, bias=bias[index], dim=dim)
            for dim in dims or [None]
        ]
    )
    exact = exact[0] if dims is None else exact
    grad = torch.randn_like(exact)
    expected = torch.autograd.grad(exact, (queries, table), grad)
    operand = queries.detach(), table.detach(), index
    scores = indexed.indexed_scores(*operand, score, bias.detach(), dims=dims)
    torch.testing.assert_close(scores, exact)
    grad_queries, (ids, rows), _ = indexed.indexed_backward(grad, *operand, score, dims=dims)
    assert ids.tolist() == [0, 2, 7, 8]
    torch.testing.assert_close(grad_queries, expected[0])
    torch.testing.assert_close(torch.zeros_like(table).index_copy(0, ids, rows), expected[1])


@pytest.mark.parametrize("score", ["l1", "l2", "rotate", "rotate_interleaved"])
def test_the_gradient_where_query_and_candidate_are_equal_is_zero(score):
    queries, table, _ = operands(score)
    grad = torch.ones(1, 1, dtype=torch.float64)
    for gradient in pairwise.pairwise_backward(grad, queries[:1], table[2:3], score)[:2]:
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.usefixtures("tile")
def test_bce(score):
    leaves = tuple(it.requires_grad_() for it in operands(score))
    operand = tuple(it.detach() for it in leaves)
    # In no order, 5 and 2 twice, ids in the first and the last chunk.
    positives = [[8, 1], [0], [5, 2, 5, 7], [2, 2]]
    csr = torch.tensor([0, 2, 3, 7, 9]), torch.tensor([8, 1, 0, 5, 2, 5, 7, 2, 2])
    exact = oracles.binary_cross_entropy(
        oracles.dense_scores(leaves[0][:, None], leaves[1], score, bias=leaves[2]),
        positives,
        0.9,
        0.01,
    )
    rows, linear = losses.bce(*operand, *csr, 0.9, 0.01, score)
    torch.testing.assert_close(rows, exact)
    scores = oracles.dense_scores(operand[0][:, None], operand[1], score, bias=operand[2])
    torch.testing.assert_close(linear, scores.sum(1))
    grad = torch.randn(B, dtype=torch.float64)
    gradients = losses.bce_backward(grad, *operand, *csr, 0.9, 0.01, score)
    torch.testing.assert_close(gradients, torch.autograd.grad(exact, leaves, grad))
    none = losses.bce_backward(grad, *operand, *csr, 0.9, 0.01, score, need=(False,) * 3)
    assert none == (None, None, None)


@pytest.mark.parametrize("eps", [0.0, 0.2])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.usefixtures("tile")
def test_cross_entropy(score, eps):
    leaves = tuple(it.requires_grad_() for it in operands(score))
    operand = tuple(it.detach() for it in leaves)
    targets = torch.tensor([8, 0, 3, 3])
    scores = oracles.dense_scores(leaves[0][:, None], leaves[1], score, bias=leaves[2])
    exact = oracles.softmax_cross_entropy(scores, targets, eps)
    rows, logsumexp, linear = losses.cross_entropy(*operand, targets, eps, score)
    torch.testing.assert_close(linear, scores.detach().sum(1))
    torch.testing.assert_close(rows, exact)
    torch.testing.assert_close(logsumexp, scores.logsumexp(-1))
    grad = torch.randn(B, dtype=torch.float64)
    gradients = losses.cross_entropy_backward(grad, logsumexp, *operand, targets, eps, score)
    torch.testing.assert_close(gradients, torch.autograd.grad(exact, leaves, grad))


class Table:
    """Scores that stand in a table; what the loop pulls is written to another."""

    def __init__(self, scores: torch.Tensor, scratch_scores: int) -> None:
        self.table, self.pulled = scores, torch.full_like(scores, torch.nan)
        self.num_queries, self.num_candidates = scores.shape
        self.scratch_scores = scratch_scores

    def scores(self, start: int, stop: int) -> torch.Tensor:
        return self.table[:, start:stop].clone()

    def pull(self, grad: torch.Tensor, start: int, stop: int) -> None:
        self.pulled[:, start:stop] = grad


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, 0.0), (30.0, 0.0), (1e4, 0.0), (1.0, 3e4), (1.0, -3e4)]
)
@pytest.mark.parametrize("scratch", [1, 5, 7 * 64, 10**6])
def test_the_shared_loop_is_accurate(scale, shift, scratch):
    generator = torch.Generator().manual_seed(0)
    scores = shift + scale * torch.randn(7, 150, generator=generator)
    targets = torch.randint(150, (7,), generator=generator)
    leaf = scores.double().requires_grad_()
    grad = torch.randn(7, generator=generator)
    sweep = Table(scores, scratch)

    exact = oracles.softmax_cross_entropy(leaf, targets, 0.1)
    dense = oracles.softmax_cross_entropy(scores, targets, 0.1)
    rows, logsumexp, _ = streamed_losses.cross_entropy_rows(sweep, targets, 0.1)
    oracles.assert_accurate(rows, exact.detach(), dense)
    streamed_losses.cross_entropy_gradients(sweep, grad, logsumexp, targets, 0.1)
    (expected,) = torch.autograd.grad(exact, leaf, grad.double())
    oracles.assert_accurate(sweep.pulled, expected)

    indptr = torch.arange(8)
    exact = oracles.binary_cross_entropy(leaf, [[int(it)] for it in targets], 0.9, 0.01)
    rows, _ = streamed_losses.bce_rows(sweep, indptr, targets, 0.9, 0.01)
    oracles.assert_accurate(rows, exact.detach())
    bias = torch.full((150,), torch.nan)
    streamed_losses.bce_gradients(sweep, grad, indptr, targets, 0.9, 0.01, bias)
    (expected,) = torch.autograd.grad(exact, leaf, grad.double())
    oracles.assert_accurate(sweep.pulled, expected)
    oracles.assert_accurate(bias, expected.sum(0))


def test_chunks_cover_the_candidates_and_fit_the_scratch():
    for num_queries, num_candidates in ((1, 0), (1, 100_000), (40_000, 50), (300, 9_999)):
        sweep = Table(torch.empty(num_queries, 0), 1 << 20)
        sweep.num_candidates = num_candidates
        bounds = streamed_losses.chunks(sweep)
        assert [i for start, stop in bounds for i in (start, stop)] == sorted(
            [0, *[stop for _, stop in bounds][:-1] * 2, num_candidates] if bounds else []
        )
        assert all((stop - start) * num_queries <= 1 << 20 for start, stop in bounds)

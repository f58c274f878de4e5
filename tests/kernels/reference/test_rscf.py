"""The filtering scores of the reference against dense complex arithmetic and autograd."""

import pytest
import torch

from kgfast.kernels.reference import scores
from support.flat import reference
from support.problems import RSCF_SCORES

D, B, N = 5, 4, 9


def operands(score, with_factor, seed=0):
    """Queries [B, F], a table [N, G] and a factor [N, D] or None, float64 leaves."""
    generator = torch.Generator().manual_seed(seed)
    planes = 2 if score == "rscf_rotate" else 1
    widths = (2 * planes + with_factor) * D, planes * D, D
    rows = [
        torch.randn(count, width, generator=generator, dtype=torch.float64)
        for count, width in zip((B, N, N), widths, strict=True)
    ]
    rows[0] *= 2.0
    queries, table, factor = (it.requires_grad_() for it in rows)
    return queries, table, factor if with_factor else None


def dense(score, queries, table, factor, dim):
    """Scores of broadcasting rows, by the equations of the paper."""
    if score == "rscf_rotate":
        parts = queries.unflatten(-1, (-1, D))[..., :dim]
        x = torch.complex(parts[..., 0, :], parts[..., 1, :])
        if factor is not None:
            x = x * torch.exp(1j * parts[..., 4, :] * factor[..., :dim])
        row = table.unflatten(-1, (2, D))[..., :dim]
        x = x - torch.complex(parts[..., 2, :] * row[..., 0, :], parts[..., 3, :] * row[..., 1, :])
        return -x.abs().sum(-1)
    parts = queries.unflatten(-1, (-1, D))[..., :dim]
    x = parts[..., 0, :] - parts[..., 1, :] * table[..., :dim]
    if factor is not None:
        x = x + parts[..., 2, :] * factor[..., :dim]
    return -x.abs().sum(-1) if score == "rscf_l1" else -torch.linalg.vector_norm(x, dim=-1)


@pytest.mark.parametrize("dims", [None, [3, 1, 5, 3]], ids=["full", "crops"])
@pytest.mark.parametrize("with_factor", [True, False], ids=["factor", "scale alone"])
@pytest.mark.parametrize("score", RSCF_SCORES)
def test_pairwise(score, with_factor, dims, monkeypatch):
    monkeypatch.setattr(scores, "_TILE", 7)
    queries, table, factor = operands(score, with_factor)
    exact = torch.stack([dense(score, queries[:, None], table, factor, dim) for dim in dims or [D]])
    exact = exact[0] if dims is None else exact
    grad = torch.randn_like(exact)
    leaves = [it for it in (queries, table, factor) if it is not None]
    expected = torch.autograd.grad(exact, leaves, grad)
    given = queries.detach(), table.detach(), score
    own = None if factor is None else factor.detach()
    torch.testing.assert_close(reference.pairwise_scores(*given, factor=own, dims=dims), exact)
    gradients = reference.pairwise_backward(grad, *given, factor=own, dims=dims)
    torch.testing.assert_close(gradients[: len(leaves)], expected)


@pytest.mark.parametrize("dims", [None, [3, 1, 5, 3]], ids=["full", "crops"])
@pytest.mark.parametrize("with_factor", [True, False], ids=["factor", "scale alone"])
@pytest.mark.parametrize("score", RSCF_SCORES)
def test_indexed(score, with_factor, dims, monkeypatch):
    monkeypatch.setattr(scores, "_GATHERED", 7)
    queries, table, factor = operands(score, with_factor)
    index = torch.tensor([[2, 2, 8], [7, 0, 0], [2, 7, 7], [0, 8, 2]])
    gathered = None if factor is None else factor[index]
    exact = torch.stack(
        [dense(score, queries[:, None], table[index], gathered, dim) for dim in dims or [D]]
    )
    exact = exact[0] if dims is None else exact
    grad = torch.randn_like(exact)
    leaves = [it for it in (queries, table, factor) if it is not None]
    expected = torch.autograd.grad(exact, leaves, grad)
    given = queries.detach(), table.detach(), index, score
    own = None if factor is None else factor.detach()
    torch.testing.assert_close(reference.indexed_scores(*given, factor=own, dims=dims), exact)
    of_queries, (ids, rows), of_factor = reference.indexed_backward(
        grad, *given, factor=own, dims=dims
    )
    torch.testing.assert_close(of_queries, expected[0])
    torch.testing.assert_close(torch.zeros_like(table).index_copy(0, ids, rows), expected[1])
    if factor is not None:
        whole = torch.zeros_like(factor).index_copy(0, ids, of_factor)
        torch.testing.assert_close(whole, expected[2])


@pytest.mark.parametrize("score", RSCF_SCORES)
def test_ranks_follow_the_dense_scores(score):
    queries, table, factor = (it.detach() for it in operands(score, True))
    targets = torch.tensor([0, 3, 8, 2])
    none = torch.zeros(B + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    for dim in (3, D):
        exact = dense(score, queries[:, None], table, factor, dim)
        wanted = (exact > exact.gather(1, targets[:, None])).sum(1)
        greater, *_ = reference.rank_counts(
            queries, table, targets, *none, score, factor=factor, dims=[dim]
        )
        assert torch.equal(greater[0], wanted)


def test_a_factor_that_is_not_finite_is_named():
    queries, table, factor = (it.detach() for it in operands("rscf_l1", True))
    factor[3, 1] = float("nan")
    none = torch.zeros(B + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="factor: row 3 "):
        reference.rank_counts(
            queries, table, torch.zeros(B).long(), *none, "rscf_l1", factor=factor
        )

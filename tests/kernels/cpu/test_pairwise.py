"""Pairwise scores and gradients on the CPU, for every instruction set of this machine."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.cpu import backward
from kgfast.kernels.scores import get_score
from support import flat, oracles
from support.problems import DTYPES, SCORES
from support.sampled import assert_close, dense, differentiable, make_sampled, threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
some = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def operands(score, batch, rows, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    width = dim * get_score(score).planes
    queries = torch.randn(batch, width, generator=generator)
    table = torch.randn(rows, width, generator=generator).to(dtype)
    return queries, table, torch.randn(batch, rows, generator=generator)


@given(seed=st.integers(0, 2**31 - 1))
@example(seed=0)
@some
def test_scores_and_gradients(isa, seed):
    problem = make_sampled(seed, rows=140)
    queries, table = differentiable(problem)
    bias = None if problem.bias is None else problem.bias.double()
    exact = dense(problem, queries[:, None], table, bias)
    float32 = dense(problem, problem.queries[:, None], problem.table.float(), problem.bias)
    given = (problem.queries, problem.table, problem.score)
    scores = flat.cpu.pairwise_scores(*given, problem.bias, dims=problem.dims)
    assert scores.dtype == torch.float32
    assert_close(scores, exact.detach(), float32)
    grad = torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed))
    exact.backward(grad.double())
    grad_queries, grad_table = flat.cpu.pairwise_backward(grad, *given, dims=problem.dims)[:2]
    assert (grad_queries.dtype, grad_table.dtype) == (torch.float32, problem.table.dtype)
    assert_close(grad_queries, queries.grad)
    assert_close(grad_table, table.grad)


@pytest.mark.parametrize("score", SCORES)
def test_bits_do_not_depend_on_threads(isa, score):
    queries, table, grad = operands(score, 70, 700, 33)
    results = []
    for count in (1, 2, 5, 1):
        with threads(count):
            scores = flat.cpu.pairwise_scores(queries, table, score)
            results.append((scores, *flat.cpu.pairwise_backward(grad, queries, table, score)[:2]))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", ["one block", "several blocks"])
def test_a_crop_has_the_bits_of_that_crop_alone(isa, score, kind, monkeypatch):
    dim = 150 if kind == "one block" else 4_200  # wider than a panel
    queries, table, _ = operands(score, 9, 70, dim)
    dims = [dim, 64, 1, 100, 64, dim - 1, 65]
    together = flat.cpu.pairwise_scores(queries, table, score, dims=dims)
    for place, width in enumerate(dims):
        alone = flat.cpu.pairwise_scores(queries, table, score, dims=[width])
        assert torch.equal(together[place], alone[0])
    assert torch.equal(together[0], flat.cpu.pairwise_scores(queries, table, score))


@pytest.mark.parametrize("score", SCORES)
def test_rows_wider_than_one_panel(isa, score):
    queries, table, grad = operands(score, 5, 70, 4_200)
    q, c = queries.double().requires_grad_(), table.double().requires_grad_()
    exact = oracles.dense_scores(q[:, None], c, score)
    exact.backward(grad.double())
    assert_close(flat.cpu.pairwise_scores(queries, table, score), exact.detach())
    grad_queries, grad_table = flat.cpu.pairwise_backward(grad, queries, table, score)[:2]
    assert_close(grad_queries, q.grad)
    assert_close(grad_table, c.grad)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_that_are_not_needed_change_nothing(isa, score):
    queries, table, grad = operands(score, 5, 40, 20)
    both = flat.cpu.pairwise_backward(grad, queries, table, score)[:2]
    first = flat.cpu.pairwise_backward(grad, queries, table, score, need=(True, False, False))[:2]
    second = flat.cpu.pairwise_backward(grad, queries, table, score, need=(False, True, False))[:2]
    assert first[1] is None
    assert second[0] is None
    assert torch.equal(first[0], both[0])
    assert torch.equal(second[1], both[1])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_queries_and_candidates_in_parts(isa, score, dtype, monkeypatch):
    queries, table, grad = operands(score, 50, 300, 6, dtype)
    whole = flat.cpu.pairwise_backward(grad, queries, table, score)[:2]
    monkeypatch.setattr(backward, "_ROWS", 16)
    monkeypatch.setattr(backward, "_LENGTH_BYTES", 1)
    for part, full in zip(
        flat.cpu.pairwise_backward(grad, queries, table, score)[:2], whole, strict=True
    ):
        assert_close(part, full.double())


@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_any_strides(isa, score):
    queries, table, grad = operands(score, 6, 35, 9)
    for strange in (
        grad.t().contiguous().t(),
        torch.tensor(0.5).expand(6, 35),
        grad[:, :1].expand(6, 35),
    ):
        expected = flat.cpu.pairwise_backward(strange.contiguous(), queries, table, score)[:2]
        for a, b in zip(
            flat.cpu.pairwise_backward(strange, queries, table, score)[:2], expected, strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_rounded_once_to_nearest(isa, dtype):
    generator = torch.Generator().manual_seed(5)
    size = 10.0 ** torch.randint(-9, 6, (1, 4_000), generator=generator)
    grad = torch.cat([torch.randn(1, 4_000, generator=generator) * size, 0.0 * size[:, :1]], 1)
    table = torch.zeros(grad.shape[1], 1, dtype=dtype)
    _, got = flat.cpu.pairwise_backward(grad, torch.ones(1, 1), table, "dot")[:2]
    assert torch.equal(got, grad.t().to(dtype))  # of a product with 1


def test_many_candidates_in_few_features_come_in_stripes(isa):
    queries, table, grad = operands("l1", 3, 5_000, 2)
    q, c = queries.double().requires_grad_(), table.double().requires_grad_()
    (-(q[:, None] - c).abs().sum(-1)).backward(grad.double())
    got = flat.cpu.pairwise_backward(grad, queries, table, "l1")[:2]
    assert_close(got[0], q.grad)
    assert_close(got[1], c.grad)


@pytest.mark.parametrize("score", SCORES)
def test_a_nan_reaches_its_own_scores_only(isa, score):
    queries, table, _ = operands(score, 5, 70, 40)
    table[66, 3] = float("nan")
    queries[1, 7] = float("nan")
    bad = flat.cpu.pairwise_scores(queries, table, score).isnan()
    expected = torch.zeros(5, 70, dtype=torch.bool)
    expected[1] = expected[:, 66] = True
    assert torch.equal(bad, expected)


@pytest.mark.parametrize("score", [score for score in SCORES if score != "dot"])
def test_the_gradient_at_a_distance_of_zero_is_zero(isa, score):
    queries, _, _ = operands(score, 3, 1, 20)
    grads = flat.cpu.pairwise_backward(
        torch.ones(3, 1), queries[:1].repeat(3, 1), queries[:1], score
    )[:2]
    assert not any(grad.any() for grad in grads)


def test_the_callers_floating_point_mode_survives(isa):
    queries, table, grad = operands("rotate", 5, 70, 40)
    assert torch.set_flush_denormal(False)
    flat.cpu.pairwise_scores(queries, table, "rotate")
    flat.cpu.pairwise_backward(grad, queries, table, "rotate")[:2]
    assert (torch.tensor(1e-310, dtype=torch.float64) * 1).item() != 0

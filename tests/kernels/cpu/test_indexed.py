"""Indexed scores and gradients on the CPU, for every instruction set of this machine."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.operands import Need
from kgfast.kernels.scores import get_score
from kgfast.ops.dispatch import get_backend
from support import flat, oracles
from support.problems import SCORES
from support.sampled import assert_close, dense, differentiable, make_sampled, threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
some = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def operands(score, batch, per_query, rows, dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    width = dim * get_score(score).planes
    queries = torch.randn(batch, width, generator=generator)
    table = torch.randn(rows, width, generator=generator).to(dtype)
    index = torch.randint(rows, (batch, per_query), generator=generator)
    return queries, table, index, torch.randn(batch, per_query, generator=generator)


def dense_gradient(table, found):
    ids, rows = found
    assert torch.equal(ids, ids.unique())
    assert rows.dtype == table.dtype
    return torch.zeros_like(table, memory_format=torch.contiguous_format).index_copy_(0, ids, rows)


@given(seed=st.integers(0, 2**31 - 1))
@example(seed=0)
@example(seed=2003023)  # a gradient beyond float16
@some
def test_scores_and_gradients(isa, seed):
    problem = make_sampled(seed, rows=30)
    generator = torch.Generator().manual_seed(seed)
    shape = (len(problem.queries), int(torch.randint(1, 80, (), generator=generator)))
    index = torch.randint(len(problem.table), shape, generator=generator)
    queries, table = differentiable(problem)
    bias = problem.bias
    chosen = bias if bias is None else bias.expand(len(table))[index]
    exact = dense(
        problem, queries[:, None], table[index], None if bias is None else chosen.double()
    )
    float32 = dense(problem, problem.queries[:, None], problem.table.float()[index], chosen)
    given = (problem.queries, problem.table, index, problem.score)
    scores = flat.cpu.indexed_scores(*given, bias, dims=problem.dims)
    assert scores.dtype == torch.float32
    assert_close(scores, exact.detach(), float32)
    grad = torch.randn(exact.shape, generator=generator)
    exact.backward(grad.double())
    grad_queries, found, _ = flat.cpu.indexed_backward(grad, *given, dims=problem.dims)
    assert torch.equal(found[0], index.unique())
    assert_close(grad_queries, queries.grad)
    assert_close(dense_gradient(problem.table, found), table.grad)
    operands = flat.operands_of(problem.queries, problem.table, problem.score, dims=problem.dims)
    written = flat.cpu.backend.backward(operands, grad, index, need=Need(True, True))
    assert torch.equal(written.queries, grad_queries)
    assert torch.equal(written.table, dense_gradient(problem.table, found))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_a_span_of_rows_are_those_among_all(isa, score, backend):
    """Those of some queries, too: processes that train together sum a part each."""
    queries, table, index, grad = operands(score, 40, 130, 50, 33)
    problem, backward = flat.operands_of(queries, table, score), get_backend(backend).backward
    whole = backward(problem, grad, index, need=Need(True, True), rows_only=True)
    spans = [slice(0, 1), slice(1, 17), slice(17, 17), slice(17, 50)]
    need = Need(False, True)
    parts = [
        backward(problem, grad, index, need=need, rows_only=True, within=span) for span in spans
    ]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert torch.equal(torch.cat([part.table for part in parts]), whole.table)
    assert [len(part.ids) for part in parts] == [1, 16, 0, 33]
    for rows in (slice(0, 7), slice(7, 40)):
        part = problem.of_queries(rows), grad[rows], index[rows]
        assert torch.equal(backward(*part, need=Need(True, False)).queries, whole.queries[rows])


@pytest.mark.parametrize("score", SCORES)
def test_bits_do_not_depend_on_threads(isa, score):
    queries, table, index, grad = operands(score, 40, 130, 50, 33)
    results = []
    for count in (1, 2, 5, 1):
        with threads(count):
            scores = flat.cpu.indexed_scores(queries, table, index, score)
            grad_queries, found, _ = flat.cpu.indexed_backward(grad, queries, table, index, score)
            results.append((scores, grad_queries, *found))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dim", [150, 4_200])
def test_a_crop_has_the_bits_of_that_crop_alone(isa, score, dim):
    queries, table, index, _ = operands(score, 3, 9, 20, dim)
    dims = [dim, 64, 1, 100, 64, dim - 1, 65]
    together = flat.cpu.indexed_scores(queries, table, index, score, dims=dims)
    for place, width in enumerate(dims):
        alone = flat.cpu.indexed_scores(queries, table, index, score, dims=[width])
        assert torch.equal(together[place], alone[0])
    assert torch.equal(together[0], flat.cpu.indexed_scores(queries, table, index, score))


@pytest.mark.parametrize("score", SCORES)
def test_rows_wider_than_one_accumulator(isa, score):
    queries, table, index, grad = operands(score, 3, 6, 9, 2_500)
    q, c = queries.double().requires_grad_(), table.double().requires_grad_()
    exact = oracles.dense_scores(q[:, None], c[index], score)
    exact.backward(grad.double())
    assert_close(flat.cpu.indexed_scores(queries, table, index, score), exact.detach())
    grad_queries, found, _ = flat.cpu.indexed_backward(grad, queries, table, index, score)
    assert_close(grad_queries, q.grad)
    assert_close(dense_gradient(table, found), c.grad)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_that_are_not_needed_change_nothing(isa, score):
    queries, table, index, grad = operands(score, 5, 7, 20, 30)
    given = (grad, queries, table, index, score)
    both = flat.cpu.indexed_backward(*given)
    first = flat.cpu.indexed_backward(*given, need=(True, False, False))
    second = flat.cpu.indexed_backward(*given, need=(False, True, False))
    assert first[1] is None
    assert second[0] is None
    assert torch.equal(first[0], both[0])
    for a, b in zip(second[1], both[1], strict=True):
        assert torch.equal(a, b)


def test_one_row_named_by_every_pair(isa):
    queries, table, index, _ = operands("rotate", 60, 90, 1, 50)
    grad = torch.ones(60, 90)
    q, c = queries.double().requires_grad_(), table.double().requires_grad_()
    x = q[:, None] - c[index]
    (-torch.linalg.vector_norm(x.unflatten(-1, (2, -1)), dim=-2).sum()).backward()
    grad_queries, (ids, rows), _ = flat.cpu.indexed_backward(grad, queries, table, index, "rotate")
    assert ids.tolist() == [0]
    assert_close(grad_queries, q.grad)
    assert_close(rows, c.grad)


@pytest.mark.parametrize("score", SCORES)
def test_a_nan_reaches_its_own_scores_only(isa, score):
    queries, table, index, _ = operands(score, 6, 11, 9, 40)
    table[4, 3] = float("nan")
    bad = flat.cpu.indexed_scores(queries, table, index, score).isnan()
    assert torch.equal(bad, index == 4)


def test_offsets_beyond_two_to_the_31(isa):
    """Rows more than 2^31 elements apart, in an allocation of which few pages are touched."""
    stride = 1 << 21
    table = torch.empty(stride * 1_100, dtype=torch.float16).as_strided((1_100, 6), (stride, 1))
    table[:] = torch.randn(1_100, 6).half()
    queries, index = torch.randn(2, 6), torch.tensor([[0, 1_099, 7], [1_098, 3, 1_099]])
    grad = torch.randn(2, 3)
    scores = flat.cpu.indexed_scores(queries, table, index, "rotate")
    assert torch.equal(scores, flat.cpu.indexed_scores(queries, table.clone(), index, "rotate"))
    far = flat.cpu.indexed_backward(grad, queries, table, index, "rotate")
    near = flat.cpu.indexed_backward(grad, queries, table.clone(), index, "rotate")
    assert torch.equal(far[0], near[0])
    assert torch.equal(far[1][1], near[1][1])


def test_the_callers_floating_point_mode_survives(isa):
    queries, table, index, grad = operands("rotate", 5, 7, 20, 30)
    assert torch.set_flush_denormal(False)
    flat.cpu.indexed_scores(queries, table, index, "rotate")
    flat.cpu.indexed_backward(grad, queries, table, index, "rotate")
    assert (torch.tensor(1e-310, dtype=torch.float64) * 1).item() != 0

"""Top-k on a real GPU: the reference's ids, bounded memory, streams."""

import random

import pytest
import torch

from kgfast import ops
from kgfast.kernels.scores import get_score
from support.flat import reference
from support.problems import DTYPES, SCORES, make_problem
from support.waits import count_waits

SEEDS = range(60)


def moved(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nonfinite", [False, True])
def test_ids_equal_the_reference_on_the_cpu(seed, nonfinite):
    problem = make_problem(seed, nonfinite)
    queries, candidates, _, indptr, indices, score = problem.args
    k = random.Random(seed).choice([1, 3, 10, len(candidates)])
    args = queries, candidates, k, indptr, indices, score
    scores, ids = reference.topk(*args, **problem.kwargs)
    options = {name: moved(value) for name, value in problem.kwargs.items()}
    found = ops.topk(*map(moved, args), **options, pad=True)
    assert torch.equal(found[1].cpu(), ids), problem
    assert torch.equal(found[0].cpu().nan_to_num(7.0), scores.nan_to_num(7.0)), problem


def problem_on_gpu(score, dtype=torch.float32, rows=14_541, batch=300, dim=48):
    generator = torch.Generator().manual_seed(0)
    width = dim * get_score(score).planes
    table = torch.randn(rows, width, generator=generator).to(dtype)
    queries = torch.randn(batch, width, generator=generator)
    queries = queries.double() if dtype == torch.float64 else queries
    return queries, table


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_table(score, dtype):
    """Tens of thousands of candidates, some known; more survivors than a band holds."""
    queries, table = problem_on_gpu(score, dtype, batch=20)
    indptr = torch.arange(21) * 50
    indices = torch.randint(len(table), (1000,), generator=torch.Generator().manual_seed(1))
    for k in (1, 10, 5000):
        scores, ids = reference.topk(queries, table, k, indptr, indices, score)
        found = ops.topk(*map(moved, (queries, table, k, indptr, indices, score)))
        assert torch.equal(found[1].cpu(), ids)
        assert torch.equal(found[0].cpu(), scores)


def test_identical_rows_come_by_id():
    table = torch.ones(50_000, 8, device="cuda")
    _, ids = ops.topk(torch.ones(40, 8, device="cuda"), table, 20, score="l1")
    assert torch.equal(ids.cpu(), torch.arange(20).repeat(40, 1))


@pytest.mark.parametrize("score", ["dot", "rotate"])
def test_two_runs_are_equal(score):
    queries, table = map(moved, problem_on_gpu(score))
    runs = [ops.topk(queries, table, 10, score=score) for _ in range(3)]
    for scores, ids in runs[1:]:
        assert torch.equal(ids, runs[0][1])
        assert torch.equal(scores, runs[0][0])


@pytest.mark.parametrize("score", ["dot", "rotate"])
@pytest.mark.parametrize(("batch", "k"), [(1, 10), (128, 10), (4096, 10), (64, 2000)])
def test_peak_memory_beyond_inputs_and_outputs(score, batch, k):
    queries, table = map(moved, problem_on_gpu(score, rows=40_943, batch=batch, dim=200))
    ops.topk(queries, table, k, score=score)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = ops.topk(queries, table, k, score=score)
    torch.cuda.synchronize()
    outputs = sum(it.numel() * it.element_size() for it in kept)
    assert torch.cuda.max_memory_allocated() - before - outputs <= 64 << 20


@pytest.mark.parametrize(("batch", "rows"), [(1, 1_000_000), (300, 200_000), (3000, 40_943)])
def test_the_operator_waits_once(batch, rows):
    """However many chunks and passes there are."""
    queries, table = map(moved, problem_on_gpu("rotate", rows=rows, batch=batch, dim=64))
    known = torch.arange(batch + 1, device="cuda"), torch.arange(batch, device="cuda")
    ops.topk(queries, table, 10, *known, score="rotate")  # compiles
    assert count_waits(lambda: ops.topk(queries, table, 10, *known, score="rotate")) == 1


@pytest.mark.parametrize("batch", [1, 5, 16])
def test_few_queries_of_a_long_table(batch):
    """Several spans; scores that rise with the id leave more than a band holds."""
    queries, table = problem_on_gpu("dot", rows=300_000, batch=batch, dim=24)
    for rows in (table, torch.arange(300_000.0)[:, None].expand(-1, 24).contiguous()):
        expected = reference.topk(queries, rows, 10, score="dot")
        found = ops.topk(queries.cuda(), rows.cuda(), 10, score="dot")
        assert torch.equal(found[1].cpu(), expected[1])
        assert torch.equal(found[0].cpu(), expected[0])


def test_a_stream_of_its_own():
    queries, table = map(moved, problem_on_gpu("rotate"))
    expected = ops.topk(queries, table, 10, score="rotate")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = ops.topk(queries, table, 10, score="rotate")
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_compiled():
    queries, table = map(moved, problem_on_gpu("rotate", rows=2000, batch=8))

    def best(q, c):
        return ops.topk(q * 1.5, c, 5, score="rotate")[1]

    assert torch.equal(torch.compile(best, fullgraph=True)(queries, table), best(queries, table))


def test_numbers_that_are_not_finite_are_named():
    queries, table = map(moved, problem_on_gpu("l1", rows=900, batch=4))
    table[700, 3] = torch.inf
    with pytest.raises(ValueError, match="candidates: row 700 holds a NaN"):
        ops.topk(queries, table, 3, score="l1")
    queries[2, 3] = torch.nan
    with pytest.raises(ValueError, match="queries: row 2 holds a NaN"):
        ops.topk(queries, table, 3, score="l1")

"""Top-k: the specification against plain Python, the CPU backend against the specification."""

import os
import subprocess
import sys
import textwrap
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.reference import tiles
from kgfast.kernels.reference import topk as specification
from support import flat, oracles
from support.flat import reference
from support.paths import TESTS
from support.problems import SCORES, Problem, cast, no_known, problems, table_of

needs_extension = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
COUNTS = (1, 2, 3, 10, 31, 64, 257, 300)


def arguments(problem: Problem) -> tuple:
    """Of ``topk``, without k."""
    queries, table, _, indptr, indices, score = problem.args
    return queries, table, indptr, indices, score


def run(function, problem: Problem, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    queries, table, indptr, indices, score = arguments(problem)
    return function(queries, table, k, indptr, indices, score, **problem.kwargs)


def bits(scores: torch.Tensor) -> torch.Tensor:
    """For comparison to the last bit; NaN are alike."""
    integers = torch.int64 if scores.dtype == torch.float64 else torch.int32
    return torch.where(scores.isnan(), torch.nan, scores).view(integers)


def assert_same(found, expected, note="") -> None:
    assert torch.equal(found[1], expected[1]), f"ids of {note}"
    assert found[0].dtype == expected[0].dtype
    assert torch.equal(bits(found[0]), bits(expected[0])), f"scores of {note}"


@given(problem=problems(), k=st.sampled_from(COUNTS), tile=st.sampled_from([64, 4096, 1 << 19]))
@settings(max_examples=60)
def test_the_specification_equals_the_oracle(problem, k, tile):
    check_against_oracle(problem, k, tile)


@given(problem=problems(nonfinite=True), k=st.sampled_from(COUNTS))
@settings(max_examples=30)
def test_the_specification_equals_the_oracle_with_nan_and_infinities(problem, k):
    check_against_oracle(problem, k, 1 << 19)


def check_against_oracle(problem: Problem, k: int, tile: int) -> None:
    queries, table, indptr, indices, score = arguments(problem)
    if len(table) * len(queries) * table.shape[1] > 40_000:
        queries, indptr = queries[:1], indptr[:2]
        indices = indices[: int(indptr[-1])]
    kwargs = dict(problem.kwargs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", tile)
        patch.setattr(specification, "TILE", tile)
        scores, ids = reference.topk(queries, table, k, indptr, indices, score, **kwargs)
    dims, _ = kwargs.pop("dims", None), kwargs.pop("nan_worst")
    subset = kwargs.pop("candidate_ids", None)
    known = [indices[a:b].tolist() for a, b in pairwise(indptr.tolist())]
    for row, dim in enumerate([None] if dims is None else dims):
        expected = oracles.topk(
            queries,
            table,
            k,
            known,
            score,
            dim=dim,
            candidate_ids=None if subset is None else subset.tolist(),
            **kwargs,
        )
        values = torch.tensor([[s for s, _ in best] for best in expected], dtype=torch.float64)
        crop = (scores, ids) if dims is None else (scores[row], ids[row])
        assert crop[1].tolist() == [[n for _, n in best] for best in expected]
        assert torch.equal(bits(crop[0]), bits(values.to(queries.dtype)))


per_isa = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@needs_extension
@given(problem=problems(), k=st.sampled_from(COUNTS))
@per_isa
def test_the_cpu_equals_the_specification(isa, problem, k):
    assert_same(run(flat.cpu.topk, problem, k), run(reference.topk, problem, k), f"k={k} {problem}")


@needs_extension
@given(problem=problems(many=True), k=st.sampled_from([1, 7, 100]))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_cpu_equals_the_specification_where_survivors_overflow(isa, problem, k):
    assert_same(run(flat.cpu.topk, problem, k), run(reference.topk, problem, k), f"k={k} {problem}")


@needs_extension
@given(problem=problems(nonfinite=True), k=st.sampled_from(COUNTS))
@per_isa
def test_the_cpu_equals_the_specification_with_nan_and_infinities(isa, problem, k):
    assert_same(run(flat.cpu.topk, problem, k), run(reference.topk, problem, k), f"k={k} {problem}")


def clustered(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that come closer and closer, in steps far below the sweep's precision and above it."""
    generator = torch.Generator().manual_seed(rows)
    steps = torch.linspace(1, 0, rows, dtype=torch.float64)[:, None]
    fine = torch.randint(-2, 3, (rows, 1), generator=generator).double() * 1e-9
    base = table_of("normal", 1, width, generator)
    return cast(base * (1 + steps + fine), dtype)


@needs_extension
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_candidates_that_come_ever_closer(isa, score, k, dtype):
    """Every candidate beats those before it, many within the bound: buffers fill and resolve."""
    table = clustered(1_500, 20, dtype)
    queries = table[[-1, 700]]
    assert_same(
        flat.cpu.topk(queries, table, k, score=score),
        reference.topk(queries, table, k, None, None, score),
    )


@needs_extension
@pytest.mark.parametrize("k", [1, 5])
def test_rows_that_only_float64_tells_apart(isa, k):
    """Two moduli that add up to nearly 1: the square root's error decides the sweep's order."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        share = torch.rand(700, 1, generator=generator, dtype=torch.float64)
        total = 1 + 1e-7 * torch.randn(700, 1, generator=generator, dtype=torch.float64)
        table = torch.cat([share * total, (1 - share) * total, torch.zeros(700, 2)], 1).float()
        queries = torch.zeros(1, 4)
        expected = reference.topk(queries, table, k, None, None, "rotate")
        assert_same(flat.cpu.topk(queries, table, k, score="rotate"), expected)


@needs_extension
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("k", [1, 10, 200])
def test_a_table_of_identical_rows(isa, score, k):
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(1, 6, generator=generator).repeat(3_000, 1)
    queries = torch.randn(20, 6, generator=generator)
    indptr, indices = torch.arange(21), torch.arange(20)
    scores, ids = flat.cpu.topk(queries, table, k, indptr, indices, score)
    for row in range(20):
        assert ids[row].tolist() == [n for n in range(k + 1) if n != row][:k]
    assert bool((scores == scores[:, :1]).all())


@cache  # the specification, feature by feature, takes a second
def wide_rows(score, dtype):
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(70, 20_000, generator=generator, dtype=dtype)
    noise = torch.randn(9, 20_000, generator=generator, dtype=dtype)
    queries = table[:9] + 1e-3 * noise
    return queries, table, reference.topk(queries, table, 3, None, None, score)


@needs_extension
@pytest.mark.parametrize("score", ["dot", "l2", "rotate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_rows_too_wide_for_one_panel(isa, score, dtype):
    queries, table, expected = wide_rows(score, dtype)
    assert_same(flat.cpu.topk(queries, table, 3, score=score), expected)


@needs_extension
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_threads_or_batches(isa, score, threads):
    generator = torch.Generator().manual_seed(1)
    table = torch.randint(-3, 4, (700, 140), generator=generator).float()
    queries = torch.randint(-3, 4, (37, 140), generator=generator).float()
    expected = reference.topk(queries, table, 12, None, None, score)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = flat.cpu.topk(queries, table, 12, score=score)
        parts = [flat.cpu.topk(q, table, 12, score=score) for q in queries.split(5)]
    finally:
        torch.set_num_threads(before)
    assert_same(whole, expected)
    assert_same([torch.cat(column) for column in zip(*parts, strict=True)], expected)


@needs_extension
@pytest.mark.parametrize("score", SCORES)
def test_more_queries_than_one_pass_holds(isa, score):
    """Survivors of 6,000 queries times k = 150 do not fit into their 24 MiB at once."""
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(700, 4, generator=generator)
    queries = torch.randn(6_000, 4, generator=generator)
    scores, ids = flat.cpu.topk(queries, table, 150, score=score)
    some = torch.randint(6_000, (40,), generator=generator)
    assert_same(
        (scores[some], ids[some]), reference.topk(queries[some], table, 150, None, None, score)
    )


@needs_extension
@given(problem=problems(), k=st.sampled_from([1, 3, 10]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_agrees_with_ranks(problem, k):
    """A candidate is in the top k exactly when fewer than k others come before it."""
    queries, table, targets, indptr, indices, score = problem.args
    kwargs = problem.kwargs
    ids = run(flat.cpu.topk, problem, k)[1].reshape(-1, len(queries), k)
    greater, _, greater_x, _ = (
        it.reshape(-1, len(queries)) for it in flat.cpu.rank_counts(*problem.args, **kwargs)
    )
    before = greater - greater_x
    subset = kwargs.get("candidate_ids", torch.arange(len(table)))
    for b in range(len(queries)):
        known = indices[indptr[b] : indptr[b + 1]].tolist()
        target = int(targets[b])
        if target in known or target not in subset:
            continue
        lower = [n for n in subset.tolist() if n < target and n not in known]
        for crop in range(len(ids)):
            width = kwargs["dims"][crop] if "dims" in kwargs else None
            tied = sum(
                tie(queries[b], table, n, target, score, kwargs.get("bias"), width) for n in lower
            )
            assert (target in ids[crop, b]) == (int(before[crop, b]) + tied < k)


def tie(query, table, first, second, score, bias, width) -> bool:
    values = None if bias is None else bias.double().expand(len(table))
    one, two = (
        oracles.canonical(
            query.double().tolist(),
            table[n].double().tolist(),
            score,
            None if values is None else values[n].item(),
            width,
        )
        for n in (first, second)
    )
    return one == two


@needs_extension
@given(problem=problems(), k=st.sampled_from([1, 5, 40]))
@settings(max_examples=40)
def test_excluding_is_removing_and_recomputing(problem, k):
    queries, table, indptr, indices, score = arguments(problem)
    kwargs = {key: value for key, value in problem.kwargs.items() if key != "candidate_ids"}
    subset = problem.kwargs.get("candidate_ids", torch.arange(len(table)))
    scores, ids = run(flat.cpu.topk, problem, k)
    for b in range(len(queries)):
        left = subset[~torch.isin(subset, indices[indptr[b] : indptr[b + 1]])]
        alone = flat.cpu.topk(
            queries[b : b + 1], table, k, score=score, candidate_ids=left, **kwargs
        )
        assert_same(alone, (scores[..., b : b + 1, :], ids[..., b : b + 1, :]), problem)


@needs_extension
@given(problem=problems(), k=st.sampled_from([1, 5, 300]), seed=st.integers(0, 99))
@example(
    problem=Problem((torch.ones(1, 2), torch.ones(300, 2), None, *no_known(1), "l1")), k=5, seed=0
)
@settings(max_examples=40)
def test_a_permuted_table_gives_the_same_scores(problem, k, seed):
    """Ids move along, up to the order of ties, which is by id."""
    queries, table, _, _, score = arguments(problem)
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    bias = problem.kwargs.get("bias")
    moved = bias if bias is None or len(bias) == 1 else bias[order]
    scores, ids = flat.cpu.topk(queries, table, k, score=score, bias=bias)
    again, places = flat.cpu.topk(queries, table[order], k, score=score, bias=moved)
    assert torch.equal(bits(scores), bits(again))
    mapped = torch.where(places < 0, places, order[places])
    for b in range(len(queries)):
        inner = scores[b] != scores[b, -1]  # ties of the last may fall out
        assert set(mapped[b][inner].tolist()) == set(ids[b][inner].tolist())


@needs_extension
def test_offsets_beyond_two_to_the_31(isa):
    stride = 1 << 21
    table = torch.empty(stride * 1_100, dtype=torch.float16).as_strided((1_100, 4), (stride, 1))
    table[:] = torch.randn(1_100, 4).half()
    queries = torch.randn(3, 4)
    for k in (2, 1_100):
        found = flat.cpu.topk(queries, table, k, score="rotate")
        assert_same(found, reference.topk(queries, table.clone(), k, None, None, "rotate"))


@needs_extension
@pytest.mark.parametrize("view", ["one row", "every third row", "misaligned"])
def test_views_are_read_in_place(isa, view):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(300, 8, generator=generator)
    if view == "one row":
        table = table[:1].expand(300, 8)
    elif view == "every third row":
        table = table[::3]
    else:
        raw = torch.empty(300 * 8 * 4 + 2, dtype=torch.uint8)
        raw[2:] = table.flatten().view(torch.uint8)
        table = torch.frombuffer(raw.numpy().data, dtype=torch.float32, offset=2).view(300, 8)
    queries = torch.randn(5, 8, generator=generator)
    assert_same(
        flat.cpu.topk(queries, table, 4, score="l1"), reference.topk(queries, table, 4, score="l1")
    )


@needs_extension
@pytest.mark.parametrize("k", [2, 90])
def test_the_first_row_that_is_not_finite_is_named(isa, k):
    table, queries = torch.randn(100, 5), torch.randn(4, 5)
    table[61, 3], table[17, 0] = float("inf"), float("nan")
    with pytest.raises(ValueError, match="candidates: row 17 holds a NaN or an infinity"):
        flat.cpu.topk(queries, table, k)
    queries[2, 1] = float("-inf")
    with pytest.raises(ValueError, match="queries: row 2 holds"):
        flat.cpu.topk(queries, table, k)


@needs_extension
def test_flushed_denormals_change_nothing():
    table = torch.randn(200, 3) * 1e-39
    queries = torch.randn(4, 3) * 1e-39
    expected = reference.topk(queries, table, 5, None, None, "l2")
    torch.set_flush_denormal(True)
    try:
        assert_same(flat.cpu.topk(queries, table, 5, score="l2"), expected)
        assert_same(reference.topk(queries, table, 5, None, None, "l2"), expected)
    finally:
        torch.set_flush_denormal(False)


@needs_extension
def test_workspace_is_bounded():
    """The peak of 2,000 queries on 60,000 rows, where [B, N] would take 480 MB."""
    script = """
        import resource, torch
        from support.flat import cpu
        table, queries = torch.randn(60_000, 32), torch.randn(2_000, 32)
        cpu.topk(queries[:8], table[:2_000], 3)
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = peak()
        cpu.topk(queries, table, 10)
        cpu.topk(queries[:4], table, 20_000)
        cpu.topk(queries[:2], table, 60_000)
        print(peak() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"OMP_NUM_THREADS": "4"},
        check=True,
    )
    assert int(done.stdout) < 64 << 20

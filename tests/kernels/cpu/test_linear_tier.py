"""The linear tier of distances: the same integers as without it, and bounds that are proven."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.views import address, pointers_of
from kgfast.kernels.reference import canonical as reference
from kgfast.kernels.scores import get_score
from support import flat
from support.flat import operands_of
from support.problems import TABLES, Problem, cast, no_known, problems, table_of
from support.sampled import threads

LINEAR, FP16 = (1 << tiers.TIERS.index(name) for name in ("linear", "fp16"))
FORCED = 256  # csrc/host/tiers.h: serve whatever it costs
SERVED = ("l1", "rotate")

pytestmark = pytest.mark.skipif(
    not cpu.is_available() or "linear" not in tiers.available(cpu.isa()),
    reason="this machine or build has no AVX512-VNNI",
)
some = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def allow(monkeypatch):
    """Sets which tiers serve."""
    return lambda mask: monkeypatch.setattr(tiers, "mask", lambda: mask)


def pairs_of(call):
    """(swept, decided, gathered, canonical) of a call, and what it returns."""
    before = cpu.extension.linear_pairs()
    result = call()
    return [b - a for a, b in zip(before, cpu.extension.linear_pairs(), strict=True)], result


def assert_same(problem, allow, *masks):
    """The same counts with tiers and without; what became of pairs with the last of the masks."""
    allow(0)
    pairs, expected = pairs_of(lambda: flat.cpu.rank_counts(*problem.args, **problem.kwargs))
    assert pairs == [0, 0, 0, 0]
    for mask in masks:
        allow(mask)
        pairs, counted = pairs_of(lambda: flat.cpu.rank_counts(*problem.args, **problem.kwargs))
        for a, b in zip(expected, counted, strict=True):
            assert torch.equal(a, b), (problem, mask)
    return pairs


@given(problem=problems())
@some
def test_counts_are_the_same(allow, problem):
    assert_same(problem, allow, LINEAR | FORCED, LINEAR | FP16 | FORCED)


@given(problem=problems(many=True))
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_of_bands_that_overflow_are_the_same(allow, problem):
    assert_same(problem, allow, LINEAR | FORCED)


@given(problem=problems(nonfinite=True))
@some
def test_counts_with_nan_and_infinities_are_the_same(allow, problem):
    assert_same(problem, allow, LINEAR | FORCED, LINEAR | FP16 | FORCED)


def rows_of(kind, rows, width, generator, dtype):
    if kind == "offset":  # features that lie far from each other, and alike rows
        offsets = 10.0 ** torch.randint(-6, 7, (width,), generator=generator).double()
        return offsets * (1 + 1e-3 * torch.randn(rows, width, generator=generator).double())
    return table_of(kind, rows, width, generator, dtype)


@given(
    seed=st.integers(0, 2**31 - 1),
    score=st.sampled_from(SERVED),
    kind=st.sampled_from([*TABLES, "offset"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    dim=st.sampled_from([1, 3, 16, 65, 200, 700]),
)
@example(seed=0, score="rotate", kind="huge", dtype=torch.float32, dim=16)
@example(seed=0, score="l1", kind="subnormal", dtype=torch.float32, dim=65)
@some
def test_no_distance_is_below_its_bound(allow, seed, score, kind, dtype, dim):
    """And the tier serves each of these tables."""
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    pool = rows_of(kind, 205, width, generator, dtype)
    table, queries = cast(pool[:200], dtype), cast(pool[200:], torch.float32)
    operands = operands_of(queries, table, score)
    bounds = torch.empty((5, 200), dtype=torch.float64)
    targets = torch.randint(200, (5,), generator=generator)
    cpu.extension.linear_bounds(
        ("avx512", 1, LINEAR | FORCED),
        pointers_of(operands, None),
        [dim],
        address(targets),
        address(bounds),
    )
    exact = -reference.canonical_scores(queries[:, None], table, operands.score)
    assert bool((bounds <= exact * (1 + 1e-12)).all())
    if kind == "normal" and dim >= 16:  # and it says something
        assert float((bounds / exact).mean()) > 0.4
    problem = Problem((queries, table, targets, *no_known(5), score), {}, kind)
    assert assert_same(problem, allow, LINEAR | FORCED)[0] >= 200  # equal queries are swept once


def large_problem(score, near=0.05, dtype=torch.float32, rows=5000, batch=100, **kwargs):
    """More rows than the tier asks for, and targets that are close to their queries."""
    generator = torch.Generator().manual_seed(1)
    width = 256 * get_score(score).planes
    table = torch.randn(rows, width, generator=generator)
    targets = torch.randint(rows, (batch,), generator=generator)
    queries = table[targets] + near * torch.randn(batch, width, generator=generator)
    return Problem((queries, table.to(dtype), targets, *no_known(batch), score), kwargs, "large")


@pytest.mark.parametrize("score", SERVED)
def test_it_decides_what_is_past_near_targets(allow, score):
    swept, decided, gathered, canonical = assert_same(
        large_problem(score), allow, LINEAR | FP16, LINEAR
    )
    assert swept == 100 * 5000
    assert decided + gathered > 0.99 * swept
    assert canonical <= gathered < 0.05 * swept


def test_targets_among_the_candidates_are_left_to_other_sweeps(allow):
    """Nothing is tried where a mean candidate is no farther than the target."""
    problem = large_problem("rotate", near=1.0)
    args = (*problem.args[:2], problem.args[2].roll(1), *problem.args[3:])
    assert assert_same(Problem(args), allow, LINEAR)[0] == 0


def test_some_queries_are_served(allow):
    """Those of near targets; counts and pairs do not depend on threads."""
    problem = large_problem("rotate", batch=400)
    queries, table, targets, *rest = problem.args
    far = targets.clone()
    far[200:] = far[200:].roll(1)
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(assert_same(Problem((queries, table, far, *rest)), allow, LINEAR))
    assert found[0] == found[1]
    assert 190 * 5000 < found[0][0] < 210 * 5000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_of_tables_are_served(allow, dtype):
    swept, decided, *_ = assert_same(large_problem("rotate", dtype=dtype), allow, LINEAR)
    assert decided > 0.9 * swept > 0


def test_ties_duplicates_biases_and_subsets(allow):
    """Copies of the targets are near, and are not told apart by any bound."""
    problem = large_problem("rotate", near=0.0)
    queries, table, targets, *rest = problem.args
    table[:100] = table[targets]
    bias = torch.linspace(-0.5, 0.5, 5000)
    for kwargs in ({}, {"bias": bias}, {"candidate_ids": torch.arange(4999, 300, -1)}):
        swept, decided, *_ = assert_same(
            Problem((queries, table, targets, *rest), kwargs), allow, LINEAR, LINEAR | FP16
        )
        assert decided > 0.9 * swept > 0


def test_rows_that_do_not_fit_stay_open(allow):
    problem = large_problem("rotate")
    table = problem.args[1]
    table[1:4] *= 1e31
    table[9] = 0.0
    table[[14, 100]] = float("nan")
    table[101] = float("inf")
    swept, decided, gathered, _ = assert_same(
        Problem(problem.args, {"nan_worst": True}), allow, LINEAR | FP16, LINEAR
    )
    assert decided > 0.99 * swept > 0
    assert gathered >= 6 * 100


def test_what_it_does_not_serve(allow):
    """Several crops, float64, l2, products, few candidates."""
    narrow = large_problem("rotate", rows=3900)
    crops = large_problem("rotate", dims=[64, 256])
    wide = large_problem("rotate", dtype=torch.float64)
    for problem in (crops, wide, narrow, large_problem("l2"), large_problem("dot")):
        assert assert_same(problem, allow, LINEAR)[0] == 0

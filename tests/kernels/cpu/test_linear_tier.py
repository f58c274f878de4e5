"""The linear tier of distances: the same integers as without it, and bounds that are proven."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.cpu.panels import PACKING
from kgfast.kernels.cpu.views import address, pointers_of
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.reference import canonical as reference
from kgfast.kernels.scores import get_score
from kgfast.ops import run
from support.engines import ISAS
from support.flat import operands_of
from support.problems import TABLES, Problem, cast, no_known, table_of
from support.sampled import threads
from support.tiers import FORCED, LINEAR, assert_same_counts, needs_tier, pairs_of, serving

SERVED = ("l1", "rotate")

pytestmark = needs_tier("linear")


@pytest.fixture(params=ISAS, autouse=True)
def isa(request, monkeypatch):
    if request.param not in cpu.available_isas():
        pytest.skip(f"this machine or build has no {request.param} kernels")
    monkeypatch.setenv("KGFAST_CPU_ISA", request.param)


some = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],  # emulated
)
# Pairs with the last of the masks are counted as (swept, decided, gathered, canonical).
assert_same = partial(assert_same_counts, counter="linear_pairs")


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
def test_no_distance_is_below_its_bound(seed, score, kind, dtype, dim):
    """And the tier serves each of these tables."""
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    pool = rows_of(kind, 205, width, generator, dtype)
    table, queries = cast(pool[:200], dtype), cast(pool[200:], torch.float32)
    operands = operands_of(queries, table, score)
    bounds = torch.empty((5, 200), dtype=torch.float64)
    targets = torch.randint(200, (5,), generator=generator)
    cpu.extension.linear_bounds(
        (cpu.isa(), 1, LINEAR | FORCED),
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
    assert assert_same(problem, LINEAR | FORCED)[0] >= 200  # equal queries are swept once


def large_problem(score, near=0.05, dtype=torch.float32, rows=5000, batch=100, **kwargs):
    """More rows than the tier asks for, and targets that are close to their queries."""
    generator = torch.Generator().manual_seed(1)
    width = 256 * get_score(score).planes
    table = torch.randn(rows, width, generator=generator)
    targets = torch.randint(rows, (batch,), generator=generator)
    queries = table[targets] + near * torch.randn(batch, width, generator=generator)
    return Problem((queries, table.to(dtype), targets, *no_known(batch), score), kwargs, "large")


@pytest.mark.parametrize("score", SERVED)
def test_it_decides_what_is_past_near_targets(score):
    swept, decided, gathered, canonical = assert_same(large_problem(score), LINEAR)
    assert swept == 100 * 5000
    assert decided + gathered > 0.99 * swept
    assert canonical <= gathered < 0.05 * swept


def test_targets_among_the_candidates_are_left_to_other_sweeps():
    """Nothing is tried where a mean candidate is no farther than the target."""
    problem = large_problem("rotate", near=1.0)
    args = (*problem.args[:2], problem.args[2].roll(1), *problem.args[3:])
    assert assert_same(Problem(args), LINEAR)[0] == 0


def test_some_queries_are_served():
    """Queries are served whose targets are near; counts and pairs do not depend on threads."""
    problem = large_problem("rotate", batch=400)
    queries, table, targets, *rest = problem.args
    far = targets.clone()
    far[200:] = far[200:].roll(1)
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(assert_same(Problem((queries, table, far, *rest)), LINEAR))
    assert found[0] == found[1]
    assert 190 * 5000 < found[0][0] < 210 * 5000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_of_tables_are_served(dtype):
    swept, decided, *_ = assert_same(large_problem("rotate", dtype=dtype), LINEAR)
    assert decided > 0.9 * swept > 0


def test_ties_duplicates_biases_and_subsets():
    """Copies of the targets are near, and are not told apart by any bound."""
    problem = large_problem("rotate", near=0.0)
    queries, table, targets, *rest = problem.args
    table[:100] = table[targets]
    bias = torch.linspace(-0.5, 0.5, 5000)
    for kwargs in ({}, {"bias": bias}, {"candidate_ids": torch.arange(4999, 300, -1)}):
        swept, decided, *_ = assert_same(Problem((queries, table, targets, *rest), kwargs), LINEAR)
        assert decided > 0.9 * swept > 0


def test_rows_that_do_not_fit_stay_open():
    problem = large_problem("rotate")
    table = problem.args[1]
    table[1:4] *= 1e31
    table[9] = 0.0
    table[[14, 100]] = float("nan")
    table[101] = float("inf")
    swept, decided, gathered, _ = assert_same(Problem(problem.args, {"nan_worst": True}), LINEAR)
    assert decided > 0.99 * swept > 0
    assert gathered >= 6 * 100


@pytest.mark.parametrize("score", SERVED)
@pytest.mark.parametrize("forced", [0, FORCED])
def test_it_goes_before_panels_that_are_made_once(score, forced):
    """Panels of an index serve the pairs that the tier leaves open, for few and many queries."""
    queries, table, targets, *_ = large_problem(score).args
    table[1000:1100] = table[targets]  # ties
    plain = Prepared(table, get_score(score), torch.linspace(-0.5, 0.5, 5000))
    own = replace(plain, panels=PACKING.pack(plain))
    assert own.panels.number_format == "float32"
    for count in (1, 33, 100):
        known = Known(torch.arange(count + 1) * 3, (torch.arange(3 * count) * 13) % 5000)

        def counts(candidates, count=count, known=known):
            asked = Operands(queries[:count], candidates), targets[:count], known
            return run.rank_counts(*asked, Checks(deferred=False))

        with serving(0):
            expected = counts(plain)
        with serving(LINEAR | forced):
            (swept, *_), found = pairs_of(lambda call=counts: call(own), "linear_pairs")
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        if forced or count == 100:
            assert swept > 0.9 * count * 5000


@pytest.mark.parametrize("names", ["linear", "all", "none"])
def test_ranks_of_a_model_do_not_depend_on_it(monkeypatch, names):
    """Through rank(), filtered, with an index and without."""
    model = kgfast.RotatE.init(4_200, 3, 64, seed=0).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    limits = torch.tensor([4_200, 3, 4_200])
    triples = (torch.rand(120, 3, generator=generator) * limits).long()
    heads, relations, tails = triples.T
    model.entity[tails] = 1.01 * model.queries(heads, relations, "tail")  # near targets
    known = kgfast.KnownTriples(triples)
    monkeypatch.setenv("KGFAST_TIERS", "none")
    expected = kgfast.rank(model, triples, known=known)
    monkeypatch.setenv("KGFAST_TIERS", names)
    for index in (None, kgfast.Index(model)):
        found = kgfast.rank(model, triples, known=known, index=index)
        assert torch.equal(found.optimistic, expected.optimistic)
        assert torch.equal(found.pessimistic, expected.pessimistic)
        assert found.tiers is not None
        assert (found.tiers.decided.get("linear", 0) > 0) == (names != "none")


def test_what_it_does_not_serve():
    """Several crops, float64, l2, products, few candidates."""
    narrow = large_problem("rotate", rows=3900)
    crops = large_problem("rotate", dims=[64, 256])
    wide = large_problem("rotate", dtype=torch.float64)
    for problem in (crops, wide, narrow, large_problem("l2"), large_problem("dot")):
        assert assert_same(problem, LINEAR)[0] == 0

"""Ranks of every engine: the reference's integers, whatever is ranked and however it is asked."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.reference.rank import target_scores
from kgfast.kernels.scores import get_score
from support import flat
from support.engines import (
    INTERPRETED,
    ISAS,
    LAYERS,
    NAMES,
    SPLIT,
    assert_same,
    engines,
    examples,
    packed,
)
from support.flat import reference
from support.memory import PeakMemory
from support.problems import (
    RSCF_SCORES,
    SCORES,
    Problem,
    factor_of,
    make_problem,
    moving_queries,
    no_known,
)
from support.sampled import threads

SEEDS = st.integers(0, 2**31 - 1)
PLAIN_SCORES = [score for score in SCORES if score != "rotate_interleaved"]  # a layout, no score
SERVED_BY = SCORES, RSCF_SCORES


def check(engine, problem: Problem, *, is_packed: bool = True) -> list[Tensor]:
    """Hold an engine's counts against the reference's, which are returned."""
    expected = reference.rank_counts(*problem.args, **problem.kwargs)
    with packed(is_packed):
        found = engine.rank_counts(*problem.args, **problem.kwargs)
    assert_same(found, expected, problem)
    return expected


@pytest.mark.parametrize("nonfinite", [False, True], ids=["finite", "not finite"])
@engines(*NAMES, SPLIT, quick=True)
@given(seed=SEEDS, layer=st.sampled_from(LAYERS), is_packed=st.booleans())
@examples(40, 3)
def test_counts_equal_the_reference(engine, nonfinite, seed, layer, is_packed):
    problem = make_problem(seed, nonfinite, served=engine.scores)
    check(engine.at(layer), problem, is_packed=is_packed)


@pytest.mark.parametrize("nonfinite", [False, True], ids=["finite", "not finite"])
@engines(*ISAS, "baseline", "triton")
@given(seed=SEEDS, layer=st.sampled_from(LAYERS), is_packed=st.booleans())
@examples(25)
def test_counts_of_moved_queries_equal_the_reference(engine, nonfinite, seed, layer, is_packed):
    """A phase beyond 2^20 has no sine: its score is a NaN, whatever the sweep makes of it."""
    check(engine.at(layer), make_problem(seed, nonfinite, served=RSCF_SCORES), is_packed=is_packed)


@pytest.mark.skipif(INTERPRETED, reason="tens of thousands of rows are too many to interpret")
@given(seed=SEEDS)
@examples(15)
def test_counts_of_bands_that_overflow_equal_the_reference(engine, seed):
    check(engine, make_problem(seed, many=True, served=engine.scores))


# Problems that are hard in one way each: functions of a score.


def rows_of(score: str, rows: int, dim: int, seed: int, grid: float = 0.0, dtype=torch.float32):
    """Random rows; a coarse grid makes ties."""
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    values = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return ((values * grid).round() / grid if grid else values).to(dtype)


def known_ids(batch: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Targets and a CSR in random order, with duplicates, targets and empty rows."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(rows, (batch,), generator=generator)
    counts = torch.randint(0, 6, (batch,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return targets, indptr, torch.randint(rows, (int(indptr[-1]),), generator=generator)


def long_rows(score):
    """Several short accumulators, a tail, tiles that are abandoned."""
    table = rows_of(score, 90, 140, 0)
    targets, *known = known_ids(20, 90)
    queries = table[targets] + 0.1 * rows_of(score, 20, 140, 1)
    return Problem((queries, table, targets, *known, score))


def planes_last(rows: Tensor) -> Tensor:
    """Rows ``[N, D, planes]`` as a table."""
    return rows.transpose(1, 2).reshape(len(rows), -1)


def a_crop_that_is_lost_before_a_wider_one_is_won(score):
    """Make a problem whose first tile is past the narrow crop's limit, not the wide one's."""
    rows = torch.zeros(90, 140, get_score(score).planes)
    rows[:89, :64] = 1.0
    rows[89, 64:] = 1.0  # the target
    table = planes_last(rows)
    queries = torch.full_like(table[:2], -1.0 if score == "dot" else 0.0)
    args = queries, table, torch.tensor([89, 89]), *no_known(2), score
    return Problem(args, {"dims": [64, 140]})


def near_ties(score):
    row = rows_of(score, 1, 70, 0, dtype=torch.float64)
    table = row * (1 + 1e-9 * torch.arange(20.0, dtype=torch.float64)[:, None])
    queries = rows_of(score, 2, 70, 1, dtype=torch.float64)
    return Problem((queries, table, *known_ids(2, 20), score))


def rounding_that_adds_up(score):
    """Equal terms round the same way."""
    steps = torch.arange(0, 60, 2, dtype=torch.int32)[:, None]
    values = (torch.tensor(0.1).view(torch.int32) + steps).view(torch.float32)
    table = values.expand(30, 130 * get_score(score).planes)
    queries = torch.full_like(table[:1], 1.0 if score == "dot" else -0.0)
    return Problem((queries, table, torch.tensor([15]), *no_known(1), score))


def a_sum_that_ties_before_its_end(score):
    rows = torch.zeros(40, 70, get_score(score).planes, dtype=torch.float64)
    rows[:, :64] = 1.0
    rows[1:, 64:] = 1e-10  # after the first look at what can still win
    table = planes_last(rows)
    queries = torch.full_like(table[:2], 1.0 if score == "dot" else 0.0)
    known = torch.tensor([0, 3, 3]), torch.tensor([1, 2, 3])
    return Problem((queries, table, torch.tensor([0, 0]), *known, score))


def overflow_in_float32(score):
    """Make scores that overflow float32, where the sweep decides nothing."""
    table = torch.full((40, 3 * get_score(score).planes), 1e20)
    table[5] = 1e25
    queries = torch.full_like(table[:1], -1.0 if score == "dot" else 0.0)
    return Problem((queries, table, torch.tensor([5]), *no_known(1), score))


def denormals(dtype):
    def problem(score):
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        scale = smallest * (2.0**40 if score == "dot" else 1.0)
        table = (rows_of(score, 30, 2, 0, 1.0, torch.float64) * smallest).to(dtype)
        queries = (rows_of(score, 3, 2, 1, 1.0, torch.float64) * scale).float()
        return Problem((queries, table, *known_ids(3, 30), score), {"bias": table[:, 0]})

    return problem


def rows_that_lie_on_each_other(score):
    width = 3 * get_score(score).planes
    table = rows_of(score, 1, 3, 0).expand(50, width)
    queries = rows_of(score, 1, 3, 1)[:, :1].expand(3, width)
    return Problem((queries, table, *known_ids(3, 50), score))


def a_bias_that_decides(score):
    """Make rows that are alike, so that the bias decides."""
    table = torch.ones(40, 3 * get_score(score).planes)
    options = {"bias": torch.arange(40.0) * 2.0**-20}
    return Problem((torch.zeros_like(table[:2]), table, *known_ids(2, 40), score), options)


def crops_of_a_subset(score):
    """Crops end within a step of features; the bound needs norms of float64 rows."""
    dtype = torch.float64 if score in ("l1", "rotate") else torch.float16
    table = rows_of(score, 40, 70, 0, 4.0, dtype)
    queries = rows_of(score, 5, 70, 1, 4.0, torch.promote_types(dtype, torch.float32))
    ids = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:30]
    options = {"dims": [3, 66, 70], "candidate_ids": ids, "bias": torch.linspace(-1, 1, 40)}
    return Problem((queries, table, *known_ids(5, 40), score), options)


def more_queries_than_a_tile_has(score):
    table, queries = rows_of(score, 300, 2, 0, 2.0), rows_of(score, 260, 2, 1, 2.0)
    indptr = torch.cat([torch.zeros(200, dtype=torch.int64), torch.full((61,), 20)])
    args = queries, table, known_ids(260, 300)[0], indptr, torch.arange(20), score
    return Problem(args)


def queries_that_are_flushed(score):
    """Sweeps take subnormal numbers for 0; times large numbers they make scores."""
    width = 2 * get_score(score).planes
    table = (65504.0 * (torch.arange(width) % 2)).expand(20, width)
    queries = 1e-38 * torch.tensor([[-1.0, 1.0]]).repeat(1, width // 2)
    return Problem((queries, table, torch.tensor([3]), *no_known(1), score))


HARD = {
    it.__name__: it
    for it in (
        *(long_rows, a_crop_that_is_lost_before_a_wider_one_is_won),
        *(near_ties, rounding_that_adds_up, a_sum_that_ties_before_its_end, overflow_in_float32),
        *(rows_that_lie_on_each_other, a_bias_that_decides, crops_of_a_subset),
        *(more_queries_than_a_tile_has, queries_that_are_flushed),
    )
}
HARD |= {f"denormals {it}": denormals(it) for it in (torch.float16, torch.bfloat16, torch.float32)}


@pytest.mark.parametrize("name", HARD)
@engines(*NAMES, SPLIT, scores=PLAIN_SCORES)
def test_hard_problems(engine, score, name):
    problem = HARD[name](score)
    check(engine, problem)
    if engine.is_triton and len(problem.args[0]) <= 16:
        check(engine, problem, is_packed=False)


# Ranks are the same however the work is divided.


@engines(*ISAS, "baseline", "int8", scores=SCORES)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("consumer", ["rank_counts", "topk"])
def test_results_do_not_depend_on_threads_or_batches(engine, score, count, consumer):
    generator = torch.Generator().manual_seed(1)
    table = torch.randint(-3, 4, (700, 140), generator=generator).float()
    queries = torch.randint(-3, 4, (37, 140), generator=generator).float()
    targets = torch.randint(700, (37,), generator=generator)

    def found(of, rows):
        known = no_known(len(queries[rows]))
        asked = targets[rows] if consumer == "rank_counts" else 12
        return getattr(of, consumer)(queries[rows], table, asked, *known, score)

    expected = found(reference, slice(None))
    with threads(count):
        whole = found(engine, slice(None))
        parts = [found(engine, slice(first, first + 5)) for first in range(0, 37, 5)]
    assert_same(whole, expected)
    assert_same([torch.cat(column) for column in zip(*parts, strict=True)], expected)


def check_blocks(engine, problem: Problem, cuts: int) -> None:
    """Cut the table ``cuts`` times: counts of the blocks sum to those of the whole."""
    queries, table, targets, indptr, indices, score = problem.args
    options = problem.kwargs.copy()
    nan_worst = options.pop("nan_worst")
    checks = Checks(deferred=False, allows_nan=nan_worst)
    scores = target_scores(flat.operands_of(queries, table, score, **options), targets, checks)
    expected = torch.stack(reference.rank_counts(*problem.args, **problem.kwargs))
    count, rows = len(table), torch.repeat_interleave(indptr.diff())
    ends = [0, *sorted(round(count * i / (cuts + 1)) for i in range(1, cuts + 1)), count]
    total = torch.zeros_like(expected)
    for first, last in pairwise(ends):
        own = options.copy()
        for name in ("bias", "factor"):
            if own.get(name) is not None and len(own[name]) == count:
                own[name] = own[name][first:last]
        if own.get("candidate_ids") is not None:
            ids = own["candidate_ids"]
            own["candidate_ids"] = ids[(ids >= first) & (ids < last)] - first
        is_here = (indices >= first) & (indices < last)
        known = torch.zeros_like(indptr)
        known[1:] = torch.zeros_like(targets).index_add(0, rows, is_here.long()).cumsum(0)
        if first == last:
            continue
        here = torch.where((targets >= first) & (targets < last), targets - first, -1)
        tensors = (queries, table[first:last], here, known, indices[is_here] - first)
        counted = engine.rank_counts(
            *tensors, score, nan_worst=nan_worst, target_scores=scores, **own
        )
        total += torch.stack(counted)
    assert torch.equal(total, expected)


@engines("reference", *ISAS, "triton")
@given(seed=SEEDS, kind=st.sampled_from(["plain", "not finite", "rscf"]), cuts=st.integers(0, 3))
@examples(20, 3)
def test_blocks_against_given_targets_sum_to_the_whole(engine, seed, kind, cuts):
    problem = make_problem(seed, kind == "not finite", served=SERVED_BY[kind == "rscf"])
    with packed(seed % 2 == 0):
        check_blocks(engine, problem, cuts)


@engines("reference", *ISAS, "triton", quick=True)
def test_given_targets_decide(engine):
    """Not the scores of their rows; a NaN ranks below all; queries are checked all the same."""
    table = torch.tensor([[1.0], [2.0], [3.0]])
    options = {"target_scores": torch.tensor([[2.0]], dtype=torch.float64)}
    args = torch.ones(1, 1), table, torch.tensor([0]), *no_known(1), "dot"
    assert [int(part) for part in engine.rank_counts(*args, **options)[:2]] == [1, 1]
    table, queries = rows_of("dot", 7, 4, 0), rows_of("dot", 2, 4, 1)
    options = {"target_scores": torch.tensor([[torch.nan, 0.0]], dtype=torch.float64)}
    args = queries, table, torch.tensor([-1, -1]), *no_known(2), "dot"
    greater = engine.rank_counts(*args, **options)[0]
    assert greater.tolist() == [7, int((queries[1].double() @ table.double().T > 0).sum())]
    queries[1, 3] = torch.inf
    for is_packed in (True, False):
        with packed(is_packed), pytest.raises(ValueError, match="queries: row 1"):
            engine.rank_counts(*args, target_scores=torch.zeros(1, 2, dtype=torch.float64))


MOST = float(torch.finfo(torch.float32).max)


@engines(*ISAS, "int8")
def test_a_product_that_overflows_decides_nothing(engine):
    """Near copies of a row whose squared length is the largest float32 number."""
    generator = torch.Generator().manual_seed(1)
    row = torch.randn(64, generator=generator, dtype=torch.float64)
    row *= (MOST / float(row @ row)) ** 0.5
    noise = torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    table = (row.float().double() * (1 + 2e-8 * noise)).float()
    at = torch.randint(0, 64, (2000,), generator=generator)
    table[range(2000), at] *= 1 + 6e-8 * torch.randn(2000, generator=generator)
    queries = torch.cat([row.float()[None], torch.randn(63, 64, generator=generator)])
    targets = (table.double() @ queries[0].double()).argmax().repeat(64)
    args = queries, table, targets, *no_known(64), "dot"
    assert_same(engine.rank_counts(*args), reference.rank_counts(*args))


@engines(*ISAS, "triton")
def test_a_bias_that_makes_a_cost_overflow_decides_nothing(engine):
    generator = torch.Generator().manual_seed(11)
    queries = torch.rand(8, 64, generator=generator) * 2e36
    rows = torch.cat([torch.rand(1, 64, generator=generator) * -1.2e36, queries[:1]])
    distance = float((queries[0].double() - rows[0].double()).abs().sum())
    bias = float(torch.tensor(distance - MOST * (1 - 2e-8)))
    target = -(distance - bias + MOST) / 2  # above the other's score
    options = {"bias": torch.tensor([bias, target], dtype=torch.float64)}
    args = queries, rows, torch.ones(8, dtype=torch.int64), *no_known(8), "l1"
    assert_same(engine.rank_counts(*args, **options), reference.rank_counts(*args, **options))


def clustered_problem(score, dtype, dim, rows, batch, has_factor=False) -> Problem:
    """Clusters, identical rows among them; queries near a target, which abandon most of a table."""
    generator = torch.Generator().manual_seed(dim)
    facts = get_score(score)
    width = dim * facts.planes
    centres = torch.randn(6, width, generator=generator, dtype=torch.float64)
    table = centres[torch.randint(6, (rows,), generator=generator)]
    table = table + 0.1 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    factor = factor_of("unit", rows, dim, generator) if has_factor else None
    for it in (table, factor):
        if it is not None:
            it[rows // 2 :] = it[: rows - rows // 2]
    targets = torch.randint(rows, (batch,), generator=generator)
    noise = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64).repeat(batch)[:batch, None]
    queries = table[targets] + scale * noise
    if facts.is_rscf:
        queries = moving_queries(score, has_factor, queries, 3.0, generator)
    known = torch.arange(batch + 1) * 3, torch.arange(3 * batch) * 7 % rows
    options = {} if factor is None else {"factor": factor.to(dtype)}
    query_dtype = torch.promote_types(dtype, torch.float32)
    return Problem((queries.to(query_dtype), table.to(dtype), targets, *known, score), options)


CROPS = [
    *((score, dtype, False) for score in SCORES
      for dtype in (torch.float32, torch.float64, torch.bfloat16)),
    *((score, torch.float32, has) for score in RSCF_SCORES for has in (True, False)),
]  # fmt: skip


@cache  # the specification takes as long as all engines
def problem_of_crops(score, dtype, has_factor):
    problem = clustered_problem(score, dtype, 200, 300, 21, has_factor)
    dims = [7, 64, 65, 128, 130, 200]
    return problem, dims, reference.rank_counts(*problem.args, **problem.kwargs, dims=dims)


@engines(*ISAS, "baseline")
@pytest.mark.parametrize(("score", "dtype", "has_factor"), CROPS, ids=str)
def test_crops_of_one_sweep_equal_those_alone(engine, score, dtype, has_factor):
    """At ends that blocks of 64 do not share; ties; abandoned tiles."""
    problem, dims, expected = problem_of_crops(score, dtype, has_factor)
    nested = engine.rank_counts(*problem.args, **problem.kwargs, dims=dims)
    for place, dim in enumerate(dims):
        alone = engine.rank_counts(*problem.args, **problem.kwargs, dims=[dim])
        assert_same([it[place] for it in nested], [it[0] for it in alone])
    assert_same(nested, expected)


@cache  # the specification, feature by feature, takes seconds
def wide_problem(score, dtype, dims):
    has_factor = get_score(score).is_rscf
    dim = max(dims or [10_000 // get_score(score).planes])
    problem = clustered_problem(score, dtype, dim, 70, 9, has_factor)
    if has_factor:
        problem.args[0][0, -dim // 2 :] *= 1_000  # angles of all sizes
    problem.kwargs |= {"dims": dims} if dims else {}
    return problem, *ranks_and_best(reference, problem)


def ranks_and_best(engine, problem):
    queries, table, _, *known = problem.args
    best = engine.topk(queries, table, 3, *known, **problem.kwargs)
    return engine.rank_counts(*problem.args, **problem.kwargs), best


SLOW = pytest.mark.slow
WIDE = [
    *(pytest.param(score, dtype, None,
                   marks=[SLOW] if dtype == torch.float64 or score == "l2" else [])
      for score in ("dot", "l2", "rotate") for dtype in (torch.float32, torch.float64)),
    *(pytest.param(score, dtype, (100, 2_500, 4_096, 5_000),
                   marks=[SLOW] if dtype == torch.float64 or score == "rotate" else [])
      for score in ("dot", "l2", "rotate") for dtype in (torch.float32, torch.float64)),
    *(pytest.param(score, torch.float32, (2_900, 3_000), marks=SLOW)
      for score in ("rscf_rotate", "rscf_l2")),
]  # fmt: skip


@engines(*ISAS, "baseline", "panels")
@pytest.mark.parametrize(("score", "dtype", "dims"), WIDE, ids=str)
def test_rows_too_wide_for_one_panel(engine, score, dtype, dims):
    """Features in several blocks; float64 has norms, which are known only at the end."""
    problem, *expected = wide_problem(score, dtype, dims)
    for found, wanted in zip(ranks_and_best(engine, problem), expected, strict=True):
        assert_same(found, wanted)


# Numbers.


@engines(*ISAS, "baseline", "int8", scores=[*SCORES, *RSCF_SCORES])
def test_a_table_of_identical_rows_overflows_the_band(engine, score):
    facts = get_score(score)
    table = torch.randn(1, 6 * facts.planes).repeat(3_000, 1)  # 60,000 open pairs, 8,192 fit
    queries = torch.randn(20, 6 * facts.query_planes(facts.is_rscf))
    options = {"factor": torch.randn(1, 6).repeat(3_000, 1)} if facts.is_rscf else {}
    args = queries, table, torch.arange(20), *no_known(20), score
    greater, equal, *_ = engine.rank_counts(*args, **options)
    assert greater.tolist() == [0] * 20
    assert equal.tolist() == [2_999] * 20


def test_a_phase_without_a_sine_is_a_nan_even_where_it_hardly_matters(engine):
    """The sweep's own sine is finite there, and the feature too small to keep the pair open."""
    table, queries = rows_of("l1", 70, 4, 0), torch.ones(3, 10)
    queries[:, :8:2] = 1e-6
    factor = torch.ones(70, 2)
    factor[::3, 0] = 2.0**20 + 2
    args = (queries, table, torch.tensor([1, 2, 3]), *no_known(3), "rscf_rotate")
    expected = check(engine, Problem(args, {"factor": factor, "nan_worst": True}))
    assert 0 < int(expected[0][0]) < 69


@engines(*ISAS, "baseline", scores=RSCF_SCORES)
@pytest.mark.parametrize("size", [1e-39, 1e37], ids=["tiny scales", "huge scales"])
@pytest.mark.parametrize("has_factor", [True, False], ids=["factor", "no factor"])
def test_products_of_flushed_numbers_decide_nothing(engine, score, size, has_factor):
    """A sweep flushes denormals; what they are multiplied by may be huge."""
    planes, generator = get_score(score).planes, torch.Generator().manual_seed(0)
    table = torch.rand(300, 3 * planes, generator=generator) * (0.01 / size)
    queries = torch.zeros(4, 3 * (2 * planes + has_factor))
    queries[:, 3 * planes : 6 * planes] = size
    factor = 1 + torch.rand(300, 3, generator=generator) if has_factor else None
    args = (queries, table, torch.arange(4), *no_known(4), score)
    expected = check(engine, Problem(args, {"factor": factor}))
    assert 0 < int(expected[0].sum()) < 4 * 299


def test_queries_that_differ_in_one_plane_are_not_merged(engine):
    table, queries = rows_of("l1", 200, 16, 0), rows_of("l1", 1, 40, 1).repeat(6, 1)
    for plane in range(5):
        queries[plane + 1, 8 * plane] += 2.0
    args = (queries, table, torch.full((6,), 7), *no_known(6), "rscf_rotate")
    expected = check(engine, Problem(args, {"factor": 1 + rows_of("l1", 200, 8, 2)}))
    assert len(set(expected[0].tolist())) > 3


# Bad input.


@engines("reference", *ISAS, "baseline", "triton")
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_numbers_that_are_not_finite_are_named(engine, dtype, value, is_packed):
    """The first row that takes part: not one of another subset, nor beyond a crop."""
    none, targets = no_known(3), torch.tensor([0, 1, 2])
    table, queries = torch.ones(9, 4, dtype=dtype), torch.ones(3, 4)
    queries = queries.to(torch.promote_types(dtype, torch.float32))
    bad, bad_query = table.clone(), queries.clone()
    bad[7, 3] = bad[8, 0] = bad_query[1, 2] = value
    subset = {"candidate_ids": torch.tensor([0, 3])}
    with packed(is_packed):
        with pytest.raises(ValueError, match="queries: row 1 holds a NaN or an infinity"):
            engine.rank_counts(bad_query, bad, targets, *none, "rotate")
        with pytest.raises(ValueError, match="candidates: row 7 holds a NaN or an infinity"):
            engine.rank_counts(queries, bad, targets, *none, "rotate")
        engine.rank_counts(queries, bad, targets, *none, "rotate", **subset)
        with pytest.raises(ValueError, match="candidates: row 7 holds"):  # a target outside it
            engine.rank_counts(queries, bad, targets + 5, *none, "rotate", **subset)
        engine.rank_counts(queries, bad, targets, *none, "rotate", dims=[1], **subset)


@engines("reference", *ISAS, "baseline", "triton", scores=RSCF_SCORES)
@pytest.mark.parametrize("consumer", ["rank_counts", "topk"])
def test_numbers_of_moved_queries_that_are_not_finite_are_named(engine, score, consumer):
    """The sine of an angle that is clamped first would hide them."""
    facts = get_score(score)
    for place, name in enumerate(("queries", "candidates", "factor")):
        shapes = (5, 4 * facts.query_planes(True)), (40, 4 * facts.planes), (40, 4)
        given = [rows_of("l1", *shape, seed) for seed, shape in enumerate(shapes)]
        for column in (-1, 2):
            given[place][3, column] = torch.inf
            queries, table, factor = given
            ends = (torch.zeros(5, dtype=torch.int64), *no_known(5), score)
            args = ends if consumer == "rank_counts" else (3, None, None, score)
            with pytest.raises(ValueError, match=f"{name}: row 3 holds a NaN or an infinity"):
                getattr(engine, consumer)(queries, table, *args, factor=factor)
            given[place][3, column] = 1.0
        given[place][3, -1] = torch.inf  # beyond the crop
        if name == "factor":
            getattr(engine, consumer)(*given[:2], *args, factor=given[2], dims=[2])


BAD_IDS = [
    {"targets": [0, 9, 1]},
    {"targets": [-(2**62), 0, 1]},
    {"indices": [3, -1, 2]},
    {"indices": [3, 2**40, 2]},
    {"indptr": [0, 1, 2, 2]},
    {"indptr": [1, 1, 2, 3]},
    {"indptr": [0, 3, 1, 3]},
    {"indptr": [0, 2**40, 3, 3]},
    {"candidate_ids": [0, 9]},
    {"candidate_ids": [5, 0, 5]},
    {"candidate_ids": [0, 0, 9]},
    {"bias": [0.0] * 8 + [float("nan")]},
    {"targets": [0, 9, 1], "indices": [3, -1, 2]},
    {"queries": 1},
    {"candidates": 4},
    {"queries": 2, "bias": [float("inf")]},
]


@pytest.mark.parametrize("bad", BAD_IDS, ids=str)
@pytest.mark.parametrize("dims", [None, [1, 2]])
@engines(*ISAS, "triton")
def test_errors_are_those_of_the_reference(engine, bad, dims):
    """Also where checks wait until the device is read anyway."""
    queries, table = torch.zeros(3, 4), torch.ones(9, 4)
    if "queries" in bad:
        queries[bad["queries"], 0] = torch.nan
    if "candidates" in bad:
        table[bad["candidates"], 2] = torch.inf
    arguments = [
        queries,
        table,
        torch.tensor(bad.get("targets", [0, 1, 2])),
        torch.tensor(bad.get("indptr", [0, 1, 1, 3])),
        torch.tensor(bad.get("indices", [3, 1, 4])),
    ]
    options = {name: torch.tensor(bad[name]) for name in ("bias", "candidate_ids") if name in bad}
    with ops.use_backend("reference"), pytest.raises(ValueError, match=r"\w") as expected:
        ops.rank_counts(*arguments, "rotate", dims=dims, **options)
    with pytest.raises(ValueError, match=r"\w") as found:
        engine.at("operator").rank_counts(*arguments, "rotate", dims=dims, **options)
    assert str(found.value) == str(expected.value)


@engines("reference", *ISAS, "baseline", "triton", quick=True)
def test_nothing_to_rank(engine):
    """No queries, an empty subset, which has nobody better, though a target is a NaN; no rows."""
    engine, empty = engine.at("operator"), torch.empty(0, dtype=torch.int64)
    counts = engine.rank_counts(torch.empty(0, 4), torch.ones(5, 4), empty, *no_known(0), "dot")
    assert [len(it) for it in counts] == [0, 0, 0, 0]
    table, ids = torch.ones(9, 4), torch.arange(3)
    table[1, 0] = torch.nan  # a target's
    known = torch.tensor([0, 2, 3, 3]), ids + 2
    for dims in (None, [1, 2]):
        options = {"candidate_ids": empty, "dims": dims, "nan_worst": True}
        counts = engine.rank_counts(table[:3], table, ids, *known, "rotate", **options)
        assert torch.stack(counts).count_nonzero() == 0
        scores, best = engine.topk(table[:3], table, 2, *known, score="rotate", **options)
        assert bool((scores == -torch.inf).all() and (best == -1).all())
    with pytest.raises(ValueError, match="the table has no rows"):
        engine.rank_counts(table[:1], table[:0], ids[:1], *no_known(1), "rotate")


# The CPU alone.


@engines(*ISAS, "baseline")
@pytest.mark.parametrize("consumer", ["rank_counts", "topk"])
def test_offsets_beyond_two_to_the_31(engine, consumer):
    """Rows more than 2^31 elements apart, in an allocation of which few pages are touched."""
    stride = 1 << 21
    table = torch.empty(stride * 1_100, dtype=torch.float16).as_strided((1_100, 4), (stride, 1))
    table[:] = torch.randn(1_100, 4).half()
    queries, targets = torch.randn(3, 4), torch.tensor([0, 1_099, 7])
    for k in (2, 1_100):
        ends = (targets, *no_known(3)) if consumer == "rank_counts" else (k, None, None)
        expected = getattr(reference, consumer)(queries, table.clone(), *ends, "rotate")
        assert_same(getattr(engine, consumer)(queries, table, *ends, "rotate"), expected)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_peak_memory_beyond_the_inputs():
    for batch, rows, width in ((4096, 500, 1_024), (64, 200_000, 64)):
        table, queries = torch.randn(rows, width), torch.randn(batch, width)
        targets = torch.arange(batch) % rows
        few = queries[:2], table[:100], targets[:2] * 0
        with threads(2):
            flat.cpu.rank_counts(*few, *no_known(2), "rotate")
            with PeakMemory("cpu") as peak:
                flat.cpu.rank_counts(queries, table, targets, *no_known(batch), "rotate")
        assert peak.bytes <= 64 << 20

"""The rscf scores on the CPU against the specification: ranks, top-k, the bound of the sweep."""

import random
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.scores import get_score
from support import flat
from support.flat import reference
from support.problems import (
    DIMS,
    DTYPES,
    QUERIES,
    ROWS,
    RSCF_SCORES,
    Problem,
    cast,
    no_known,
    strided,
    table_of,
)
from support.sweeps import sweep_errors

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")

KINDS = ("normal", "grid", "tiny", "huge", "same", "close", "zero", "lognormal")
SPREADS = ("unit", "wild", "one", "zero", "doubles")
SCALES = (0.3, 3.0, 40.0, 1e4)
per_isa = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def factor_of(kind: str, rows: int, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Rows ``b``: 1 plus a unit vector as a model makes them, or what no model makes."""
    values = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    if kind == "unit":
        return 1 + values / values.norm(dim=1, keepdim=True)
    if kind == "wild":  # negative entries, angles beyond half a turn
        return 3 * values
    if kind == "doubles":  # integers, so that pairs tie
        return values.round()
    return torch.full((rows, dim), float(kind == "one"), dtype=torch.float64)


def queries_of(score, has_factor, anchors, dim, scale, generator) -> torch.Tensor:
    """Rows ``[q | w | a]``: a query near an anchor, a scale with zeros, a phase of some size."""
    planes = get_score(score).planes
    batch = len(anchors)
    scales = torch.randn(batch, planes * dim, generator=generator, dtype=torch.float64)
    scales = torch.where(scales.abs() < 0.2, 0.0, 1 + 0.2 * scales)
    parts = [anchors, scales]
    if has_factor:
        parts.append(scale * torch.rand(batch, dim, generator=generator, dtype=torch.float64))
    return torch.cat(parts, 1)


def make_problem(seed: int, nonfinite: bool = False) -> Problem:
    """One random problem; its factor is among the keywords."""
    pick = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    score, kind, dtype = pick.choice(RSCF_SCORES), pick.choice(KINDS), pick.choice(DTYPES)
    dim, rows, batch = pick.choice(DIMS), pick.choice(ROWS), pick.choice(QUERIES)
    spread, scale = pick.choice(SPREADS), pick.choice(SCALES)
    has_factor = pick.random() < 0.7
    width = dim * get_score(score).planes
    table = cast(table_of(kind, rows, width, generator), dtype)
    anchors = table[torch.randint(rows, (batch,), generator=generator)].double()
    query_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    queries = cast(queries_of(score, has_factor, anchors, dim, scale, generator), query_dtype)
    kwargs = {"nan_worst": nonfinite}
    if has_factor:
        factor = cast(factor_of(spread, rows, dim, generator), pick.choice(DTYPES))
        kwargs["factor"] = strided(factor, pick.choice(["plain", "rows", "columns"]))
    if nonfinite:
        bad = pick.choice([float("nan"), float("inf"), 1e30])  # 1e30: a phase without a sine
        for operand in (table, queries, kwargs.get("factor")):
            if operand is not None and pick.random() < 0.5:
                row, column = pick.randrange(len(operand)), pick.randrange(operand.shape[1])
                operand[row, column] = bad
    targets = torch.randint(rows, (batch,), generator=generator)
    lengths = torch.randint(0, 6, (batch,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(rows, (int(indptr[-1]),), generator=generator)
    if pick.random() < 0.4:
        kwargs["bias"] = torch.randn(rows, generator=generator) * 10.0 ** pick.randint(-8, 3)
    if pick.random() < 0.3:
        kwargs["candidate_ids"] = torch.randperm(rows, generator=generator)[: pick.randint(1, rows)]
    if pick.random() < 0.5:
        kwargs["dims"] = [pick.randint(1, dim) for _ in range(3)]
    note = f"{seed=} {score} {kind} {dtype} {spread} {scale} {dim=} {rows=} {sorted(kwargs)}"
    table = strided(table, pick.choice(["plain", "rows", "columns"]))
    return Problem((queries, table, targets, indptr, indices, score), kwargs, note)


def problems(nonfinite: bool = False) -> st.SearchStrategy[Problem]:
    return st.integers(0, 2**31 - 1).map(lambda seed: make_problem(seed, nonfinite))


def assert_same_counts(problem: Problem) -> None:
    expected = reference.rank_counts(*problem.args, **problem.kwargs)
    counted = flat.cpu.rank_counts(*problem.args, **problem.kwargs)
    assert torch.equal(torch.stack(counted), torch.stack(expected)), problem


@given(problem=problems())
@per_isa
def test_counts_equal_the_reference(isa, problem):
    assert_same_counts(problem)


@given(problem=problems(nonfinite=True))
@per_isa
def test_counts_with_what_is_not_finite_equal_the_reference(isa, problem):
    """A phase beyond 2^20 has no sine: its score is a NaN, whatever the sweep makes of it."""
    assert_same_counts(problem)


@given(problem=st.booleans().flatmap(problems), k=st.sampled_from([1, 3, 31, 300]))
@per_isa
def test_topk_equals_the_reference(isa, problem, k):
    """Scores to the last bit: float64 queries bring canonical ones."""
    queries, table, _, indptr, indices, score = problem.args
    args = (queries, table, k, indptr, indices, score)
    expected = reference.topk(*args, **problem.kwargs)
    found = flat.cpu.topk(*args, **problem.kwargs)
    assert torch.equal(found[1], expected[1]), problem
    assert torch.equal(found[0].nan_to_num(7.0), expected[0].nan_to_num(7.0)), problem


@pytest.mark.parametrize("dim", [1, 3])
def test_sines_are_those_of_the_reference(isa, dim):
    """Phases of every size up to 2^20, many at multiples of a right angle."""
    generator = torch.Generator().manual_seed(dim)
    rows = 2_000
    exponents = 20 * torch.rand(rows, dim, generator=generator, dtype=torch.float64)
    phases = 2**exponents * torch.randn(rows, dim, generator=generator, dtype=torch.float64).sign()
    right = torch.randint(-90, 90, (rows // 2, dim), generator=generator) * (torch.pi / 2)
    phases[: rows // 2] = right + 1e-9 * phases[: rows // 2].sign()
    table = torch.randn(rows, 2 * dim, generator=generator, dtype=torch.float64)
    queries = torch.randn(1, 5 * dim, generator=generator, dtype=torch.float64)
    queries[:, 4 * dim :] = 1.0
    for k in (rows, 5):
        found = flat.cpu.topk(queries, table, k, score="rscf_rotate", factor=phases)
        expected = reference.topk(queries, table, k, score="rscf_rotate", factor=phases)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def clustered_problem(score, has_factor, dim, rows, batch):
    """Clusters with identical rows; each query is its target turned, shifted and scaled, nearly."""
    generator = torch.Generator().manual_seed(dim)
    planes = get_score(score).planes
    centres = torch.randn(6, planes * dim, generator=generator, dtype=torch.float64)
    table = centres[torch.randint(6, (rows,), generator=generator)]
    table = table + 0.1 * torch.randn(rows, planes * dim, generator=generator, dtype=torch.float64)
    factor = factor_of("unit", rows, dim, generator)
    table[rows // 2 :] = table[: rows - rows // 2]
    factor[rows // 2 :] = factor[: rows - rows // 2]
    targets = torch.randint(rows, (batch,), generator=generator)
    queries = queries_of(score, has_factor, table[targets], dim, 3.0, generator)
    target, w = table[targets], queries[:, planes * dim : 2 * planes * dim]
    goal = (w * target).unflatten(1, (planes, dim))
    if has_factor:
        shift = queries[:, -dim:] * factor[targets]
        if planes == 1:
            goal = goal - shift[:, None]
        else:
            goal = torch.view_as_real(
                torch.complex(goal[:, 0], goal[:, 1]) * torch.polar(torch.ones(()).double(), -shift)
            ).movedim(-1, 1)
    noise = torch.randn(batch, planes * dim, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64).repeat(batch)[:batch, None]
    queries[:, : planes * dim] = goal.flatten(1) + scale * noise
    return queries.float(), table.float(), targets, factor.float() if has_factor else None


@pytest.mark.parametrize("score", RSCF_SCORES)
@pytest.mark.parametrize("has_factor", [True, False], ids=["factor", "no factor"])
def test_crops_of_one_sweep_equal_those_alone(isa, score, has_factor):
    """On a table that is mostly abandoned, with ties; in any order, at ends that blocks lack."""
    queries, table, targets, factor = clustered_problem(score, has_factor, 200, 300, 21)
    dims = [130, 7, 64, 200, 130, 65]
    known = torch.arange(22) * 3, torch.arange(63) * 7 % 300
    args = (queries, table, targets, *known, score)
    nested = torch.stack(flat.cpu.rank_counts(*args, factor=factor, dims=dims), 1)
    alone = [
        torch.stack(flat.cpu.rank_counts(*args, factor=factor, dims=[dim]), 1)[0] for dim in dims
    ]
    assert torch.equal(nested, torch.stack(alone))
    assert torch.equal(
        nested, torch.stack(reference.rank_counts(*args, factor=factor, dims=dims), 1)
    )
    assert int(nested[3, 0].median()) < 20  # the queries do find their targets


@given(
    seed=st.integers(0, 2**31 - 1),
    score=st.sampled_from(RSCF_SCORES),
    kind=st.sampled_from([*KINDS, "cauchy"]),
    spread=st.sampled_from([None, *SPREADS]),
    scale=st.sampled_from([0.1, 0.9, *SCALES, 1e5]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    dim=st.sampled_from([1, 2, 16, 65, 200]),
)
@example(0, "rscf_rotate", "normal", "unit", 0.9, torch.float32, 200)
@example(0, "rscf_rotate", "zero", "wild", 40.0, torch.float32, 65)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_error_bound_is_never_exceeded(isa, seed, score, kind, spread, scale, dtype, dim):
    generator = torch.Generator().manual_seed(seed)
    values = table_of(kind, 69, dim * get_score(score).planes, generator)
    table = cast(values[:64], dtype)
    factor = None if spread is None else cast(factor_of(spread, 64, dim, generator), dtype)
    queries = queries_of(score, spread is not None, values[64:], dim, scale, generator)
    queries = cast(queries, torch.float64 if dtype == torch.float64 else torch.float32)
    widths = sorted({max(1, dim * crop // 200) for crop in (30, 128, 200)})
    values, exact, bounds = sweep_errors(isa, queries, table, score, widths, factor)
    decided = values.isfinite() & bounds.isfinite()
    assert bool(((values - exact).abs() <= bounds)[decided].all())


@pytest.mark.parametrize("score", RSCF_SCORES)
@pytest.mark.parametrize("spread", [None, "unit", "wild"])
def test_the_error_bound_says_something(isa, score, spread):
    """Two pairs in a hundred may stay open."""
    generator = torch.Generator().manual_seed(5)
    values = table_of("normal", 260, 128 * get_score(score).planes, generator).float()
    factor = None if spread is None else factor_of(spread, 256, 128, generator).float()
    queries = queries_of(score, spread is not None, values[256:], 128, 6.0, generator).float()
    values, exact, bounds = sweep_errors(isa, queries, values[:256], score, [128], factor)
    open_pairs = (exact - exact.median()).abs() <= bounds
    assert bool(values.isfinite().all())
    assert float(open_pairs.double().mean()) < 0.02


def test_the_bound_is_nearly_reached_by_small_angles(isa):
    """The polynomials' error is what the bound says it is, within a factor of two."""
    angles = torch.linspace(-0.9, 0.9, 4_001)[:, None]
    queries = torch.tensor([[1.0, 0.0, 1.0, 1.0, 1.0]])
    # Distances of 0.01: the error of a square root, in proportion to it, says nothing.
    table = torch.cat([angles.cos(), angles.sin()], 1) * 1.01
    values, exact, bounds = sweep_errors(isa, queries, table, "rscf_rotate", [1], angles + 1)
    ratio = ((values - exact).abs() / bounds).max()
    assert 0.3 < float(ratio) <= 1.0


def test_a_phase_without_a_sine_is_a_nan_even_where_it_hardly_matters(isa):
    """The sweep's own sine is finite there, and the feature too small to keep the pair open."""
    generator = torch.Generator().manual_seed(0)
    table, queries = torch.randn(200, 4, generator=generator), torch.ones(3, 10)
    queries[:, 0] = queries[:, 2] = queries[:, 4] = queries[:, 6] = 1e-6
    factor = torch.ones(200, 2)
    factor[::3, 0] = 2.0**20 + 2
    args = (queries, table, torch.tensor([1, 2, 3]), *no_known(3), "rscf_rotate")
    expected = reference.rank_counts(*args, factor=factor, nan_worst=True)
    assert 0 < int(expected[0][0]) < 199
    for a, b in zip(
        expected, flat.cpu.rank_counts(*args, factor=factor, nan_worst=True), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("score", RSCF_SCORES)
@pytest.mark.parametrize("size", [1e-39, 1e37], ids=["tiny scales", "huge scales"])
@pytest.mark.parametrize("has_factor", [True, False], ids=["factor", "no factor"])
def test_products_of_flushed_numbers_decide_nothing(isa, score, size, has_factor):
    """A sweep flushes denormals; what they are multiplied by may be huge."""
    planes, generator = get_score(score).planes, torch.Generator().manual_seed(0)
    table = torch.rand(300, 3 * planes, generator=generator) * (0.01 / size)
    queries = torch.zeros(4, 3 * (2 * planes + has_factor))
    queries[:, 3 * planes : 6 * planes] = size
    factor = 1 + torch.rand(300, 3, generator=generator) if has_factor else None
    args = (queries, table, torch.arange(4), *no_known(4), score)
    expected = reference.rank_counts(*args, factor=factor)
    assert 0 < int(expected[0].sum()) < 4 * 299
    for a, b in zip(expected, flat.cpu.rank_counts(*args, factor=factor), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("score", RSCF_SCORES)
def test_a_table_of_identical_rows_overflows_the_band(isa, score):
    planes = get_score(score).planes
    table = torch.randn(1, 6 * planes).repeat(3_000, 1)
    queries, factor = torch.randn(20, 6 * (2 * planes + 1)), torch.randn(1, 6).repeat(3_000, 1)
    greater, equal, *_ = flat.cpu.rank_counts(
        queries, table, torch.arange(20), *no_known(20), score, factor=factor
    )
    assert greater.tolist() == [0] * 20
    assert equal.tolist() == [2_999] * 20


def test_queries_that_differ_in_one_plane_are_not_merged(isa):
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(200, 16, generator=generator)
    factor = 1 + torch.randn(200, 8, generator=generator)
    queries = torch.randn(1, 40, generator=generator).repeat(6, 1)
    for plane in range(5):
        queries[plane + 1, 8 * plane] += 2.0
    args = (queries, table, torch.full((6,), 7), *no_known(6), "rscf_rotate")
    expected = reference.rank_counts(*args, factor=factor)
    assert len(set(expected[0].tolist())) > 3
    for a, b in zip(expected, flat.cpu.rank_counts(*args, factor=factor), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("score", RSCF_SCORES)
def test_what_is_not_finite_is_named(isa, score, dtype):
    planes = get_score(score).planes
    table, factor = torch.randn(100, 4 * planes), torch.ones(100, 4, dtype=dtype)
    queries = torch.randn(5, 4 * (2 * planes + 1))
    factor[31, 2] = float("nan")
    for k in (3, 100):
        with pytest.raises(ValueError, match="factor: row 31 holds a NaN or an infinity"):
            flat.cpu.topk(queries, table, k, score=score, factor=factor)
    args = (queries, table, torch.zeros(5, dtype=torch.int64), *no_known(5), score)
    with pytest.raises(ValueError, match="factor: row 31 holds a NaN or an infinity"):
        flat.cpu.rank_counts(*args, factor=factor)
    flat.cpu.rank_counts(*args, factor=factor, dims=[2])  # column 2 takes no part
    factor[31, 2] = 1.0
    queries[4, -1] = float("inf")
    with pytest.raises(ValueError, match="queries: row 4 holds"):
        flat.cpu.rank_counts(*args, factor=factor)


@cache  # the specification, feature by feature, takes seconds
def wide_rows(score):
    planes, dim = get_score(score).planes, 3_000
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(40, dim * planes, generator=generator)
    factor = factor_of("unit", 40, dim, generator).float()
    queries = queries_of(score, True, table[:5].double(), dim, 3.0, generator).float()
    queries[0, -dim // 2 :] *= 1_000
    args = (queries, table, torch.arange(5), *no_known(5), score)
    given = {"factor": factor, "dims": [dim, 2_900]}
    return args, given, torch.stack(reference.rank_counts(*args, **given))


@pytest.mark.slow
@pytest.mark.parametrize("score", ["rscf_rotate", "rscf_l2"])
def test_features_in_several_blocks(isa, score):
    """Rows too wide for one panel of the widest instruction set, angles of all sizes."""
    args, given, expected = wide_rows(score)
    assert torch.equal(torch.stack(flat.cpu.rank_counts(*args, **given)), expected)

"""Bounds of sweeps: no pair errs by more than its bound, and the bound says something."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu.views import Machine, arguments_of
from kgfast.kernels.reference import canonical
from kgfast.kernels.scores import get_score
from support.engines import ISAS, engines, examples
from support.flat import canonical_scores, operands_of
from support.problems import (
    RSCF_SCORES,
    RSCF_TABLES,
    SPREADS,
    TABLES,
    cast,
    factor_of,
    moving_queries,
    table_of,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
SEEDS = st.integers(0, 2**31 - 1)
SWEEPS = (*ISAS, "baseline", "triton")
Errors = tuple[Tensor, Tensor, Tensor]


def errors_of(engine, queries, table, score, widths=None, factor=None) -> Errors:
    """Return the results of a sweep, the canonical distances, and the claimed bound."""
    if not engine.is_triton:
        widths = widths or [get_score(score).num_features(table.shape[1])]
        return sweep_errors(engine.name, queries, table, score, widths, factor)
    from support.triton_sweep import swept_distances

    queries, table, factor = engine.there((queries, table, factor))
    found, allowed = swept_distances(score, queries, table, factor)
    exact = -canonical_scores(queries[:, None], table[None], score, None, factor)
    return found.double(), exact, allowed(exact)


def sweep_errors(isa_name, queries, table, score, widths, factor) -> Errors:
    """Return the middles of a sweep's intervals, canonical distances, and half the lengths.

    Each is ``[C, B, N]``.
    """
    operands = operands_of(queries, table, score, factor=factor)
    facts = operands.score
    shape = (len(widths), len(queries), len(table))
    recorded = torch.empty((2, *shape))
    targets = torch.zeros(len(queries), dtype=torch.int64)
    cpu.extension.rank_counts(
        Machine(isa_name, 1, 0),
        arguments_of(operands, None)[1],
        widths,
        targets,
        *(None, None, None, None),
        nan_worst=True,
        counts=None,
        pairs=None,
        recorded=recorded,
    )
    low, high = recorded.double()
    planes = operands.query_planes
    exact = [
        -canonical.canonical_scores(
            canonical.crop(queries, facts, dim, planes)[:, None],
            canonical.crop(table, facts, dim),
            facts,
            factor=None if factor is None else factor[:, :dim],
        )
        for dim in widths
    ]
    return (low + high) / 2, torch.stack(exact), (high - low) / 2


def assert_within(errors: Errors) -> None:
    """Check errors; pairs that are not finite go to the exact path."""
    found, exact, bounds = errors
    decided = found.isfinite() & bounds.isfinite()
    assert bool(((found - exact).abs() <= bounds)[decided].all())


@engines(*SWEEPS, quick=True)
@given(
    seed=SEEDS,
    kind=st.sampled_from(TABLES),
    dtype=st.sampled_from(DTYPES),
    dim=st.sampled_from([1, 2, 16, 64, 65, 130, 200, 700]),
)
@example(seed=0, kind="zero", dtype=torch.float32, dim=64)
@example(seed=0, kind="tiny", dtype=torch.float32, dim=65)
@example(seed=0, kind="subnormal", dtype=torch.float16, dim=65)
@examples(50, 3)
def test_the_error_bound_is_never_exceeded(engine, seed, kind, dtype, dim):
    score = engine.scores[seed % len(engine.scores)]
    generator, rows = torch.Generator().manual_seed(seed), 20 if engine.is_triton else 64
    pool = table_of(kind, rows + 5, dim * get_score(score).planes, generator, dtype)
    table = cast(pool[:rows], dtype)
    queries = cast(pool[rows:], torch.float64 if dtype == torch.float64 else torch.float32)
    widths = sorted({max(1, dim * crop // 700) for crop in (90, 128, 400, 700)})
    assert_within(errors_of(engine, queries, table, score, widths))


@engines(*ISAS, "baseline", "triton")
@given(
    seed=SEEDS,
    score=st.sampled_from(RSCF_SCORES),
    kind=st.sampled_from([*RSCF_TABLES, "cauchy"]),
    spread=st.sampled_from([None, *SPREADS]),
    scale=st.sampled_from([0.1, 0.3, 0.9, 3.0, 40.0, 1e4, 1e5]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    dim=st.sampled_from([1, 2, 16, 65, 200]),
)
@example(0, "rscf_rotate", "normal", "unit", 0.9, torch.float32, 200)
@example(0, "rscf_rotate", "zero", "wild", 40.0, torch.float32, 65)
@examples(40, 4)
def test_the_error_bound_of_moved_queries_is_never_exceeded(
    engine, seed, score, kind, spread, scale, dtype, dim
):
    generator = torch.Generator().manual_seed(seed)
    values = table_of(kind, 69, dim * get_score(score).planes, generator)
    table = cast(values[:64], dtype)
    factor = None if spread is None else cast(factor_of(spread, 64, dim, generator), dtype)
    queries = moving_queries(score, spread is not None, values[64:], scale, generator)
    queries = cast(queries, torch.float64 if dtype == torch.float64 else torch.float32)
    widths = sorted({max(1, dim * crop // 200) for crop in (30, 128, 200)})
    assert_within(errors_of(engine, queries, table, score, widths, factor))


@engines(*ISAS, "baseline")
@given(
    seed=SEEDS,
    kind=st.sampled_from(["normal", *RSCF_TABLES]),
    scale=st.sampled_from([0.1, 1.0, 3.0, 9.0]),
    apart=st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 0.3, 1.0]),
    dim=st.sampled_from([2, 16, 65, 200]),
)
@example(0, "normal", 3.0, 0.1, 200)
@example(1, "normal", 3.0, 1e-3, 65)
@examples(60, 6)
def test_queries_of_one_relation_share_a_turn(engine, seed, kind, scale, apart, dim):
    generator = torch.Generator().manual_seed(seed)
    values, factor = table_of(kind, 97, 2 * dim, generator), factor_of("unit", 64, dim, generator)
    queries = moving_queries("rscf_rotate", True, values[64:], scale, generator)
    queries[:, 2 * dim : 4 * dim] = queries[0, 2 * dim : 4 * dim]
    moves = apart * torch.randn(len(queries), dim, generator=generator, dtype=torch.float64)
    queries[:, 4 * dim :] = queries[0, 4 * dim :] + moves
    arguments = values[:64].float(), "rscf_rotate", None, factor.float()
    together = errors_of(engine, queries.float(), *arguments)
    alone = errors_of(engine, queries[:15].float(), *arguments)
    assert_within(together)
    if kind == "normal" and dim >= 65 and scale <= 3 and apart <= 1e-3:
        assert bool((together[2][:, :15] < alone[2]).all())


PLAIN = ("dot", "l1", "l2", "rotate", "rotate_interleaved")  # scores whose bound is derived
MOVED = [(score, spread) for score in RSCF_SCORES for spread in (None, "unit", "wild")]


@engines(*ISAS, "baseline", "triton")
@pytest.mark.parametrize(("score", "spread"), [*((it, None) for it in PLAIN), *MOVED], ids=str)
def test_the_error_bound_says_something(engine, score, spread):
    """A bound of infinity would pass the tests above; two pairs in a hundred may stay open."""
    is_rscf = score in RSCF_SCORES
    generator, width = torch.Generator().manual_seed(5), 128 * get_score(score).planes
    rows = table_of("normal", 260, width, generator).float()
    table, queries, factor = rows[:256], rows[256:], None
    if is_rscf:
        factor = None if spread is None else factor_of(spread, 256, 128, generator).float()
        queries = moving_queries(score, spread is not None, queries.double(), 6.0, generator)
    if engine.is_triton:
        table, factor = table[:40], None if factor is None else factor[:40]
    found, exact, bounds = errors_of(engine, queries.float(), table, score, None, factor)
    open_pairs = (exact - exact.median()).abs() <= bounds
    assert bool(found.isfinite().all())
    assert float(open_pairs.double().mean()) < (0.03 if engine.is_triton else 0.02)


@engines(*ISAS, "baseline")
def test_the_bound_is_nearly_reached_by_small_angles(engine):
    """The polynomials' error is what the bound says it is, within a factor of two."""
    angles = torch.linspace(-0.9, 0.9, 4_001)[:, None]
    queries = torch.tensor([[1.0, 0.0, 1.0, 1.0, 1.0]])
    # Distances of 0.01: the error of a square root, in proportion to it, says nothing.
    table = torch.cat([angles.cos(), angles.sin()], 1) * 1.01
    found, exact, bounds = errors_of(engine, queries, table, "rscf_rotate", [1], angles + 1)
    assert 0.3 < float(((found - exact).abs() / bounds).max()) <= 1.0

"""The CPU backend against the specification, for every instruction set of this machine."""

import dataclasses
import os
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.cpu import backend
from kgfast.kernels.operands import Known, Need, Operands, Prepared
from kgfast.kernels.scores import get_score
from support import flat
from support.flat import reference
from support.problems import SCORES, TABLES, cast, make_problem, no_known, problems, table_of
from support.processes import run_script
from support.sweeps import sweep_errors

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
once_per_isa = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def assert_same(problem) -> None:
    expected = reference.rank_counts(*problem.args, **problem.kwargs)
    counted = flat.cpu.rank_counts(*problem.args, **problem.kwargs)
    for name, a, b in zip(
        ("greater", "equal", "x greater", "x equal"), expected, counted, strict=True
    ):
        assert torch.equal(a, b), f"{name} of {problem}"


@given(problem=problems())
@once_per_isa
def test_counts_equal_the_reference(isa, problem):
    assert_same(problem)


@given(problem=problems(many=True))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_of_bands_that_overflow_equal_the_reference(isa, problem):
    assert_same(problem)


@given(problem=problems(nonfinite=True))
@once_per_isa
def test_counts_with_nan_and_infinities_equal_the_reference(isa, problem):
    assert_same(problem)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_counts_do_not_depend_on_threads_or_batches(isa, score, threads):
    generator = torch.Generator().manual_seed(1)
    table = torch.randint(-3, 4, (700, 140), generator=generator).float()
    queries = torch.randint(-3, 4, (37, 140), generator=generator).float()
    targets = torch.randint(700, (37,), generator=generator)
    expected = torch.stack(reference.rank_counts(queries, table, targets, *no_known(37), score))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = torch.stack(flat.cpu.rank_counts(queries, table, targets, *no_known(37), score))
        parts = [
            torch.stack(flat.cpu.rank_counts(q, table, t, *no_known(len(t)), score))
            for q, t in zip(queries.split(5), targets.split(5), strict=True)
        ]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole, expected)
    assert torch.equal(torch.cat(parts, 1), expected)


@pytest.mark.parametrize("score", SCORES)
def test_a_table_of_identical_rows_overflows_the_band(isa, score):
    table = torch.randn(1, 6).repeat(3_000, 1)  # 20 x 3,000 undecided pairs, 8,192 fit
    targets = torch.arange(20)
    queries = torch.randn(20, 6)
    greater, equal, *_ = flat.cpu.rank_counts(queries, table, targets, *no_known(20), score)
    assert greater.tolist() == [0] * 20
    assert equal.tolist() == [2_999] * 20


@cache  # the specification, feature by feature, takes a second
def wide_rows(score, dtype):
    """Rows of 20,000 numbers: what is to be counted, and the counts."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(70, 20_000, generator=generator, dtype=dtype)
    targets = torch.arange(9)
    queries = table[targets] + 1e-3 * torch.randn(9, 20_000, generator=generator, dtype=dtype)
    args = (queries, table, targets, *no_known(9), score)
    return args, reference.rank_counts(*args)


@pytest.mark.parametrize("score", ["dot", "l2", "rotate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_too_wide_for_one_panel(isa, score, dtype):
    """Features that come in several blocks, with queries that are abandoned on the way."""
    args, expected = wide_rows(score, dtype)
    for a, b in zip(expected, flat.cpu.rank_counts(*args), strict=True):
        assert torch.equal(a, b)


def clustered_problem(score, dtype, features, rows, batch):
    """Clusters, identical rows among them; queries near a target, which abandon most of a table."""
    generator = torch.Generator().manual_seed(features)
    width = features * get_score(score).planes
    centres = torch.randn(6, width, generator=generator, dtype=torch.float64)
    table = centres[torch.randint(6, (rows,), generator=generator)]
    table = table + 0.1 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    table[rows // 2 :] = table[: rows - rows // 2]
    targets = torch.randint(rows, (batch,), generator=generator)
    noise = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64).repeat(batch)[:batch, None]
    return (table[targets] + scale * noise).to(dtype), table.to(dtype), targets


def known_of(batch, rows):
    return torch.arange(batch + 1) * 3, torch.arange(3 * batch) * 7 % rows


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_crops_of_one_sweep_equal_those_alone(isa, score, dtype):
    """In any order, some twice, at ends that blocks of 64 do not share; ties; abandoned tiles."""
    queries, table, targets = clustered_problem(score, dtype, 200, 300, 21)
    queries = queries if dtype == torch.float64 else queries.float()
    dims = [130, 7, 64, 200, 130, 65, 128]
    args = (queries, table, targets, *known_of(21, 300), score)
    nested = torch.stack(flat.cpu.rank_counts(*args, dims=dims), 1)
    alone = [torch.stack(flat.cpu.rank_counts(*args, dims=[dim]), 1)[0] for dim in dims]
    assert torch.equal(nested, torch.stack(alone))
    assert torch.equal(nested, torch.stack(reference.rank_counts(*args, dims=dims), 1))


@cache
def wide_crops(score, dtype):
    dims = [5_000, 100, 2_500, 4_096]
    queries, table, targets = clustered_problem(score, torch.float64, 5_000, 70, 9)
    args = (queries.to(dtype), table.to(dtype), targets, *known_of(9, 70), score)
    return args, dims, reference.rank_counts(*args, dims=dims)


@pytest.mark.parametrize("score", ["dot", "l2", pytest.param("rotate", marks=pytest.mark.slow)])
def test_crops_that_end_in_several_panels(isa, score):
    """Rows too wide for one panel; float64 has norms, which are known only at the end."""
    for dtype in (torch.float32, torch.float64):
        args, dims, expected = wide_crops(score, dtype)
        for a, b in zip(expected, flat.cpu.rank_counts(*args, dims=dims), strict=True):
            assert torch.equal(a, b)


def test_a_target_may_be_nan_in_one_crop_only(isa):
    table = torch.randn(100, 12)
    table[3, 9] = float("nan")
    args = (torch.randn(2, 12), table, torch.tensor([3, 4]), *no_known(2), "l1")
    kwargs = {"dims": [12, 5], "nan_worst": True}
    nested = flat.cpu.rank_counts(*args, **kwargs)
    assert nested[0][0, 0] == 99
    for a, b in zip(reference.rank_counts(*args, **kwargs), nested, strict=True):
        assert torch.equal(a, b)


@given(
    seed=st.integers(0, 2**31 - 1),
    score=st.sampled_from(SCORES),
    kind=st.sampled_from(TABLES),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    dim=st.sampled_from([1, 2, 16, 64, 65, 200, 700]),
)
@example(seed=0, score="rotate", kind="zero", dtype=torch.float32, dim=64)
@example(seed=0, score="dot", kind="tiny", dtype=torch.float32, dim=65)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_error_bound_is_never_exceeded(isa, seed, score, kind, dtype, dim):
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    pool = table_of(kind, 69, width, generator, dtype)
    table = cast(pool[:64], dtype)
    queries = cast(pool[64:], torch.float64 if dtype == torch.float64 else torch.float32)
    widths = sorted({max(1, dim * crop // 700) for crop in (90, 128, 400, 700)})
    values, exact, bounds = sweep_errors(isa, queries, table, score, widths)
    decided = values.isfinite() & bounds.isfinite()  # the others go to the exact path
    assert bool(((values - exact).abs() <= bounds)[decided].all())


@pytest.mark.parametrize("score", ["dot", "l1", "l2", "rotate", "rotate_interleaved"])
def test_the_error_bound_says_something(isa, score):
    """A bound of infinity would pass the test above; two pairs in a hundred may stay open."""
    generator = torch.Generator().manual_seed(5)
    table, queries = torch.randn(256, 256, generator=generator), torch.randn(4, 256)
    width = get_score(score).num_features(256)
    values, exact, bounds = sweep_errors(isa, queries, table, score, [width])
    open_pairs = (exact - exact.median()).abs() <= bounds
    assert bool(values.isfinite().all())
    assert float(open_pairs.double().mean()) < 0.02


def test_offsets_beyond_two_to_the_31(isa):
    """Rows more than 2^31 elements apart, in an allocation of which few pages are touched."""
    stride = 1 << 21
    storage = torch.empty(stride * 1_100, dtype=torch.float16)
    table = storage.as_strided((1_100, 4), (stride, 1))
    table[:] = torch.randn(1_100, 4).half()
    queries, targets = torch.randn(3, 4), torch.tensor([0, 1_099, 7])
    args = (queries, table, targets, *no_known(3), "rotate")
    packed = (queries, table.clone(), targets, *no_known(3), "rotate")
    for a, b in zip(reference.rank_counts(*packed), flat.cpu.rank_counts(*args), strict=True):
        assert torch.equal(a, b)


def test_queries_of_signs_are_grouped_as_fast_as_others():
    """Rows of +-1 differ in their highest bits; were those lost, each would be held to each."""
    generator = torch.Generator().manual_seed(2)
    others = torch.randn(16_000, 64, generator=generator)
    seconds = []
    for queries in (others, others.sign()):
        args = (queries, others[:8], torch.zeros(len(queries), dtype=torch.int64))
        start = time.process_time()
        flat.cpu.rank_counts(*args, *no_known(len(queries)), "dot")
        seconds.append(time.process_time() - start)
    assert seconds[1] < 20 * seconds[0]  # 140 times, if each is held to half of the others


def test_flushed_denormals_do_not_change_a_rank(isa):
    generator = torch.Generator().manual_seed(11)
    table = torch.randint(0, 9, (200, 8), generator=generator).float() * 1e-42
    args = (table[:10].clone(), table, torch.arange(10, 20), *no_known(10), "l1")
    expected = reference.rank_counts(*args)
    assert torch.set_flush_denormal(True)
    try:
        counted = flat.cpu.rank_counts(*args)
    finally:
        torch.set_flush_denormal(False)
    assert expected[0].sum() > 0
    for a, b in zip(expected, counted, strict=True):
        assert torch.equal(a, b)


def test_the_callers_floating_point_mode_survives(isa):
    assert torch.set_flush_denormal(False)
    problem = make_problem(1)
    flat.cpu.rank_counts(*problem.args, **problem.kwargs)
    assert (torch.tensor(1e-310, dtype=torch.float64) * 1).item() != 0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_peak_memory_beyond_the_inputs():
    process = run_script(
        """
        import torch
        from support.flat import cpu
        def resident(field):
            lines = open("/proc/self/status").read().splitlines()
            return next(int(l.split()[1]) for l in lines if l.startswith(field)) / 1024
        def known(batch):
            return torch.zeros(batch + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        for batch, rows, width in [(4096, 500, 1_024), (64, 200_000, 64)]:
            table, queries = torch.randn(rows, width), torch.randn(batch, width)
            targets = torch.arange(batch) % rows
            cpu.rank_counts(queries[:2], table[:100], targets[:2] * 0, *known(2), "rotate")
            open("/proc/self/clear_refs", "w").write("5")
            before = resident("VmRSS")
            cpu.rank_counts(queries, table, targets, *known(batch), "rotate")
            print(resident("VmHWM") - before)
        """,
        env={**os.environ, "OMP_NUM_THREADS": "2", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    output, errors = process.communicate(timeout=120)
    peaks = [float(line) for line in output.split()]
    assert len(peaks) == 2, errors
    assert max(peaks) <= 64


def test_a_score_without_kernels_is_an_error(isa):
    score = dataclasses.replace(get_score("l2"), code=99)
    operands = Operands(torch.ones(1, 2), Prepared(torch.ones(3, 2), score))
    known, checks = Known(*no_known(1)), Checks(deferred=False)
    calls = (
        lambda: backend.rank_counts(operands, torch.tensor([0]), known, checks),
        lambda: backend.topk(operands, 1, None, checks),
        lambda: backend.scores(operands),
        lambda: backend.scores(operands, torch.tensor([[0]])),
        lambda: backend.backward(operands, torch.ones(1, 3), need=Need(True, True)),
    )
    for call in calls:
        with pytest.raises(ValueError, match="the cpu backend has no kernels for 'l2'"):
            call()

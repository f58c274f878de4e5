"""Tiers before the float32 sweep: the same integers, and bounds that are never exceeded."""

import shutil
import subprocess

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.scores import get_score
from support import flat
from support.paths import ROOT, TESTS
from support.problems import TABLES, Problem, cast, no_known, problems, table_of
from support.sampled import threads
from support.sweeps import sweep_errors


def test_names_choose_tiers(monkeypatch):
    for value, wanted in (
        ("", tiers.TIERS),
        ("all", tiers.TIERS),
        ("none", ()),
        ("bf16, fp16", ("fp16", "bf16")),
    ):
        monkeypatch.setenv("KGFAST_TIERS", value)
        assert tiers.wanted() == wanted


@pytest.mark.parametrize("value", ["fp8", "fp16;bf16", "none,fp16", ","])
def test_an_unknown_name_is_an_error(monkeypatch, value):
    monkeypatch.setenv("KGFAST_TIERS", value)
    with pytest.raises(ValueError, match="KGFAST_TIERS must be none, all, or some of fp16, bf16"):
        tiers.mask()


def test_info_says_which_serve(monkeypatch):
    if not cpu.is_available():
        pytest.skip("the extension is not built")
    have = tiers.available(cpu.isa())
    monkeypatch.setenv("KGFAST_TIERS", "all")
    assert kgfast.info().tiers == have
    assert not kgfast.info().remarks
    monkeypatch.setenv("KGFAST_TIERS", "none")
    assert kgfast.info().tiers == ()
    monkeypatch.setenv("KGFAST_TIERS", ",".join(tiers.TIERS))
    assert kgfast.info().tiers == have
    lacks = set(tiers.TIERS) - set(have)
    assert any("KGFAST_TIERS names" in line for line in kgfast.info().remarks) == bool(lacks)
    monkeypatch.setenv("KGFAST_TIERS", "fp17")
    assert "KGFAST_TIERS must be" in kgfast.info().remarks[0]


FP16 = 1
FORCED = 256  # csrc/host/tiers.h: serve whatever it costs
HALVES = ("l1", "l2", "rotate")
some = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def fp16(monkeypatch):
    """Where this machine has it; what comes back sets which tiers serve."""
    if not cpu.is_available() or "fp16" not in tiers.available(cpu.isa()):
        pytest.skip("this machine or build has no AVX512-FP16")
    return lambda mask: monkeypatch.setattr(tiers, "mask", lambda: mask)


def pairs_of(call):
    """(swept, gathered, canonical) of a call, and what it returns."""
    before = cpu.extension.tier_pairs()
    result = call()
    return [b - a for a, b in zip(before, cpu.extension.tier_pairs(), strict=True)], result


def assert_same(problem, fp16):
    """The same counts with the tier, forced, and without; returns what the tier swept."""
    fp16(0)
    expected = flat.cpu.rank_counts(*problem.args, **problem.kwargs)
    fp16(FP16 | FORCED)
    pairs, counted = pairs_of(lambda: flat.cpu.rank_counts(*problem.args, **problem.kwargs))
    for a, b in zip(expected, counted, strict=True):
        assert torch.equal(a, b), problem
    return pairs[0]


@given(problem=problems())
@some
def test_counts_are_the_same(fp16, problem):
    assert_same(problem, fp16)


@given(problem=problems(many=True))
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_of_bands_that_overflow_are_the_same(fp16, problem):
    assert_same(problem, fp16)


@given(problem=problems(nonfinite=True))
@some
def test_counts_with_nan_and_infinities_are_the_same(fp16, problem):
    assert_same(problem, fp16)


@given(
    seed=st.integers(0, 2**31 - 1),
    score=st.sampled_from(HALVES),
    kind=st.sampled_from(TABLES),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    dim=st.sampled_from([1, 3, 16, 65, 200, 700]),
)
@example(seed=0, score="l2", kind="subnormal", dtype=torch.float16, dim=65)
@example(seed=0, score="rotate", kind="huge", dtype=torch.float32, dim=16)
@some
def test_the_bound_is_never_exceeded(fp16, seed, score, kind, dtype, dim):
    """And the tier serves each of these tables."""
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    pool = table_of(kind, 205, width, generator, dtype)
    table, queries = cast(pool[:200], dtype), cast(pool[200:], torch.float32)
    values, exact, bounds = sweep_errors("avx512", queries, table, score, [dim], tiers=257)
    assert bool(values.isfinite().all())
    assert bool(((values - exact).abs() <= bounds)[bounds.isfinite()].all())
    targets = torch.randint(200, (5,), generator=generator)
    problem = Problem((queries, table, targets, *no_known(5), score), {}, kind)
    assert assert_same(problem, fp16) >= 200  # equal queries are swept once


def test_every_float16_as_a_difference(fp16):
    """From the smallest denormal on: none is flushed, on the way to float32 neither."""
    table = torch.arange(1, 31744, dtype=torch.int16).view(torch.float16).float()[:, None]
    for score in ("l1", "l2"):
        values, exact, bounds = sweep_errors(
            "avx512", torch.zeros(1, 1), table, score, [1], tiers=257
        )
        fits = bounds.isfinite()
        assert 0.5 < fits.double().mean() < 1
        assert bool(((values - exact).abs() <= bounds)[fits].all())


def test_the_root_is_within_its_bound(fp16, tmp_path):
    """vrsqrtph of every float16 above zero, denormals included, in both modes of flushing."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    program = str(tmp_path / "root")
    flags = ["-O1", "-mavx512fp16", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mf16c"]
    source = TESTS / "support" / "half_root_check.cpp"
    built = subprocess.run(
        ["g++", "-std=c++17", *flags, f"-I{ROOT / 'kernels/cpu/csrc'}", source, "-o", program],
        capture_output=True,
    )
    if built.returncode:
        pytest.skip("the compiler has no AVX512-FP16")
    assert subprocess.run([program], capture_output=True, text=True).stdout == "0 exceed\n"


def large_problem(score, near, dtype=torch.float32):
    """More rows than the tier asks for, and targets that are close to their queries or not."""
    generator = torch.Generator().manual_seed(1)
    width = 256 * get_score(score).planes
    table = torch.randn(5000, width, generator=generator)
    targets = torch.randint(5000, (100,), generator=generator)
    noise = torch.randn(100, width, generator=generator)
    queries = table[targets] + 0.05 * noise if near else noise
    return Problem((queries, table.to(dtype), targets, *no_known(100), score), {}, "large")


@pytest.mark.parametrize(
    ("score", "near"), [("l1", False), ("l2", False), ("rotate", False), ("rotate", True)]
)
def test_it_decides_most_pairs(fp16, score, near):
    problem = large_problem(score, near)
    fp16(0)
    pairs, expected = pairs_of(lambda: flat.cpu.rank_counts(*problem.args))
    assert pairs == [0, 0, 0]
    fp16(FP16)
    pairs, counted = pairs_of(lambda: flat.cpu.rank_counts(*problem.args))
    assert all(torch.equal(a, b) for a, b in zip(expected, counted, strict=True))
    swept, gathered, canonical = pairs
    assert swept == 100 * 5000
    assert gathered < 0.11 * swept
    assert canonical <= 100 + 0.1 * gathered  # targets meet themselves


def test_it_leaves_queries_that_it_cannot_decide(fp16):
    """A table whose rows are all alike: a sample of panels says so."""
    problem = large_problem("rotate", near=False)
    queries, table, *rest = problem.args
    close = Problem((queries, table[:1] + 1e-5 * table, *rest), {}, "close")
    fp16(0)
    expected = flat.cpu.rank_counts(*close.args)
    fp16(FP16)
    (swept, gathered, _), counted = pairs_of(lambda: flat.cpu.rank_counts(*close.args))
    assert all(torch.equal(a, b) for a, b in zip(expected, counted, strict=True))
    assert swept == gathered == 100 * 128


def test_some_queries_stay_with_the_float32_sweep(fp16):
    """Those of which every pair is close; counts do not depend on threads."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(5000, 256, generator=generator)
    queries = torch.randn(400, 256, generator=generator)
    queries[200:] *= 30  # from there, all rows are about as far
    targets = torch.randint(5000, (400,), generator=generator)
    args = (queries, table, targets, *no_known(400), "rotate")
    fp16(0)
    expected = flat.cpu.rank_counts(*args)
    fp16(FP16)
    for count in (1, 2):
        with threads(count):
            (swept, _, _), counted = pairs_of(lambda: flat.cpu.rank_counts(*args))
        assert all(torch.equal(a, b) for a, b in zip(expected, counted, strict=True))
        assert 100 * 5000 < swept < 300 * 5000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_of_tables_are_served(fp16, dtype):
    problem = large_problem("rotate", near=True, dtype=dtype)
    assert assert_same(problem, fp16) == 100 * 5000

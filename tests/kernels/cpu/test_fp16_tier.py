"""The fp16 tier of distances: the same integers as without it, and a bound that holds."""

import shutil
import subprocess

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgfast.kernels.scores import get_score
from support.paths import ROOT, TESTS
from support.problems import TABLES, Problem, cast, no_known, table_of
from support.sampled import threads
from support.sweeps import sweep_errors
from support.tiers import FORCED, FP16, assert_same_counts, needs_tier

HALVES = ("l1", "l2", "rotate")

pytestmark = needs_tier("fp16")
some = settings(max_examples=60)


def assert_same(problem):
    """Check that the forced tier changes no count; return the pairs that it swept."""
    return assert_same_counts(problem, FP16 | FORCED)[0]


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
def test_the_bound_is_never_exceeded(seed, score, kind, dtype, dim):
    """And the tier serves each of these tables."""
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    pool = table_of(kind, 205, width, generator, dtype)
    table, queries = cast(pool[:200], dtype), cast(pool[200:], torch.float32)
    values, exact, bounds = sweep_errors(
        "avx512", queries, table, score, [dim], tiers=FP16 | FORCED
    )
    assert bool(values.isfinite().all())
    assert bool(((values - exact).abs() <= bounds)[bounds.isfinite()].all())
    targets = torch.randint(200, (5,), generator=generator)
    problem = Problem((queries, table, targets, *no_known(5), score), {}, kind)
    assert assert_same(problem) >= 200  # equal queries are swept once


def test_every_float16_as_a_difference():
    """From the smallest denormal on: none is flushed, on the way to float32 neither."""
    table = torch.arange(1, 31744, dtype=torch.int16).view(torch.float16).float()[:, None]
    for score in ("l1", "l2"):
        values, exact, bounds = sweep_errors(
            "avx512", torch.zeros(1, 1), table, score, [1], tiers=FP16 | FORCED
        )
        fits = bounds.isfinite()
        assert 0.5 < fits.double().mean() < 1
        assert bool(((values - exact).abs() <= bounds)[fits].all())


def test_the_root_is_within_its_bound(tmp_path):
    """``vrsqrtph`` of every float16 above zero, denormals included, in both modes of flushing."""
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
def test_it_decides_most_pairs(score, near):
    problem = large_problem(score, near)
    swept, gathered, canonical = assert_same_counts(problem, FP16)
    assert swept == 100 * 5000
    assert gathered < 0.11 * swept
    assert canonical <= 100 + 0.1 * gathered  # targets meet themselves


def test_it_leaves_queries_that_it_cannot_decide():
    """A table whose rows are all alike: a sample of panels says so."""
    problem = large_problem("rotate", near=False)
    queries, table, *rest = problem.args
    close = Problem((queries, table[:1] + 1e-5 * table, *rest))
    swept, gathered, _ = assert_same_counts(close, FP16)
    assert swept == gathered == 100 * 128


def test_some_queries_stay_with_the_float32_sweep():
    """Queries stay whose every pair is close; counts do not depend on threads."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(5000, 256, generator=generator)
    queries = torch.randn(400, 256, generator=generator)
    queries[200:] *= 30  # from there, all rows are about as far
    targets = torch.randint(5000, (400,), generator=generator)
    problem = Problem((queries, table, targets, *no_known(400), "rotate"))
    for count in (1, 2):
        with threads(count):
            swept, _, _ = assert_same_counts(problem, FP16)
        assert 100 * 5000 < swept < 300 * 5000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_of_tables_are_served(dtype):
    problem = large_problem("rotate", near=True, dtype=dtype)
    assert assert_same(problem) == 100 * 5000

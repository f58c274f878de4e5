"""Streamed losses on the CPU, for every instruction set of this machine."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.cpu import backend
from kgfast.kernels.cpu.passes import PASSES, LossPass
from kgfast.kernels.losses import TORCH_PASSES
from support import flat, oracles
from support.paths import ROOT, TESTS
from support.problems import SCORES
from support.sampled import WELL_SPREAD, assert_close, dense, differentiable, make_sampled, threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
some = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def csr(positives):
    indptr = torch.tensor([0, *(len(ids) for ids in positives)]).cumsum(0)
    return indptr, torch.tensor([i for ids in positives for i in ids], dtype=torch.int64)


def problem_of(seed):
    # Where rows are alike, gradients cancel to nothing: what is left are roundings of what did.
    problem = make_sampled(seed, 200, WELL_SPREAD)
    problem.dims = None
    generator = torch.Generator().manual_seed(seed)
    count, batch = len(problem.table), len(problem.queries)
    positives = torch.randint(count, (batch, 3), generator=generator).tolist()
    targets = torch.randint(count, (batch,), generator=generator)
    return problem, positives, targets, torch.rand(batch, generator=generator)


def dense_loss(problem, loss, weights, dtype):
    """Row losses and gradients by the oracle: float64, or float32 for comparison."""
    queries, table = differentiable(problem, dtype)
    bias = None
    if problem.bias is not None:
        bias = problem.bias.to(dtype).expand(len(table)).clone().requires_grad_()
    rows = loss(dense(problem, queries[:, None], table, bias))
    rows.backward(weights.to(dtype))
    return rows.detach(), queries.grad, table.grad, None if bias is None else bias.grad


def check(problem, loss, weights, rows, gradients):
    assert rows.dtype == torch.float32
    exact = dense_loss(problem, loss, weights, torch.float64)
    float32 = dense_loss(problem, loss, weights, torch.float32)
    # A loss is a difference of numbers as large as a score, which is taken in float64.
    queries, table = differentiable(problem)
    largest = dense(problem, queries[:, None], table, problem.bias).abs().max().item()
    assert_close(rows, exact[0], float32[0], remains=1e-15 + 8 * 2.0**-53 * largest)
    for got, right, dense32 in zip(gradients, exact[1:], float32[1:], strict=True):
        assert (got is None) == (right is None)
        if got is not None:
            # Scores are float32: their rounding is an error of the exponents in a probability.
            remains = 1e-15 + 2 * 2.0**-24 * largest * right.abs().max().item()
            assert_close(got, right, dense32, remains=remains)


@given(seed=st.integers(0, 2**31 - 1), label_a=st.sampled_from([1.0, 0.9]))
@example(seed=0, label_a=0.9)
@some
def test_bce(isa, seed, label_a):
    problem, positives, _, weights = problem_of(seed)
    label_c = (1 - label_a) / len(problem.table)
    given = (problem.queries, problem.table, problem.bias, *csr(positives), label_a, label_c)
    rows, linear = flat.cpu.bce(*given, problem.score)
    need = (True, True, problem.bias is not None)
    gradients = flat.cpu.bce_backward(weights, *given, problem.score, need=need)
    both = flat.cpu.bce_with_gradients(weights, *given, problem.score, need=need)
    found = (*both[:2], *both[2])
    for once, twice in zip(found, (rows, linear, *gradients), strict=True):
        assert once is twice or torch.equal(once, twice)

    def loss(scores):
        return oracles.binary_cross_entropy(scores, positives, label_a, label_c)

    check(problem, loss, weights, rows, gradients)


@given(seed=st.integers(0, 2**31 - 1), smoothing=st.sampled_from([0.0, 0.1]))
@example(seed=0, smoothing=0.1)
@example(seed=1262, smoothing=0.1)  # one candidate: all of the loss cancels
@example(seed=195535304, smoothing=0.0)  # scores of 300, whose roundings are 1e-5 of a probability
@some
def test_cross_entropy(isa, seed, smoothing):
    problem, _, targets, weights = problem_of(seed)
    given = (problem.queries, problem.table, problem.bias, targets, smoothing, problem.score)
    rows, logsumexp, _ = flat.cpu.cross_entropy(*given)
    need = (True, True, problem.bias is not None)
    gradients = flat.cpu.cross_entropy_backward(weights, logsumexp, *given, need)

    def loss(scores):
        return oracles.softmax_cross_entropy(scores, targets, smoothing)

    check(problem, loss, weights, rows, gradients)


@pytest.mark.parametrize("score", SCORES)
def test_chunks_and_threads(isa, score, monkeypatch):
    """Bits do not depend on threads; other chunks change only the last digits."""
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(20, 12, generator=generator)
    table = torch.randn(500, 12, generator=generator).bfloat16()
    positives, weights = csr([[i, 499, i] for i in range(20)]), torch.rand(20)
    given = (queries, table, None, *positives, 0.9, 1e-3, score)

    def results():
        return flat.cpu.bce(*given)[0], *flat.cpu.bce_backward(
            weights, *given, need=(True, True, True)
        )

    whole = results()
    for count in (1, 5):
        with threads(count):
            for a, b in zip(results(), whole, strict=True):
                assert torch.equal(a, b)
    monkeypatch.setattr(backend, "_LOSS_SCRATCH", 20 * 64)
    for part, full in zip(results(), whole, strict=True):
        assert_close(part, full.double())


@pytest.mark.parametrize("score", SCORES)
def test_blocks_of_queries(isa, score, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    queries, table = torch.randn(20, 12, generator=generator), torch.randn(50, 12)
    positives, weights = csr([[i, 49, i] for i in range(20)]), torch.rand(20)
    given, targets = (queries, table, torch.randn(50)), torch.arange(20)

    def results():
        rows, logsumexp, _ = flat.cpu.cross_entropy(*given, targets, 0.1, score)
        return (
            flat.cpu.bce(*given, *positives, 0.9, 1e-3, score)[0],
            *flat.cpu.bce_backward(weights, *given, *positives, 0.9, 1e-3, score),
            rows,
            *flat.cpu.cross_entropy_backward(weights, logsumexp, *given, targets, 0.1, score),
        )

    whole = results()
    monkeypatch.setattr(backend, "_LOSS_QUERIES", 7)
    for part, full in zip(results(), whole, strict=True):
        assert_close(part, full.double())


SCORES_OF_EVERY_SIZE = torch.cat(
    [
        torch.linspace(-110, 110, 4_001),
        torch.randn(4_000, generator=torch.Generator().manual_seed(0)) * 3,
        torch.tensor([0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e30, -1e30]),
    ]
)


def each_score(run):
    """One score a row, so that a sum is one number."""
    return run(SCORES_OF_EVERY_SIZE[:, None].clone())


def ulps(got, exact):
    """The largest error in units of the last place; denormal numbers may be anything as small."""
    denormal = exact.abs() < 2.0**-125
    assert bool((got[denormal].abs() < 2.0**-125).all())
    got, exact = got[~denormal].double(), exact[~denormal]
    return ((got - exact).abs() / (exact.abs().log2().floor().exp2() * 2.0**-23)).max().item()


def test_softplus_is_accurate(isa):
    got = each_score(lambda x: PASSES.bce_sums(x, 0.0)[0])
    exact = SCORES_OF_EVERY_SIZE.double()
    exact = exact.clamp(min=0) + torch.log1p((-exact.abs()).exp())
    assert ulps(got, exact) <= 3


def test_sigmoid_is_accurate(isa):
    x = SCORES_OF_EVERY_SIZE[:, None].clone()
    PASSES.bce_slopes(x, 0.0, torch.ones(len(x)))
    assert ulps(x[:, 0], SCORES_OF_EVERY_SIZE.double().sigmoid()) <= 3


def test_exponential_is_accurate(isa):
    x = SCORES_OF_EVERY_SIZE[SCORES_OF_EVERY_SIZE <= 0][:, None].clone()
    exact, zeros = x[:, 0].double().exp(), torch.zeros(len(x))
    PASSES.softmax_slopes(x, zeros, torch.ones(len(x)), zeros)
    assert ulps(x[:, 0], exact) <= 3


def test_walks_are_numbered_as_in_the_extension():
    header = (ROOT / "kernels/cpu/csrc/host/losses.h").read_text()
    numbers = re.findall(r"^  (\w+) = (\d+),", header, re.MULTILINE)
    assert {walk.name.lower(): walk.value for walk in LossPass} == {k: int(n) for k, n in numbers}


@pytest.mark.parametrize("columns", [1, 7, 16, 1000, 5000])
def test_passes_are_those_of_torch_in_float64(isa, columns):
    float32 = torch.randn(5, columns, generator=torch.Generator().manual_seed(2)) * 4
    near, scale, share = float32.logsumexp(1), torch.rand(5), torch.rand(5)
    both = []
    for passes, dtype in ((PASSES, torch.float32), (TORCH_PASSES, torch.float64)):
        x = float32.to(dtype)
        slopes, softmax = x.clone(), x.clone()
        sums = passes.bce_sums(x.clone(), 0.25)
        passes.bce_slopes(slopes, 0.25, scale.to(dtype))
        passes.softmax_slopes(softmax, near.to(dtype), scale.to(dtype), share.to(dtype))
        peak = torch.full((5,), -1.0, dtype=torch.float64)
        mass, linear = torch.full((2, 5), 0.5, dtype=torch.float64)
        passes.softmax_sums(x.clone(), peak, mass, linear)
        whole, of_whole = x.clone(), torch.zeros(3, 5, dtype=torch.float64)
        of_whole[0] = -torch.inf
        passes.softmax_both(whole, of_whole.unbind(), scale.to(dtype), share.to(dtype))
        both.append((*sums, slopes.double(), softmax.double(), peak, mass, linear))
        both[-1] += (whole.double(), *of_whole)
    for ours, exact in zip(*both, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-6 * columns)


def test_nan_and_infinity_propagate(isa):
    x = torch.randn(3, 40)
    x[0, 33], x[1, 5] = float("nan"), float("inf")
    sums, linear = PASSES.bce_sums(x.clone(), 0.0)
    assert linear.isfinite().tolist() == [False, False, True]
    assert sums[0].isnan()
    assert sums[1].isinf()
    assert sums[2].isfinite()
    zeros = torch.zeros(3, dtype=torch.float64)
    peak, mass = zeros - torch.inf, zeros.clone()
    PASSES.softmax_sums(x.clone(), peak, mass, zeros.clone())
    assert (peak + mass.log()).isfinite().tolist() == [False, False, True]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_peak_memory_beyond_the_operands_and_gradients():
    script = """
        import torch
        from support.flat import cpu
        def resident(field):
            lines = open("/proc/self/status").read().splitlines()
            return next(int(l.split()[1]) for l in lines if l.startswith(field)) / 1024
        table, queries, weights = torch.randn(60_000, 4), torch.randn(512, 4), torch.rand(512)
        targets = torch.arange(512)
        def run(table, score):
            given = (queries, table, None, targets, 0.1, score)
            rows, logsumexp, _ = cpu.cross_entropy(*given)
            return cpu.cross_entropy_backward(weights, logsumexp, *given, (True, True, False))
        for score in ("dot", "l2", "rotate"):
            run(table[:600], score)
            open("/proc/self/clear_refs", "w").write("5")
            before = resident("VmRSS")
            held = run(table, score)
            print(resident("VmHWM") - before - 60_000 * 4 * 4 / 2**20)
            del held
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "2", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    peaks = [float(line) for line in done.stdout.split()]
    assert len(peaks) == 3, done.stderr
    assert max(peaks) <= 64  # all scores would take 120 MiB

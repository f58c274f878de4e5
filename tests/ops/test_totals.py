"""Totals of losses, whose gradients are made with them: the bits of their rows, from one sweep."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import losses
from kgfast.kernels.cpu import backend as cpu_backend
from support.memory import PeakMemory
from support.operators import TOTALS, B, N, dense, doubles, operands, served
from support.problems import SCORES
from support.sampled import threads

EACH = pytest.mark.parametrize("name", TOTALS)
BIASES = pytest.mark.parametrize("bias", [slice(None), slice(1), None], ids=["own", "one", "none"])


def some(name, score="dot", bias=slice(None), dtype=torch.float32):
    """Make queries, a table and a bias of all candidates or none; they require gradients."""
    made = [it.detach().to(dtype).requires_grad_() for it in operands(name, score)]
    return [*made[:2], None if bias is None else made[2].detach()[bias].requires_grad_()]


def total_of(name, tensors, score="dot", divisor=1.0, **options):
    return served(name, tensors, score, divisor=divisor, **options)


def rows_of(name, tensors, score="dot"):
    return served(name.removesuffix("_total"), tensors, score)


def gradients(value, tensors, **options):
    return torch.autograd.grad(value, [it for it in tensors if it is not None], **options)


def all_equal(found, expected):
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.fixture
def blocks(monkeypatch):
    """Let cross entropy take two queries at once, the last block of one."""
    monkeypatch.setattr(losses, "_LEAST_QUERIES", 2)
    plan = cpu_backend.losses.plan._replace(kept=2 * N)
    monkeypatch.setattr(cpu_backend.losses, "plan", plan)


@EACH
@pytest.mark.parametrize("score", SCORES)
@BIASES
@pytest.mark.parametrize("divisor", [1.0, 7.0, B * N])
@pytest.mark.usefixtures("backend")
def test_bits_are_those_of_two_sweeps(name, score, bias, divisor):
    """Gradients of cross entropy are the same up to roundings."""
    tensors = some(name, score, bias)
    once, twice = total_of(name, tensors, score, divisor), rows_of(name, tensors, score).sum()
    twice = twice / divisor
    assert torch.equal(once, twice)
    made = gradients(once, tensors), gradients(twice, tensors)
    if name == "bce_total":
        assert all_equal(*made)
    torch.testing.assert_close(*made)


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.usefixtures("backend")
def test_other_dtypes_have_the_bits_of_rows(name, dtype):
    tensors = some(name, dtype=dtype)
    if dtype == torch.bfloat16:
        tensors[0] = tensors[0].detach().float().requires_grad_()
    once, twice = total_of(name, tensors, divisor=B), rows_of(name, tensors).sum() / B
    assert once.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(once, twice)
    assert all_equal(gradients(once, tensors), gradients(twice, tensors))


@pytest.mark.usefixtures("blocks")
def test_blocks_of_queries_add_up_in_any_number_of_threads():
    name, runs = "cross_entropy_total", []
    tensors, exact = some(name), doubles(some(name))
    for count in (1, 3):
        with threads(count):
            total = total_of(name, tensors, divisor=7.0)
            runs.append([total, *gradients(total, tensors)])
    assert all_equal(*runs)
    right = dense(name, exact, "dot")
    for one, other in zip(runs[0], [right, *gradients(right, exact)], strict=True):
        assert (one - other).abs().max() <= 1e-5 * other.abs().max()


@EACH
@pytest.mark.parametrize("place", [1, 2], ids=["table", "bias"])
def test_half_precision_is_scaled_before_it_is_rounded(name, place):
    tensors = some(name)
    tensors[place] = tensors[place].detach().half().requires_grad_()
    total = total_of(name, tensors, divisor=2.0**24)  # such gradients vanish in float16 ...
    scaled = gradients(2.0**20 * total, tensors)  # ... but these do not
    assert bool(scaled[place].any())


@EACH
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.3, 1.0), (1.0, 0.3), (0.3, 4.0)])
@pytest.mark.usefixtures("backend")
def test_a_graph_that_is_retained_gives_the_same_gradients_again(name, factors):
    tensors = some(name, "rotate")
    total = total_of(name, tensors, "rotate")
    results = []
    for factor in factors:
        results.append(gradients(factor * total, tensors, retain_graph=True))
        expected = gradients(factor * total_of(name, tensors, "rotate"), tensors)
        assert all_equal(results[-1], expected)
    kept = [it.clone() for it in results[0]]
    for one in results[1]:
        one.zero_()  # shares nothing with the first call's results
    assert all_equal(results[0], kept)


@EACH
def test_a_graph_that_is_freed_or_changed_has_no_gradient(name):
    tensors = some(name)
    total = total_of(name, tensors)
    total.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        total.backward()
    total = total_of(name, tensors)
    with torch.no_grad():
        tensors[1].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.usefixtures("backend")
def test_the_gradient_of_the_table_is_held_once():
    """A table of 64 MiB has a gradient of 64 MiB, and there is no second one."""
    generator = torch.Generator().manual_seed(0)
    rows, width = 1 << 18, 64
    table = torch.randn(rows, width, generator=generator).requires_grad_()
    queries = torch.randn(4, width, generator=generator).requires_grad_()
    labels = (torch.arange(5), torch.arange(4), 1.0, 0.0, "dot")
    ops.bce(queries, table[:8], None, *labels, divisor=1.0).backward()
    table.grad = None
    with PeakMemory("cpu") as peak:
        ops.bce(queries, table, None, *labels, divisor=float(rows)).backward()
    assert peak.bytes < 1.8 * table.nbytes
    assert table.grad is not None

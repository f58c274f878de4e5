"""Adagrad on all rows or on some: the bits of torch's, on every instruction set."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.backend import AdagradStep
from support.sampled import threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
NUMBERS = {"lr": 0.05, "eps": 1e-10}


def steps_of(shape, count=4):
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(shape, generator=generator)
    gradients = [
        torch.randn(shape, generator=generator) * 10.0 ** (-3 * step) for step in range(count)
    ]
    gradients[1].view(-1)[0] = 0.0
    return table, gradients


def adagrad_of(table, gradients, decay, ids=None):
    table, sums = table.clone(), torch.zeros_like(table)
    for gradient in gradients:
        step = AdagradStep(weight_decay=decay, **NUMBERS)
        ops.update_rows((table, sums), ids, gradient, step)
    return table, sums


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (5, 2, 16), (41, 1000)])
def test_it_is_that_of_torch(isa, shape, decay):
    table, gradients = steps_of(shape)
    parameter = torch.nn.Parameter(table.clone())
    theirs = torch.optim.Adagrad([parameter], weight_decay=decay, fused=True, **NUMBERS)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        theirs.step()
    found, sums = adagrad_of(table, gradients, decay)
    right = parameter.detach(), theirs.state[parameter]["sum"]
    if isa != "baseline" and "AVX" in torch.backends.cpu.get_cpu_capability():
        assert torch.equal(found, right[0])
        assert torch.equal(sums, right[1])
    torch.testing.assert_close((found, sums), right)


def test_threads_change_no_bit():
    table, gradients = steps_of((3, 40_001))
    with threads(1):
        alone = adagrad_of(table, gradients, 0.1)
    with threads(3):
        together = adagrad_of(table, gradients, 0.1)
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.parametrize("shape", [(7, 3), (5, 2, 16), (41, 1000), (3, 40_001)])
def test_some_rows_are_as_in_a_step_of_all(isa, shape):
    table, gradients = steps_of(shape)
    ids = torch.tensor([2, 0])
    rest = [row for row in range(len(table)) if row not in ids]
    found = adagrad_of(table, [it[ids] for it in gradients], 0.0, ids)
    for got, whole, before in zip(
        found, adagrad_of(table, gradients, 0.0), (table, torch.zeros(shape)), strict=True
    ):
        assert torch.equal(got[ids], whole[ids])
        assert torch.equal(got[rest], before[rest])

"""Rows that optimizers update on a GPU: those of the CPU, whatever their width; nothing waits."""

import pytest
import torch

import kgfast
from kgfast import ops
from support.engines import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="runs in test_interpreted.py's processes")
ADAM = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
ADAGRAD = {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.01}
N = 13


def formula(tables, ids, gradients, step):
    """Adam (Kingma & Ba 2015, algorithm 1) of some rows, in float64."""
    table, first, second = tables
    g = gradients.double() + ADAM["weight_decay"] * table[ids]
    first[ids] = 0.9 * first[ids] + 0.1 * g
    second[ids] = 0.999 * second[ids] + 0.001 * g**2
    root = (second[ids] / (1 - 0.999**step)).sqrt() + ADAM["eps"]
    table[ids] -= ADAM["lr"] * first[ids] / (1 - 0.9**step) / root


@pytest.mark.parametrize("width", [1, 3, 64, 1500])
def test_adam_is_its_formula(width):
    generator = torch.Generator().manual_seed(width)
    tables = [torch.randn(N, width, generator=generator), *torch.zeros(2, N, width)]
    exact = [it.double() for it in tables]
    with ops.use_backend("triton"):
        for step in range(1, 6):
            ids = torch.randperm(N, generator=generator)[: 2 * step]
            gradients = torch.randn(len(ids), width, generator=generator)
            ops.row_adam(tables, ids, gradients, step=torch.tensor(float(step)), **ADAM)
            formula(exact, ids, gradients, step)
    for got, right in zip(tables, exact, strict=True):
        torch.testing.assert_close(got, right.float(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("ids", [None, torch.tensor([11, 0, 4])])
def test_adagrad_is_its_formula(ids):
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randn(N, 5, 7, generator=generator), torch.zeros(N, 5, 7)]
    exact, sums = (it.double() for it in tables)
    rows = slice(None) if ids is None else ids
    with ops.use_backend("triton"):
        for _ in range(3):
            gradients = torch.randn(exact[rows].shape, generator=generator)
            ops.row_adagrad(tables, ids, gradients, **ADAGRAD)
            g = gradients.double() + ADAGRAD["weight_decay"] * exact[rows]
            sums[rows] += g**2
            exact[rows] -= ADAGRAD["lr"] * g / (sums[rows].sqrt() + ADAGRAD["eps"])
    torch.testing.assert_close(tables[0], exact.float(), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(tables[1], sums.float())


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
def test_a_gradient_may_have_strides(shape):
    ids, numbers = torch.tensor([11, 0, 4]), torch.arange(12.0).view(shape)
    strided = numbers.transpose(0, -1).contiguous().transpose(0, -1)
    for call, count, options in (
        (ops.row_adam, 3, {"step": 1, **ADAM}),
        (ops.row_adagrad, 2, ADAGRAD),
    ):
        found = [torch.zeros(count, N, *shape[1:]).unbind() for _ in range(3)]
        gradients = numbers, strided, torch.ones(1).expand(shape)
        with ops.use_backend("triton"):
            for tables, gradient in zip(found, gradients, strict=True):
                call(tables, ids, gradient, **options)
        assert all(map(torch.equal, found[0], found[1]))
        assert all(len(it[ids].unique()) == 1 for it in found[2])


def test_an_id_out_of_range_changes_nothing_where_none_is_checked():
    """The rows around the table are memory of the same tensor: a write out of bounds would show."""
    memory = torch.ones(3, N + 2, 4)
    tables = [part[1:-1] for part in memory]
    with ops.use_backend("triton"), kgfast.unchecked():
        ops.row_adam(tables, torch.tensor([-1, N, 2]), torch.ones(3, 4), step=1, **ADAM)
    changed = (memory != 1).any(2).nonzero()
    assert {tuple(it) for it in changed.tolist()} <= {(part, 3) for part in range(3)}
    assert bool((memory[0, 3] != 1).all())

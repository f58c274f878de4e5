"""Rows that optimizers update on a GPU: those of the CPU, whatever their width; nothing waits."""

import pytest
import torch

import kgfast
from kgfast import RowGradients, losses, ops
from kgfast.kernels.backend import AdagradStep, AdamStep
from kgfast.ops.row_gradients import merge
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


def there(number):
    """Return a number as a graph of a step reads it."""
    return torch.tensor(float(number))


@pytest.mark.parametrize("of", [int, there])
@pytest.mark.parametrize("width", [1, 3, 64, 1500])
def test_adam_is_its_formula(width, of):
    generator = torch.Generator().manual_seed(width)
    tables = [torch.randn(N, width, generator=generator), *torch.zeros(2, N, width)]
    exact = [it.double() for it in tables]
    with ops.use_backend("triton"):
        for step in range(1, 6):
            ids = torch.randperm(N, generator=generator)[: 2 * step]
            gradients = torch.randn(len(ids), width, generator=generator)
            numbers = {"lr": ADAM["lr"] if of is int else there(ADAM["lr"]), "number": of(step)}
            ops.update_rows(tables, ids, gradients, AdamStep(**ADAM | numbers))
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
        for rate in (0.1, there(0.1), 0.1):
            gradients = torch.randn(exact[rows].shape, generator=generator)
            ops.update_rows(tables, ids, gradients, AdagradStep(**ADAGRAD | {"lr": rate}))
            g = gradients.double() + ADAGRAD["weight_decay"] * exact[rows]
            sums[rows] += g**2
            exact[rows] -= ADAGRAD["lr"] * g / (sums[rows].sqrt() + ADAGRAD["eps"])
    torch.testing.assert_close(tables[0], exact.float(), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(tables[1], sums.float())


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
def test_a_gradient_may_have_strides(shape):
    ids, numbers = torch.tensor([11, 0, 4]), torch.arange(12.0).view(shape)
    strided = numbers.transpose(0, -1).contiguous().transpose(0, -1)
    for count, step in ((3, AdamStep(number=1, **ADAM)), (2, AdagradStep(**ADAGRAD))):
        found = [torch.zeros(count, N, *shape[1:]).unbind() for _ in range(3)]
        gradients = numbers, strided, torch.ones(1).expand(shape)
        with ops.use_backend("triton"):
            for tables, gradient in zip(found, gradients, strict=True):
                ops.update_rows(tables, ids, gradient, step)
        assert all(map(torch.equal, found[0], found[1]))
        assert all(len(it[ids].unique()) == 1 for it in found[2])


def test_an_id_out_of_range_changes_nothing_where_none_is_checked():
    """The rows around the table are memory of the same tensor: a write out of bounds would show."""
    memory = torch.ones(3, N + 2, 4)
    tables = [part[1:-1] for part in memory]
    with ops.use_backend("triton"), kgfast.unchecked():
        step = AdamStep(number=1, **ADAM)
        ops.update_rows(tables, torch.tensor([-1, N, 2]), torch.ones(3, 4), step)
    changed = (memory != 1).any(2).nonzero()
    assert {tuple(it) for it in changed.tolist()} <= {(part, 3) for part in range(3)}
    assert bool((memory[0, 3] != 1).all())


@pytest.mark.parametrize("width", [1, 3, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_rows_of_an_id_are_summed_for_the_first(width, dtype):
    """Runs are shorter and longer than what a program reads at a time."""
    ids = torch.tensor([7, 2, *[5] * 19, 2, 12, 0, *[7] * 8])
    rows = torch.randn(len(ids), width, generator=torch.Generator().manual_seed(3)).to(dtype)
    gradient = torch.sparse_coo_tensor(ids[None], rows, (N, width), check_invariants=True)
    exact = torch.zeros(N, width, dtype=torch.float64).index_add_(0, ids, rows.double())
    with ops.use_backend("triton"):
        found = RowGradients.of(gradient)
        again = RowGradients.of(found.to_sparse(N))
    assert found.repeats
    assert torch.equal(found.ids, ids.sort().values)
    is_first = torch.ones(len(ids), dtype=torch.bool)
    is_first[1:] = found.ids[1:] != found.ids[:-1]
    torch.testing.assert_close(found.rows[is_first], exact[[0, 2, 5, 7, 12]].to(dtype))
    assert not found.rows[~is_first].any()
    assert again.rows.data_ptr() == found.rows.data_ptr()  # sums know their rows
    one_each = found.distinct()
    assert one_each.ids.tolist() == [0, 2, 5, 7, 12]
    assert torch.equal(one_each.rows, found.rows[is_first])
    assert torch.equal(found.to_sparse(N).to_dense()[one_each.ids], one_each.rows)


def test_a_sum_with_another_gradient_is_summed_anew():
    found = RowGradients(torch.tensor([1, 4, 4]), torch.ones(3, 2), repeats=True)
    gradient = found.to_sparse(N)
    gradient.add_(RowGradients(torch.tensor([4]), torch.ones(1, 2)).to_sparse(N))
    with ops.use_backend("triton"):
        assert RowGradients.of(gradient).to_sparse(N).to_dense()[:, 0].tolist() == (
            [0.0, 1.0, 0.0, 0.0, 3.0, *[0.0] * 8]
        )
        merged = merge(found, [(torch.tensor([4, 0]), torch.ones(2, 2))])
    assert merged.ids.tolist() == [0, 1, 4, 4, 4]
    assert merged.rows[:, 0].tolist() == [1.0, 1.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("make", [kgfast.RowAdam, kgfast.RowAdagrad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_with_repeats_is_updated_once(make, dtype):
    """Compare tables of float64, which have no kernel, too."""
    ids, rows = torch.tensor([3, 5, 5, 5, 9]), torch.arange(1.0, 6.0, dtype=dtype)[:, None]
    start = torch.ones(N, 1, dtype=dtype)
    tables = []
    for repeats in (False, True):
        table = torch.nn.Parameter(start.clone())
        given = RowGradients(ids, rows * torch.tensor([1, 1, 0, 0, 1])[:, None], repeats=True)
        table.grad = (given if repeats else given.distinct()).to_sparse(N)
        with ops.use_backend("triton"):
            make([table], lr=0.1).step()
        tables.append(table.detach())
    assert torch.equal(*tables)
    assert (tables[0] != 1).flatten().nonzero().flatten().tolist() == [3, 5, 9]


def test_ids_that_do_not_ascend_are_named():
    tables = torch.zeros(3, N, 1).unbind()
    ids, rows, step = torch.tensor([3, 3, 2]), torch.ones(3, 1), AdamStep(number=1, **ADAM)
    with ops.use_backend("triton"):
        with pytest.raises(ValueError, match=r"ids\[2\] must be at least ids\[1\]; got 2"):
            ops.update_rows(tables, ids, rows, step, repeats=True)
        with pytest.raises(ValueError, match=r"ids\[1\] must not repeat"):
            ops.update_rows(tables, ids, rows, step)
    with ops.use_backend("cpu"), pytest.raises(ValueError, match=r"ids\[1\] must not repeat"):
        ops.update_rows(tables, ids, rows, step, repeats=True)


@pytest.mark.parametrize(("shape", "uses"), [((5,), 1), ((6, 5), 2)], ids=["pool", "lists"])
def test_a_loss_by_rows_leaves_the_gradient_of_the_whole_table(shape, uses):
    """A loss that is used twice adds gradients of rows, whose ids then do not ascend."""
    generator = torch.Generator().manual_seed(4)
    triples = torch.stack([torch.randint(n, (6,), generator=generator) for n in (N, 2, N)], 1)
    negatives = torch.randint(N, shape, generator=generator)
    found = []
    for sparse in (False, True):
        model = kgfast.RotatE.init(N, 2, 4, seed=1)
        with ops.use_backend("triton"):
            for _ in range(uses):
                losses.nssa(model, triples, negatives, sparse=sparse).backward()
            gradient = model.entity.grad
            if sparse:
                gradient = RowGradients.of(gradient).distinct().to_sparse(N).to_dense()
        found.append(gradient)
    torch.testing.assert_close(*found)

"""Optimizers of rows against formulas and torch; the optimizer of a run: clipping, scale, state."""

import math

import pytest
import torch
from torch import nn

from kgfast import DistMult, RowAdagrad, RowAdam, RowGradients, ops
from kgfast.training.config import Config
from kgfast.training.optimizer import Optimizer
from support.sampled import threads


def random_rows(table, count, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(len(table), generator=generator)[:count].sort().values
    return ids, torch.randn(count, table.shape[1], generator=generator, dtype=table.dtype)


def stepped(optimizer, parameter, ids, rows):
    """Make a step with gradients of rows."""
    parameter.grad = RowGradients(ids, rows).to_sparse(len(parameter))
    optimizer.step()
    parameter.grad = None


def adam_by_hand(table, steps, lr, betas, eps, decay):
    """Kingma & Ba 2015, algorithm 1, a row at a time, in float64."""
    table = table.double().clone()
    first, second = torch.zeros_like(table), torch.zeros_like(table)
    for step, (ids, gradients) in enumerate(steps, start=1):
        for row, gradient in zip(ids.tolist(), gradients.double(), strict=True):
            gradient = gradient + decay * table[row]
            first[row] = betas[0] * first[row] + (1 - betas[0]) * gradient
            second[row] = betas[1] * second[row] + (1 - betas[1]) * gradient**2
            moment = first[row] / (1 - betas[0] ** step)
            variance = second[row] / (1 - betas[1] ** step)
            table[row] -= lr * moment / (variance.sqrt() + eps)
    return table


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_row_adam_is_adam_on_the_rows_of_a_step(decay, backend):
    table = torch.randn(11, 5, generator=torch.Generator().manual_seed(1))
    steps = [random_rows(table, count, seed) for seed, count in enumerate((11, 3, 1, 7, 0, 4))]
    expected = adam_by_hand(table, steps, 0.05, (0.8, 0.95), 1e-6, decay)
    parameter = nn.Parameter(table.clone())
    optimizer = RowAdam([parameter], 0.05, (0.8, 0.95), 1e-6, decay)
    for ids, gradients in steps:
        stepped(optimizer, parameter, ids, gradients)
    torch.testing.assert_close(parameter.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_row_optimizers_are_the_dense_ones_where_every_row_is_used(decay, backend):
    for lazy, dense in (
        (
            lambda p: RowAdam([p], 0.05, (0.9, 0.99), 1e-8, decay),
            lambda p: torch.optim.Adam([p], 0.05, (0.9, 0.99), 1e-8, decay),
        ),
        (
            lambda p: RowAdagrad([p], 0.05, weight_decay=decay),
            lambda p: torch.optim.Adagrad([p], 0.05, weight_decay=decay),
        ),
    ):
        table = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
        parameters = [nn.Parameter(table.clone()) for _ in range(3)]
        by_rows, whole, theirs = (
            make(parameter) for make, parameter in zip((lazy, lazy, dense), parameters, strict=True)
        )
        for step in range(5):
            ids, gradients = random_rows(table, 6, step)
            stepped(by_rows, parameters[0], ids, gradients)
            for optimizer, parameter in zip((whole, theirs), parameters[1:], strict=True):
                parameter.grad = torch.zeros_like(table).index_copy_(0, ids, gradients)
                optimizer.step()
        for parameter in parameters[:2]:
            torch.testing.assert_close(parameter, parameters[2], rtol=1e-6, atol=1e-7)


def test_rows_that_a_step_does_not_use_stay_as_they_are(backend):
    for make in (RowAdam, RowAdagrad):
        table = nn.Parameter(torch.randn(9, 4))
        optimizer = make([table], lr=0.1)
        stepped(optimizer, table, torch.arange(9), torch.ones(9, 4))
        states = {name: optimizer.state[table][name] for name in make.names}
        before = table.detach().clone(), {name: it.clone() for name, it in states.items()}
        stepped(optimizer, table, torch.tensor([2, 7]), torch.ones(2, 4))
        others = torch.tensor([0, 1, 3, 4, 5, 6, 8])
        assert torch.equal(table[others], before[0][others])
        assert not bool((table[[2, 7]] == before[0][[2, 7]]).any())
        for name, state in states.items():
            assert torch.equal(state[others], before[1][name][others])
        assert int(optimizer.state[table]["step"]) == 2


def test_threads_and_strides_change_no_row(backend):
    start = torch.randn(99, 7, generator=torch.Generator().manual_seed(3))
    tables = [nn.Parameter(start.clone()) for _ in range(2)]
    ids, gradients = random_rows(start, 80, 0)
    for _ in range(2):
        stepped(RowAdam([tables[0]], 0.1), tables[0], ids, gradients)
    with threads(5):
        for _ in range(2):
            stepped(RowAdam([tables[1]], 0.1), tables[1], ids, gradients.t().contiguous().t())
    assert torch.equal(*tables)


@pytest.mark.parametrize("table", [torch.zeros(4, 6)[:, ::2], torch.zeros(4, 3).double()])
def test_a_table_that_the_kernel_does_not_take_is_updated_by_torch(table):
    assert not ops.serves_rows(table)
    parameter = nn.Parameter(table)
    optimizer = RowAdam([parameter], lr=0.5)
    stepped(optimizer, parameter, torch.tensor([1]), torch.ones(1, 3, dtype=table.dtype))
    torch.testing.assert_close(parameter[1].detach(), torch.full((3,), -0.5, dtype=table.dtype))


@pytest.mark.parametrize("make", [RowAdam, RowAdagrad])
@pytest.mark.parametrize("shape", [(5,), (5, 2, 3)], ids=["one axis", "three axes"])
def test_rows_may_have_any_number_of_axes(make, shape, backend):
    flat = torch.randn(5, 1 if len(shape) == 1 else 6, generator=torch.Generator().manual_seed(4))
    tables = [nn.Parameter(flat.clone()), nn.Parameter(flat.view(shape).clone())]
    optimizers = [make([table], lr=0.1) for table in tables]
    for step in range(2):
        ids, gradients = random_rows(flat, 2, step)
        for table, optimizer in zip(tables, optimizers, strict=True):
            rows = gradients.view(2, *table.shape[1:])
            table.grad = torch.sparse_coo_tensor(
                ids[None], rows, table.shape, is_coalesced=True, check_invariants=True
            )
            optimizer.step()
    assert torch.equal(tables[0].view(shape), tables[1])


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"eps": float("nan")}, {"weight_decay": -1.0}])
def test_numbers(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be finite"):
        RowAdam([nn.Parameter(torch.ones(2))], **options)
    with pytest.raises(ValueError, match="betas must be two numbers in"):
        RowAdam([nn.Parameter(torch.ones(2))], betas=(0.9, 1.0))


def config_of(**optim):
    return Config.from_dict(
        {
            "dataset": {"name": "x"},
            "model": {"name": "distmult", "base_dim": 4},
            "optim": {"lr": 0.1, **optim},
            "train": {"steps": 1},
        }
    ).optim


def model_with_gradients(relation=3.0):
    model = DistMult(torch.zeros(5, 2), torch.zeros(1, 2)).requires_grad_()
    model.relation.grad = torch.full((1, 2), relation)
    return model, [RowGradients(torch.tensor([1]), torch.tensor([[2.0, 0.0]])) for _ in range(2)]


@pytest.mark.parametrize("clip", [1.0, 100.0])
@pytest.mark.parametrize("name", ["row_adagrad", "sgd"])
def test_clipping_counts_rows_and_parameters_together(name, clip):
    model, rows = model_with_gradients()
    optimizer = Optimizer(model, config_of(name=name, grad_clip=clip), lazy=True)
    if name == "row_adagrad":

        def plain(tables, found, step, group):
            tables[0].index_add_(0, found.ids, -group["lr"] * found.rows)

        optimizer._optimizer._step_rows = plain
    for row in rows:
        model.entity.grad = row.to_sparse(5)
        optimizer.collect()
    optimizer.set_rate(1.0)
    optimizer.step()
    norm = math.sqrt(9 + 9 + 16) if clip == 1.0 else 1.0
    torch.testing.assert_close(model.entity[1], torch.tensor([-4 / norm, 0.0]))
    if name == "sgd":
        torch.testing.assert_close(model.relation[0], torch.tensor([-3 / norm, -3 / norm]))
    assert model.relation.grad is None


@pytest.mark.parametrize("lazy", [True, False], ids=["rows", "all"])
@pytest.mark.parametrize("name", ["row_adam", "adam", "row_adagrad", "adagrad", "sgd"])
def test_a_loaded_optimizer_goes_on_bit_equal(name, lazy):
    def make():
        return DistMult.init(8, 2, 4, seed=0)

    def step(model, optimizer, number):
        model.relation.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
        generator = torch.Generator().manual_seed(number)
        ids = torch.randperm(8, generator=generator)[:3].sort().values
        rows = RowGradients(ids, torch.randn(3, 4, generator=generator))
        model.entity.grad = rows.to_sparse(8)
        optimizer.collect()
        optimizer.set_rate(0.1 / (1 + number))
        optimizer.step()

    straight = make()
    optimizer = Optimizer(straight, config_of(name=name), lazy=lazy)
    for number in range(4):
        step(straight, optimizer, number)
    saved = {key: value.clone() for key, value in optimizer.tensors().items()}
    parameters = {key: value.clone() for key, value in straight.state_dict().items()}
    resumed = make()
    resumed.load_state_dict(parameters)
    second = Optimizer(resumed, config_of(name=name), lazy=lazy)
    second.load(saved)
    for number in range(4, 7):
        step(straight, optimizer, number)
        step(resumed, second, number)
    assert torch.equal(straight.entity, resumed.entity)
    assert torch.equal(straight.relation, resumed.relation)
    assert not torch.equal(straight.entity, parameters["entity"])
    assert {key.split(".")[0] for key in saved} == (
        set() if name == "sgd" else {"entity", "relation"}
    )

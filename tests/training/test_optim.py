"""Lazy optimizers against their formulas, merged row gradients, clipping, scaling, state."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kgfast import DistMult, ops
from kgfast.kernels import cpu
from kgfast.training.config import Config
from kgfast.training.optim import LossScaler, Optimizer
from kgfast.training.row_gradients import RowGradients, add_to, merge
from kgfast.training.row_optim import RowAdagrad, RowAdam
from support.sampled import threads


def config_of(**optim):
    return Config.from_dict(
        {
            "dataset": {"name": "x"},
            "model": {"name": "distmult", "base_dim": 4},
            "optim": {"lr": 0.1, **optim},
            "train": {"steps": 1},
        }
    ).optim


def random_rows(table, count, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(len(table), generator=generator)[:count]
    return ids, torch.randn(count, table.shape[1], generator=generator, dtype=table.dtype)


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


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    if request.param == "cpu" and not cpu.is_available():
        pytest.skip("the extension is not built")
    with ops.use_backend(request.param):
        yield request.param


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_row_adam_is_adam_on_the_rows_of_a_step(decay, backend):
    table = torch.randn(11, 5, generator=torch.Generator().manual_seed(1))
    steps = [random_rows(table, count, seed) for seed, count in enumerate((11, 3, 1, 7, 0, 4))]
    expected = adam_by_hand(table, steps, 0.05, (0.8, 0.95), 1e-6, decay)
    optimizer = RowAdam(table, (0.8, 0.95), 1e-6, decay)
    for step, (ids, gradients) in enumerate(steps):
        optimizer.step(ids, gradients, 0.05, step)
    torch.testing.assert_close(table.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_row_optimizers_are_the_dense_ones_where_every_row_is_used(decay, backend):
    for lazy, dense in (
        (
            lambda t: RowAdam(t, (0.9, 0.99), 1e-8, decay),
            lambda p: torch.optim.Adam(p, 0.05, (0.9, 0.99), 1e-8, decay),
        ),
        (
            lambda t: RowAdagrad(t, 1e-10, decay),
            lambda p: torch.optim.Adagrad(p, 0.05, weight_decay=decay),
        ),
    ):
        table = torch.randn(6, 3, generator=torch.Generator().manual_seed(2))
        parameter = nn.Parameter(table.clone())
        ours, theirs = lazy(table), dense([parameter])
        for step in range(5):
            ids, gradients = random_rows(table, 6, step)
            parameter.grad = torch.zeros_like(table).index_copy_(0, ids, gradients)
            theirs.step()
            ours.step(ids, gradients, 0.05, step)
        torch.testing.assert_close(table, parameter.detach(), rtol=1e-6, atol=1e-7)


def test_rows_that_a_step_does_not_use_stay_as_they_are(backend):
    table = torch.randn(9, 4)
    for optimizer in (RowAdam(table, (0.9, 0.999)), RowAdagrad(table)):
        optimizer.step(torch.arange(9), torch.ones(9, 4), 0.1, 0)
        before = table.clone(), {name: state.clone() for name, state in optimizer.states.items()}
        optimizer.step(torch.tensor([7, 2]), torch.ones(2, 4), 0.1, 1)
        others = torch.tensor([0, 1, 3, 4, 5, 6, 8])
        assert torch.equal(table[others], before[0][others])
        assert not bool((table[[2, 7]] == before[0][[2, 7]]).any())
        for name, state in optimizer.states.items():
            assert torch.equal(state[others], before[1][name][others])


def test_neither_blocks_nor_threads_change_a_row(monkeypatch, backend):
    tables = [torch.randn(99, 7, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    ids, gradients = random_rows(tables[0], 80, 0)
    RowAdam(tables[0], (0.9, 0.999)).step(ids, gradients, 0.1, 4)
    monkeypatch.setattr("kgfast.training.row_optim._BLOCK", {"cpu": 20})
    with threads(5):
        RowAdam(tables[1], (0.9, 0.999)).step(ids, gradients.t().contiguous().t(), 0.1, 4)
    assert torch.equal(*tables)


@pytest.mark.parametrize("table", [torch.zeros(4, 6)[:, ::2], torch.zeros(4, 3).double()])
def test_a_table_that_the_kernel_does_not_take_is_updated_by_torch(table):
    assert not ops.serves_row_adam(table)
    RowAdam(table, (0.9, 0.999)).step(
        torch.tensor([1]), torch.ones(1, 3, dtype=table.dtype), 0.5, 0
    )
    torch.testing.assert_close(table[1], torch.full((3,), -0.5, dtype=table.dtype))


@given(seed=st.integers(0, 999), with_base=st.booleans())
@settings(max_examples=40)
def test_merged_gradients_are_the_sum_with_each_row_once(seed, with_base):
    generator = torch.Generator().manual_seed(seed)
    entities, parts = 12, []
    for _ in range(3):
        count = int(torch.randint(0, 9, (1,), generator=generator))
        ids = torch.randint(entities, (count,), generator=generator)
        parts.append(RowGradients(ids, torch.randint(-4, 5, (count, 3)).float()))
    if with_base:
        ids = torch.randperm(entities, generator=generator)[:5].sort().values
        parts.insert(1, RowGradients(ids, torch.randint(-4, 5, (5, 3)).float(), distinct=True))
    expected = torch.zeros(entities, 3)
    for part in parts:
        for row, gradient in zip(part.ids.tolist(), part.rows, strict=True):
            expected[row] += gradient
    named = set(torch.cat([part.ids for part in parts]).tolist())
    merged = merge(parts)
    ids = torch.cat([part.ids for part in merged])
    assert sorted(ids.tolist()) == sorted(named)
    total = torch.zeros(entities, 3)
    add_to(total, merged)
    assert torch.equal(total, expected)


def test_no_gradients_have_no_parts():
    assert merge([]) == []


def model_with_gradients(relation=3.0):
    model = DistMult(torch.zeros(5, 2), torch.zeros(1, 2)).requires_grad_()
    model.relation.grad = torch.full((1, 2), relation)
    return model, [RowGradients(torch.tensor([1, 1]), torch.tensor([[2.0, 0.0], [2.0, 0.0]]))]


@pytest.mark.parametrize("name", ["row_adagrad", "sgd"])
def test_clipping_counts_rows_and_parameters_together(name):
    model, rows = model_with_gradients()
    optimizer = Optimizer(model, config_of(name="sgd", grad_clip=1.0), lazy=True)
    if name == "row_adagrad":
        optimizer._rows = RowAdagrad(model.entity)
        optimizer._rows._update = lambda found, gradient, lr, step: found[0].sub_(lr * gradient)
    optimizer.add(rows)
    optimizer.step(0, 1.0)
    norm = math.sqrt(9 + 9 + 16)  # the two rows of entity 1 sum to (4, 0)
    torch.testing.assert_close(model.entity[1], torch.tensor([-4 / norm, 0.0]))
    if name == "sgd":
        torch.testing.assert_close(model.relation[0], torch.tensor([-3 / norm, -3 / norm]))
    assert model.relation.grad is None


def test_small_gradients_are_not_clipped():
    model, rows = model_with_gradients()
    optimizer = Optimizer(model, config_of(name="sgd", grad_clip=100.0), lazy=True)
    optimizer.add(rows)
    optimizer.step(0, 1.0)
    assert model.entity[1].tolist() == [-4.0, 0.0]


def test_a_scaled_step_is_the_step_or_none():
    model, rows = model_with_gradients(relation=3.0 * 2**16)
    optimizer = Optimizer(model, config_of(name="sgd"), lazy=True, scaled=True)
    optimizer.add([RowGradients(rows[0].ids, rows[0].rows * 2**16)])
    optimizer.step(0, 1.0)
    assert model.entity[1].tolist() == [-4.0, 0.0]
    assert model.relation[0].tolist() == [-3.0, -3.0]
    model.relation.grad = torch.tensor([[math.inf, 0.0]])
    optimizer.step(1, 1.0)
    assert model.relation[0].tolist() == [-3.0, -3.0]
    assert optimizer.scaler.scale == 2.0**15
    assert model.relation.grad is None


def test_the_scale_grows_after_steps_that_went_well():
    scaler = LossScaler(True, scale=8.0, patience=3)
    assert [scaler.accepts(1.0) for _ in range(3)] == [True] * 3
    assert scaler.scale == 16.0
    other = LossScaler(True)
    other.load(scaler.state())
    assert other.scale == 16.0
    assert LossScaler(False).scale == 1.0


@pytest.mark.parametrize("lazy", [True, False], ids=["rows", "all"])
@pytest.mark.parametrize("name", ["row_adam", "adam", "row_adagrad", "adagrad", "sgd"])
def test_a_loaded_optimizer_goes_on_bit_equal(name, lazy):
    def make():
        return DistMult.init(8, 2, 4, seed=0)

    def step(model, optimizer, number):
        model.relation.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
        optimizer.add([RowGradients(*random_rows(model.entity, 3, number))])
        optimizer.step(number, 0.1 / (1 + number))

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

"""The optimizer of a run: gradients of rows, clipping, scaling, state."""

import math

import pytest
import torch

from kgfast import DistMult, RowGradients
from kgfast.training.config import Config
from kgfast.training.optimizer import LossScale, Optimizer


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

        optimizer._rows._step_rows = plain
    optimizer.collect(rows)
    optimizer.step(0, 1.0)
    # The two rows of entity 1 sum to (4, 0).
    norm = math.sqrt(9 + 9 + 16) if clip == 1.0 else 1.0
    torch.testing.assert_close(model.entity[1], torch.tensor([-4 / norm, 0.0]))
    if name == "sgd":
        torch.testing.assert_close(model.relation[0], torch.tensor([-3 / norm, -3 / norm]))
    assert model.relation.grad is None


def test_a_scaled_step_is_the_step_or_none():
    model, rows = model_with_gradients(relation=3.0 * 2**16)
    optimizer = Optimizer(model, config_of(name="sgd"), lazy=True)
    optimizer.loss_scale = LossScale()
    optimizer.collect([RowGradients(it.ids, it.rows * 2**16) for it in rows])
    optimizer.step(0, 1.0)
    assert model.entity[1].tolist() == [-4.0, 0.0]
    assert model.relation[0].tolist() == [-3.0, -3.0]
    model.relation.grad = torch.tensor([[math.inf, 0.0]])
    optimizer.step(1, 1.0)
    assert model.relation[0].tolist() == [-3.0, -3.0]
    assert optimizer.scale == 2.0**15
    assert model.relation.grad is None


def test_the_scale_grows_after_steps_that_went_well():
    loss = LossScale(scale=8.0, good=1997)
    assert [loss.accepts(1.0) for _ in range(3)] == [True] * 3
    assert (loss.scale, loss.good) == (16.0, 0)


@pytest.mark.parametrize("lazy", [True, False], ids=["rows", "all"])
@pytest.mark.parametrize("name", ["row_adam", "adam", "row_adagrad", "adagrad", "sgd"])
def test_a_loaded_optimizer_goes_on_bit_equal(name, lazy):
    def make():
        return DistMult.init(8, 2, 4, seed=0)

    def step(model, optimizer, number):
        model.relation.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(number))
        generator = torch.Generator().manual_seed(number)
        ids = torch.randperm(8, generator=generator)[:3].sort().values
        optimizer.collect([RowGradients(ids, torch.randn(3, 4, generator=generator))])
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

"""Runs that train at the same time, in threads of one process, are those that train alone."""

import threading

import pytest
import torch

from kgfast import ConvE
from kgfast.models.dropout import Dropout
from support.small_runs import trainer_of

CONVE = {
    "model": {"name": "conve", "base_dim": 16, "embedding_height": 4, "channels": 4, "gamma": 12.0},
    "optim": {"name": "adam", "lr": 0.02},
    "train": {"steps": 6, "mode": "kvsall", "eval_every": 0},
    "loss": {"name": "bce"},
}


def trained(seed: int) -> list[torch.Tensor]:
    trainer = trainer_of(**CONVE, seed=seed)
    trainer.fit()
    return list(trainer.model.state_dict().values())


def test_three_trainers_in_threads_equal_one_alone():
    alone = {seed: trained(seed) for seed in (1, 2)}
    found: dict[int, list[torch.Tensor]] = {}
    seeds = {0: 1, 1: 2, 2: 1}

    def run(place: int) -> None:
        found[place] = trained(seeds[place])

    threads = [threading.Thread(target=run, args=(place,)) for place in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, seed in seeds.items():
        assert all(torch.equal(*pair) for pair in zip(found[place], alone[seed], strict=True))


def test_a_run_neither_reads_nor_moves_the_generator_of_the_process():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = trained(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert all(torch.equal(*pair) for pair in zip(first, trained(1), strict=True))


def test_afterwards_dropout_draws_from_the_generator_of_the_process():
    trainer = trainer_of(**CONVE)
    trainer.fit()
    layers = [it for it in trainer.model.modules() if isinstance(it, Dropout)]
    assert len(layers) == 3
    assert all(layer.generator is None for layer in layers)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_is_that_of_torch(whole, p):
    own = Dropout(p, whole_channels=whole)
    other = torch.nn.Dropout2d(p) if whole else torch.nn.Dropout(p)
    own.generator = torch.Generator().manual_seed(4)
    values = torch.randn(5, 6, 4, 3, requires_grad=True)
    torch.manual_seed(4)
    want = other(values)
    got = own(values)
    assert torch.equal(got, want)
    (slope,) = torch.autograd.grad(got.sum(), values)
    (wanted,) = torch.autograd.grad(want.sum(), values)
    assert torch.equal(slope, wanted)
    assert torch.equal(own.eval()(values), values)


def test_the_network_of_a_seed_is_that_of_torch():
    model = ConvE.init(7, 2, 16, embedding_height=4, channels=4, seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(model.projection.in_features, 16)]
    for own, other in zip((model.convolution, model.projection), layers, strict=True):
        assert torch.equal(own.weight, other.weight)
        assert torch.equal(own.bias, other.bias)

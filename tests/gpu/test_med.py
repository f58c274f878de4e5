"""Training croppable and filtered models on a real GPU, against the same on the CPU."""

import copy

import pytest
import torch

from kgfast import MED, RSCF, DistMult, RotatE, TransE, losses
from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer

DEVICE = "cuda"
N, R, DIM, DIMS = 300, 5, 24, [6, 12, 24]


def med_of(name, crop):
    model = {
        "rotate": lambda: RotatE.init(N, R, DIM, gamma=6.0, seed=0),
        "rotate + rscf": lambda: RSCF(RotatE.init(N, R, DIM, gamma=6.0, seed=0), seed=1),
        "transe + rscf": lambda: RSCF(TransE.init(N, R, DIM, gamma=6.0, seed=0), seed=1),
        "distmult + rscf": lambda: RSCF(DistMult.init(N, R, DIM, seed=0), False, seed=1),
    }[name]()
    return MED(model, DIMS, crop=crop)


def loss_and_gradients(med, triples, negatives, side):
    device = med.entity.device
    loss = losses.med(med, triples, negatives.to(device), side=side)
    names, leaves = zip(*med.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = {name: it for name, it in zip(names, gradients, strict=True) if it is not None}
    return found | {"loss": loss.detach()}


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("crop", ["prefix", "split"])
@pytest.mark.parametrize("name", ["rotate", "rotate + rscf", "transe + rscf", "distmult + rscf"])
def test_loss_and_gradients_are_those_of_the_cpu(name, crop, shared, side):
    generator = torch.Generator().manual_seed(2)
    triples = torch.stack(
        [torch.randint(limit, (64,), generator=generator) for limit in (N, R, N)], 1
    )
    negatives = torch.randint(N, (48,) if shared else (64, 16), generator=generator)
    med = med_of(name, crop)
    expected = loss_and_gradients(copy.deepcopy(med).double(), triples, negatives, side)
    med = med.to(DEVICE)
    found, again = (loss_and_gradients(med, triples, negatives, side) for _ in range(2))
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        error = (found[key].double().cpu() - wanted).abs().max()
        # The derivatives by w1 and w2 are small differences of means of scores.
        allowed = 1e-4 * wanted.abs().max() + (1e-5 if wanted.ndim == 0 else 1e-7)
        assert error <= allowed, key
        assert torch.equal(found[key], again[key]), key


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
@pytest.mark.parametrize("optimizer", ["adam", "row_adam"])
def test_a_run(negatives, optimizer):
    config = Config.from_dict(
        {
            "device": DEVICE,
            "dataset": {"name": "synthetic"},
            "model": {"name": "rotate", "base_dim": 16, "use_rscf": True},
            "med": {"dims": [4, 8, 16], "submodels_per_step": 3},
            "optim": {"name": optimizer, "lr": 1e-2},
            "train": {"steps": 30, "eval_every": 10},
            "data": {"train_bs": 64, "neg_size": 16, "negatives": negatives},
        }
    )
    graph = synthetic(200, 6, 500, 50, 50)
    result = Trainer(config, dataset=graph, progress=False).fit()
    assert list(result.test_of_submodels) == ["4", "8", "16"]
    assert all(0 < metrics["mrr"] <= 1 for metrics in result.test_of_submodels.values())


def test_filters_of_a_large_step_take_little_room():
    """Of 40,943 rows of 1,024: beyond the results and gradients less than 64 MiB."""
    from kgfast.models.filters import filters_of

    rows = torch.randn(40_943, 1024, device=DEVICE, requires_grad=True)
    matrix = torch.randn(1024, 512, device=DEVICE, requires_grad=True)
    widths = [128, 256, 512]
    spans = [
        [slice(plane * 512 + low, plane * 512 + high) for plane in range(2)]
        for low, high in ((0, 128), (128, 256), (256, 512))
    ]
    for _ in range(2):  # the first loads what matrix products need
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = filters_of(rows, matrix, spans, widths)
        results = sum(it.nbytes for it in found)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak <= results + (64 << 20)
        weights = [torch.ones_like(it) for it in found]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients = torch.autograd.grad(found, (rows, matrix), weights)
        peak = torch.cuda.max_memory_allocated() - before
        assert peak <= sum(it.nbytes for it in gradients) + (64 << 20)
        del found, gradients, weights

"""Adagrad on whole parameters: the bits of torch's, on every instruction set."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.training.config import Config
from kgfast.training.optimizer import Optimizer
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


def adagrad_of(table, gradients, decay):
    table, sums = table.clone(), torch.zeros_like(table)
    for gradient in gradients:
        ops.adagrad(table, sums, gradient, weight_decay=decay, **NUMBERS)
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


def test_an_optimizer_of_a_run_is_that_of_torch():
    def trained(served):
        model = torch.nn.Module()
        model.entity = torch.nn.Parameter(torch.linspace(-1, 1, 90).view(9, 10))
        config = Config.from_dict(
            {
                "dataset": {"name": "x"},
                "model": {"name": "distmult", "base_dim": 10},
                "optim": {"name": "adagrad", "lr": 0.1},
                "train": {"steps": 1},
            }
        ).optim
        with ops.use_backend("cpu" if served else "reference"):
            optimizer = Optimizer(model, config, lazy=False)
            assert optimizer.runs_on_kernels == served
            for step in range(3):
                model.entity.grad = model.entity.detach() * 3
                optimizer.step(step, 0.1)
        return {"entity": model.entity.detach(), **optimizer.tensors()}

    ours, theirs = trained(True), trained(False)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])
    assert ours["entity.step"] == 3


BAD = {
    "another shape": (1, torch.zeros(3, 2)),
    "another dtype": (2, torch.zeros(2, 3).double()),
    "sums with strides": (1, torch.zeros(3, 2).t()),
    "another device": (2, torch.zeros(2, 3, device="meta")),
}


@pytest.mark.parametrize(("place", "tensor"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(place, tensor):
    given = [torch.ones(2, 3) for _ in range(3)]
    given[place] = tensor
    name = ("parameter", "sums", "gradient")[place]
    with pytest.raises(ValueError, match=rf"^{name} must be float32 \[2, 3\]"):
        ops.adagrad(*given, weight_decay=0.0, **NUMBERS)
    assert bool((given[0] == 1).all())


def test_a_gradient_may_have_strides():
    table, gradients = steps_of((6, 5))
    strided = [it.t().contiguous().t() for it in gradients]
    found, expected = adagrad_of(table, strided, 0.0), adagrad_of(table, gradients, 0.0)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_tensors_that_share_memory_are_refused():
    memory = torch.zeros(3, 2)
    numbers = {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.0}
    with pytest.raises(ValueError, match="sums must not share memory with parameter"):
        ops.adagrad(memory, memory, torch.ones(3, 2), **numbers)
    with pytest.raises(ValueError, match="gradient must not share memory with sums"):
        ops.adagrad(torch.zeros(3, 2), memory, memory, **numbers)
    assert not memory.any()

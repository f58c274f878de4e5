"""loss.precision: products of rounded operands in training over all entities."""

import pytest
import torch

from kgfast import use_backend
from kgfast.kernels import cpu
from kgfast.ops import run
from kgfast.training.objective import MODES
from support.small_runs import GRAPH, LEARNERS, trainer_of

NAMES = ("complex, 1vsall, n3", "complex, kvsall")


def sections_of(name: str, precision: str):
    sections, _ = LEARNERS[name]
    return {**sections, "loss": {**sections["loss"], "precision": precision}}


def first_loss(name: str, precision: str) -> torch.Tensor:
    trainer = trainer_of(**sections_of(name, precision))
    with torch.no_grad():
        trainer.model.entity.mul_(5.0)  # away from losses that are all the same
    objective = MODES[trainer.config.train.mode](trainer.config, GRAPH.train.hrt, 300)
    return sum(objective(trainer.model, objective.batch(0))).detach()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_rounds_what_it_multiplies(name):
    with use_backend("reference"):
        plain, rounded = (first_loss(name, precision) for precision in ("float32", "bf16"))
    assert not torch.equal(plain, rounded)
    torch.testing.assert_close(plain, rounded, rtol=2e-3, atol=0)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
@pytest.mark.parametrize("name", NAMES)
def test_a_cpu_trains_in_float32(name):
    run._warn_of_float32.cache_clear()
    with use_backend("cpu"):
        plain = first_loss(name, "float32")
        with pytest.warns(UserWarning, match="precision: bf16 is for GPUs") as told:
            rounded = [first_loss(name, "bf16") for _ in range(2)]
        assert len([it for it in told if "precision" in str(it.message)]) == 1
    assert all(torch.equal(plain, it) for it in rounded)

"""loss.precision: products of rounded operands in training over all entities."""

import warnings

import pytest
import torch

from kgfast import use_backend
from kgfast.kernels import cpu
from kgfast.ops import dispatch
from kgfast.training.objective import MODES
from support.small_runs import GRAPH, LEARNERS, trainer_of
from support.tiers import lacks, needs_tier

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
def test_a_step_rounds_what_it_multiplies(name, backend):
    if backend == "cpu" and lacks("bf16 losses"):
        pytest.skip(lacks("bf16 losses"))
    plain, rounded = (first_loss(name, precision) for precision in ("float32", "bf16"))
    assert not torch.equal(plain, rounded)
    torch.testing.assert_close(plain, rounded, rtol=2e-3, atol=0)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_a_machine_without_such_products_trains_in_float32(monkeypatch):
    with use_backend("cpu"):
        plain = first_loss(NAMES[0], "float32")
        monkeypatch.setattr(dispatch.get_backend("cpu"), "bf16_losses", lambda: None)
        with pytest.warns(UserWarning, match=r"loss\.precision: no bf16 products.*on cpu") as found:
            rounded = first_loss(NAMES[0], "bf16")
        assert len([it for it in found if "precision" in str(it.message)]) == 1
    assert torch.equal(plain, rounded)


@needs_tier("bf16 losses")
@pytest.mark.parametrize("name", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.slow)])
def test_it_learns_as_float32_does(name):
    found = []
    for precision in ("float32", "bf16"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(trainer_of(**sections_of(name, precision)).fit())
    plain, rounded = (result.valid["mrr"] for result in found)
    assert plain > LEARNERS[name][1]
    assert rounded == pytest.approx(plain, abs=0.03)

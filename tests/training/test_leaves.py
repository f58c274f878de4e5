"""A step of the trainer and the public losses: the same scores, and the same gradients."""

import pytest
import torch

from kgfast import Candidates, losses
from kgfast.models import DistMult
from kgfast.training.leaves import Leaves
from kgfast.training.steps import MODES
from support.small_runs import GRAPH, NO_GAMMA, trainer_of

FILTERED = {"use_rscf": True}
MODELS = {
    "rotate": {"model": {"name": "rotate"}},
    "transe": {"model": {"name": "transe"}},
    "complex": {"model": {"name": "complex", **NO_GAMMA}},
    "gamma and bias": {"model": {"name": "distmult", **NO_GAMMA}},
    "med": {"med": {"dims": [4, 8, 16]}},
    "med split": {"med": {"dims": [4, 8, 16], "crop": "split"}},
    "med of complex": {"model": {"name": "complex", **NO_GAMMA}, "med": {"dims": [4, 16]}},
    "rscf": {"model": FILTERED},
    "rscf of complex": {"model": {"name": "complex", **NO_GAMMA, **FILTERED}},
    "med of rscf": {"model": FILTERED, "med": {"dims": [4, 16]}},
}


class Biased(DistMult):
    """DistMult with a bias per entity, which trains, and a gamma."""

    gamma = 1.5

    def candidates(self, side):
        return Candidates(self.entity, self.bias)


def made(name, **sections):
    """A trainer whose model is a named one."""
    trainer = trainer_of(**MODELS[name], **sections)
    if name == "gamma and bias":
        trainer.model.__class__ = Biased
        bias = torch.linspace(-1, 1, trainer.model.num_entities)
        trainer.model.bias = torch.nn.Parameter(bias)
    return trainer


def whole_gradients(model, leaves=None):
    """The gradient of each parameter; the entity table's with what is in the leaves."""
    gradients = {
        name: torch.zeros_like(it) if it.grad is None else it.grad.clone()
        for name, it in model.named_parameters()
    }
    entity = next(name for name in gradients if f".{name}".endswith(".entity"))
    for part in [] if leaves is None else leaves.gradients():
        gradients[entity].index_add_(0, part.ids, part.rows)
    model.zero_grad(set_to_none=True)
    return gradients


def triples_of(batch):
    heads, tails = batch.anchors, batch.targets
    if batch.side == "head":
        heads, tails = tails, heads
    return torch.stack([heads, batch.relations, tails], 1)


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("backend")
def test_a_step_is_the_public_loss(name, negatives):
    sections = {"data": {"negatives": negatives, "filter_negatives": True}}
    if "med" not in name:
        sections["loss"] = {"alpha": 0.5}
    trainer = made(name, **sections)
    config, model = trainer.config, trainer.model
    objective = MODES["negative"](config, GRAPH.train.hrt, GRAPH.num_entities)
    for number in (0, 1):  # tail, head
        batch = objective.batches.batch(number)
        leaves = Leaves(model)
        loss = objective(leaves, batch)
        loss.backward()
        gradients = whole_gradients(model, leaves)
        ids, mask = objective._negatives.draw(batch)
        common = (model, triples_of(batch), ids)
        if "med" in name:
            public = losses.med(*common, side=batch.side, mask=mask)
        else:
            public = losses.nssa(*common, side=batch.side, alpha=config.loss.alpha, mask=mask)
        public.backward()
        torch.testing.assert_close(loss, public)
        for key, expected in whole_gradients(model).items():
            scale = float(expected.abs().max())
            torch.testing.assert_close(gradients[key], expected, rtol=1e-5, atol=1e-6 * scale)
            assert scale > 0 or key in ("w1", "w2", "w3")

"""A step of the trainer and the public losses: the same scores, and the same gradients."""

import pytest
import torch

from kgfast import Candidates, losses
from kgfast.models import DistMult
from kgfast.training.leaves import Leaves, sample_scores
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


class Transformed(DistMult):
    """DistMult whose candidates are not rows of the table but made of them."""

    def candidates(self, side):
        return Candidates(2 * self.entity, torch.full((1,), 0.5))


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
        ids, mask = objective.negatives.draw(batch)
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


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
def test_what_is_made_of_the_table_has_a_gradient_of_its_size(negatives):
    """No config asks for such a model; its steps are right all the same."""
    trainer = trainer_of(model={"name": "distmult", **NO_GAMMA}, data={"negatives": negatives})
    model = trainer.model
    model.__class__ = Transformed
    objective = MODES["negative"](trainer.config, GRAPH.train.hrt, GRAPH.num_entities)
    batch = objective.batches.batch(0)
    ids, _ = objective.negatives.draw(batch)
    leaves = Leaves(model)
    scores = sample_scores(leaves, batch, ids, None, takes_rows=False)
    (scores.positive.sum() + scores.negative.sum()).backward()
    gradients = whole_gradients(model, leaves)
    public = losses.sampled_scores(model, triples_of(batch), ids, batch.side)
    for own, other in zip((scores.positive, scores.negative), public, strict=True):
        torch.testing.assert_close(own, other)
    sum(it.sum() for it in public).backward()
    torch.testing.assert_close(gradients["entity"], whole_gradients(model)["entity"])


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_makes_no_sparse_tensor(name, negatives, monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("a sparse tensor")

    monkeypatch.setattr(torch, "sparse_coo_tensor", refused)
    trainer = made(name, data={"negatives": negatives}, train={"steps": 2})
    trainer.fit()


def test_a_leaf_without_a_gradient_has_no_rows():
    leaves = Leaves(trainer_of().model)
    ids = torch.arange(3)
    assert leaves.rows(ids) is leaves.rows(ids)
    assert leaves.rows(ids) is not leaves.rows(ids.clone())
    assert leaves.gradients() == []

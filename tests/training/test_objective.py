"""Steps of the trainer: losses and gradients of the plain formulas, the rows, and the precision."""

from dataclasses import replace

import pytest
import torch

from kgfast import KnownTriples, Reciprocal, use_backend
from kgfast.losses import NSSALoss, frequency_weights, regularizers
from kgfast.training.data import Objective
from support.loss_models import dense_scores
from support.small_runs import GRAPH, LEARNERS, NO_GAMMA, trainer_of


def plain_scores(model, relations, batch):
    """Scores of the anchors of a batch and relations with all entities, from dense torch."""
    return dense_scores(model, batch.anchors, relations, batch.side)


def plain_loss(objective, config, model, batch):
    """Return the loss of a batch without leaves, operators or streams."""
    own, name = torch.arange(len(batch.anchors)), config.regularizer.name
    scores = plain_scores(model, batch.relations, batch)
    if config.train.mode == "negative":
        ids, mask, weights = batch.negatives, batch.mask, batch.weights
        of_scores = NSSALoss(alpha=config.loss.alpha).of_scores
        negative = scores.gather(1, ids.expand(len(own), -1))
        loss = of_scores(scores[own, batch.targets], negative, weights, mask)
    elif config.train.mode == "1vsall":
        weights = None
        if config.data.target_weights:
            weights = frequency_weights(objective.hrt, scores.shape[1]).to(scores.dtype)
        loss = torch.nn.functional.cross_entropy(scores, batch.targets, weights)
    else:
        known = KnownTriples(objective.hrt)
        indptr, indices = known.exclude(batch.anchors, batch.relations, batch.side)
        labels = torch.zeros_like(scores)
        labels[torch.repeat_interleave(indptr.diff()), indices] = 1.0
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    if config.loss.relation_weight:
        of_each = [
            plain_scores(model, torch.full_like(own, relation), batch)[own, batch.targets]
            for relation in range(len(model.relation))
        ]
        logits = torch.stack(of_each, 1)
        of_relations = torch.nn.functional.cross_entropy(logits, batch.relations)
        loss = loss + config.loss.relation_weight * of_relations
    if name != "none":
        penalty = getattr(regularizers, name)(model, batch.queries, side=batch.side)
        loss = loss + config.regularizer.weight * penalty
    return loss


def of(name, **more):
    """Return the section of a model; only distances have a gamma of their own here."""
    return {"model": {"name": name, **({} if name in ("rotate", "transe") else NO_GAMMA), **more}}


def penalty(name, weight):
    return {"regularizer": {"name": name, "weight": weight}}


PER_ROW = {"data": {"negatives": "per_row"}}
FILTERED = {"data": {"negatives": "per_row", "filter_negatives": True}}
ONE_VS_ALL = {"train": {"mode": "1vsall"}, "loss": {"name": "cross_entropy"}}
KVS_ALL = {"train": {"mode": "kvsall"}, "loss": {"name": "bce"}}


def with_relations(weight):
    return ONE_VS_ALL | {"loss": {"name": "cross_entropy", "relation_weight": weight}}


PLAIN = {
    "rotate, shared, weights": {"data": {"subsampling": True}, "loss": {"alpha": 0.5}},
    "rotate, shared, filtered": {"data": {"filter_negatives": True, "neg_size": 200}},
    "rotate, rows": PER_ROW | penalty("l2", 0.1),
    "transe, shared": of("transe") | penalty("l2", 0.2),
    "transe, rows, filtered": of("transe") | FILTERED,
    "complex, 1vsall": of("complex") | ONE_VS_ALL | penalty("n3", 0.3),
    "distmult, kvsall": of("distmult") | KVS_ALL | penalty("l2", 0.3),
    "rescal with inverses, 1vsall, weights": (
        of("rescal", reciprocal=True) | ONE_VS_ALL | {"data": {"target_weights": True}}
    ),
    "rotate with inverses, rows, weights": {
        "model": {"reciprocal": True},
        "data": {"negatives": "per_row", "filter_negatives": True, "subsampling": True},
    },
    "rescal, kvsall, l2": of("rescal") | KVS_ALL | penalty("l2", 0.3),
    "rescal with inverses, rows, filtered, dura": (
        of("rescal", reciprocal=True) | FILTERED | penalty("dura", 0.2)
    ),
    "rescal with inverses, 1vsall, relations": of("rescal", reciprocal=True) | with_relations(0.5),
    "cp, shared, dura, relations": (
        of("cp") | {"loss": {"relation_weight": 0.5}} | penalty("dura", 0.2)
    ),
    "complex with inverses, 1vsall, relations": (
        of("complex", reciprocal=True) | with_relations(4.0)
    ),
    "rotate, 1vsall, more rows than entities": ONE_VS_ALL | {"data": {"train_bs": 1024}},
}


@pytest.mark.parametrize("name", PLAIN)
def test_loss_and_gradients_are_those_of_the_plain_formula(name):
    trainer = trainer_of(**PLAIN[name])
    config, model = trainer.config, trainer.model
    with torch.no_grad():
        model.entity.mul_(3.0)  # away from zero gradients
    objective = Objective(config, GRAPH.train.hrt, model)
    for number in (0, 1):  # tail, head; or both of each
        batch = objective.batch(number)
        loss = sum(objective(model, batch))
        loss.backward()
        found, relation = model.entity.grad.to_dense(), model.relation.grad.to_dense()
        model.zero_grad(set_to_none=True)
        inner = model.model if isinstance(model, Reciprocal) else model
        exact = type(inner)(model.entity.detach().double(), model.relation.detach().double())
        exact.gamma = getattr(model, "gamma", 0.0)
        exact.requires_grad_()
        expected = plain_loss(objective, config, exact, batch)
        expected.backward()
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
        for ours, theirs in ((found, exact.entity.grad), (relation, exact.relation.grad)):
            scale = float(theirs.abs().max())
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5 * scale)


def test_the_inverse_relations_of_conve_are_penalised():
    sections = LEARNERS["conve, kvsall"][0] | {"regularizer": {"name": "l2", "weight": 1e9}}
    trainer = trainer_of(**sections)
    objective = Objective(trainer.config, GRAPH.train.hrt, trainer.model)
    batch = objective.batch(0)
    batch = replace(batch, relations=batch.relations % 6)
    for side, half in (("tail", slice(0, 6)), ("head", slice(6, 12))):
        trainer.model.zero_grad(set_to_none=True)
        sum(objective(trainer.model, replace(batch, side=side))).backward()
        used = trainer.model.relation.grad.abs().sum(1) > 0
        assert bool(used[half].any())
        used[half] = False
        assert not bool(used.any())


@pytest.mark.parametrize("name", ["complex, 1vsall, n3", "complex, kvsall"])
@use_backend("reference")
def test_a_step_rounds_what_it_multiplies(name):
    found, (sections, _) = [], LEARNERS[name]
    for precision in ("float32", "bf16"):
        trainer = trainer_of(**sections | {"loss": {**sections["loss"], "precision": precision}})
        with torch.no_grad():
            trainer.model.entity.mul_(5.0)  # away from losses that are all the same
        objective = Objective(trainer.config, GRAPH.train.hrt, trainer.model)
        found.append(sum(objective(trainer.model, objective.batch(0))).detach())
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=2e-3, atol=0)

"""Losses with sparse=True: the gradients of others, each table's as one of rows."""

import pytest
import torch

from kgfast import Candidates, RowGradients, losses
from kgfast.models import DistMult
from kgfast.training.data import Objective
from support.loss_models import Biased
from support.small_runs import GRAPH, NO_GAMMA, trainer_of

FILTERED = {"use_rscf": True}
MODELS = {
    "rotate": {"model": {"name": "rotate"}},
    "transe": {"model": {"name": "transe"}},
    "complex": {"model": {"name": "complex", **NO_GAMMA}},
    "cp": {"model": {"name": "cp", "reciprocal": True, **NO_GAMMA}},
    "rescal": {"model": {"name": "rescal", **NO_GAMMA}},
    "gamma and bias": {"model": {"name": "distmult", **NO_GAMMA}},
    "computed": {"model": {"name": "distmult", **NO_GAMMA}},
    "med": {"med": {"dims": [4, 8, 16]}},
    "med split": {"med": {"dims": [4, 8, 16], "crop": "split"}},
    "med of complex": {"model": {"name": "complex", **NO_GAMMA}, "med": {"dims": [4, 16]}},
    "rscf": {"model": FILTERED},
    "med of rscf": {"model": FILTERED, "med": {"dims": [4, 16]}},
}


class Transformed(DistMult):
    """DistMult whose candidates are not rows of the table but made of them."""

    def candidates(self, side):
        return Candidates(2 * self.entity, torch.full((1,), 0.5))


def made(name):
    """Return a model, a batch of training triples a side, and the drawer of negatives."""
    model = trainer_of(**MODELS[name]).model
    if name == "gamma and bias":
        model.__class__ = Biased
    if name == "computed":
        model.__class__ = Transformed
    return model


def batches_of(negatives):
    """Yield a batch of tails, one of heads, and negatives and mask of each."""
    sections = {"negatives": negatives, "filter_negatives": True}
    trainer = trainer_of(data=sections)
    objective = Objective(trainer.config, GRAPH.train.hrt, trainer.model)
    for number in (0, 1):
        batch = objective.batch(number)
        yield batch, batch.negatives, batch.mask


def gradients_of(model, loss):
    """Return the gradient of each parameter that has one."""
    loss.backward()
    found = {name: it.grad for name, it in model.named_parameters() if it.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def both_ways(model, function, *given, of=lambda value: value, **options):
    """Compare values and gradients of tables with those of rows; return the latter."""
    values = [function(model, *given, sparse=sparse, **options) for sparse in (False, True)]
    torch.testing.assert_close(values[1], values[0])
    whole, rows = (gradients_of(model, of(value)) for value in values)
    assert_close(rows, whole)
    return rows


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        scale = float(gradient.abs().max())
        ours = found[key].to_dense()
        torch.testing.assert_close(ours, gradient, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("backend")
def test_gradients_of_rows_are_those_of_the_table(name, negatives):
    model = made(name)
    loss = losses.med if "med" in name else losses.nssa
    for batch, ids, mask in batches_of(negatives):
        found = both_ways(model, loss, batch.queries, ids, side=batch.side, mask=mask)
        of_rows = {key for key, it in found.items() if it.is_sparse}
        wanted = {"entity", "relation"} if name == "rescal" else {"entity"}
        assert {key.rpartition(".")[2] for key in of_rows} == wanted
        entity = next(it for key, it in found.items() if key.endswith("entity"))
        used = torch.cat([batch.anchors, batch.targets, ids.flatten()]).unique()
        rows = RowGradients.of(entity)
        assert torch.equal(rows.ids, used)
        assert rows.rows.data_ptr() == entity._values().data_ptr()


@pytest.mark.parametrize("kind", ["complex", "rescal", "cp"])
@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_losses_over_all_entities_read_the_rows_of_anchors(kind, loss):
    model, call = made(kind), getattr(losses, loss)
    for batch, _, _ in batches_of("shared"):
        given = batch.anchors, batch.relations, batch.targets
        values = [call(model, given, side=batch.side, sparse=it) for it in (False, True)]
        assert torch.equal(*values)
        for key, gradient in both_ways(model, call, given, side=batch.side).items():
            assert gradient.is_sparse == (kind == "rescal" and key == "relation")


def test_relations_that_are_inverse_are_asked_for_by_their_own_numbers():
    model = made("cp")
    count = model.num_relations
    triples, ids = torch.tensor([[4, 1, 7], [2, 0, 3]]), torch.tensor([5, 6])
    inverses = triples.flip(1) + torch.tensor([0, count, 0])
    forth = losses.nssa(model, triples, ids, side="head")
    assert torch.equal(losses.nssa(model, inverses, ids, side="tail"), forth)
    with pytest.raises(ValueError, match="relation"):
        losses.nssa(model, inverses, ids, side="head")


@pytest.mark.parametrize("name", ["n3", "l2", "dura"])
def test_penalties_leave_gradients_of_rows(name):
    batch, _, _ = next(batches_of("shared"))
    penalty = getattr(losses.regularizers, name)
    assert both_ways(made("complex"), penalty, batch.queries, side=batch.side)["entity"].is_sparse


def test_queries_without_targets_are_penalised():
    model = made("complex")
    batch, _, _ = next(batches_of("shared"))
    queries = batch.anchors, batch.relations
    both = losses.regularizers.l2(model, batch.queries, side=batch.side)
    one = losses.regularizers.l2(model, queries, side=batch.side)
    targets = model.entity[batch.targets].square().sum(1).mean()
    torch.testing.assert_close(one + targets, both)
    with pytest.raises(ValueError, match="dura takes triples"):
        losses.regularizers.dura(model, queries)


@pytest.mark.parametrize("name", ["transe", "complex", "rscf"])
def test_logits_of_relations_leave_gradients_of_rows(name):
    batch, _, _ = next(batches_of("shared"))
    ends, total = (batch.anchors, batch.targets), lambda logits: logits.cos().sum()
    found = both_ways(made(name), losses.relation_logits, *ends, of=total)
    assert all(it.is_sparse for key, it in found.items() if key.endswith("entity"))

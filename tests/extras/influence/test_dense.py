"""Influences by losses over all entities, against autograd of each example."""

import pytest
import torch

from kgfast import CP, RESCAL, ComplEx, ConvE, DistMult, Reciprocal, RotatE
from kgfast.extras.influence import dense as module
from kgfast.extras.influence import self_influence, tracin
from kgfast.training.config.sections import LossConfig
from support.influences import assert_close, dense_influences

ENTITIES, RELATIONS, TRIPLES = 23, 3, 30


def triples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    columns = [
        torch.randint(high, (count,), generator=generator)
        for high in (ENTITIES, RELATIONS, ENTITIES)
    ]
    return torch.stack(columns, 1)


TRAIN, TEST = triples(TRIPLES), torch.cat([triples(TRIPLES)[:3], triples(2, seed=1)])
# Queries of several examples, one of them there twice; a query that is its own answer.
TRAIN[1::4, :2], TRAIN[2::5, 1:], TRAIN[9] = TRAIN[0, :2], TRAIN[3, 1:], TRAIN[5]
TRAIN[13, 2] = TRAIN[0, 0]
TEST[1, :2], TEST[4, 1:] = TEST[0, :2], TEST[3, 1:]


def conve(dtype=torch.float32):
    drawn = ConvE.init(ENTITIES, RELATIONS, 12, embedding_height=3, channels=2, seed=0)
    tables = (table.detach().to(dtype) * 3 for table in (drawn.entity, drawn.relation))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        model = ConvE(*tables, embedding_height=3, channels=2)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name == "bias":
                weight.add_(torch.randn(weight.shape, generator=generator) / 2)
        for norm in (model.image_norm, model.feature_norm, model.hidden_norm):
            norm.running_mean.normal_(generator=generator).mul_(0.1)
            norm.running_var.uniform_(0.5, 2, generator=generator)
    return model.eval()


MODELS = {
    "distmult": lambda: DistMult.init(ENTITIES, RELATIONS, 8, seed=0),
    "complex": lambda: ComplEx.init(ENTITIES, RELATIONS, 6, seed=0),
    "conve": conve,
    "rescal": lambda: RESCAL.init(ENTITIES, RELATIONS, 6, seed=0),
    "complex with inverses": lambda: Reciprocal(
        ComplEx.init(ENTITIES, 2 * RELATIONS, 5, seed=0), "appended"
    ),
}
LOSSES = {
    "bce": LossConfig(name="bce"),
    "bce, smoothed": LossConfig(name="bce", label_smoothing=0.1, smoothing_style="conve"),
    "cross_entropy": LossConfig(name="cross_entropy", label_smoothing=0.1),
}


def whole(model, **options):
    return tracin(model, TRAIN, TEST, **{"rates": [1.0]} | options).matrix.double()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_autograd(name, loss, monkeypatch):
    monkeypatch.setattr(module, "_ENTITIES", 7)
    monkeypatch.setattr(module, "BLOCK", 9)
    model = MODELS[name]().eval()
    expected = dense_influences(model, TRAIN, TEST, LOSSES[loss])
    assert_close(whole(model, loss=LOSSES[loss]), expected)


@pytest.mark.parametrize("name", MODELS)
def test_queries_with_all_their_answers(name):
    model, loss = MODELS[name]().eval(), LossConfig(name="bce", label_smoothing=0.2)
    expected = dense_influences(model, TRAIN, TEST, loss, "kvsall", side="head")
    assert_close(whole(model, loss=loss, mode="kvsall", side="head"), expected)


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
def test_an_example_with_itself(loss):
    model = conve()
    chosen = LossConfig(name=loss)
    tails = dense_influences(model, TRAIN, TRAIN, chosen).diagonal()
    heads = dense_influences(model, TRAIN, TRAIN, chosen, side="head")
    found = self_influence(model, TRAIN, loss=loss, rates=[2.0])
    expected = torch.cat([tails, heads[:, TRIPLES:].diagonal()]) * 2
    assert_close(found.double(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tables_of_half_precision_are_read_as_they_are(dtype):
    wide = DistMult.init(ENTITIES, RELATIONS, 8, seed=0).requires_grad_(False)
    half = DistMult(wide.entity.to(dtype), wide.relation.to(dtype))
    same = DistMult(half.entity.float(), half.relation.float())
    found, expected = (whole(model, loss="bce") for model in (half, same))
    assert_close(found, expected, 1e-5)


def test_autocast_and_training_mode_change_nothing():
    model = conve()
    expected = whole(model, loss="bce").clone()
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = whole(model, loss="bce")
    assert model.training
    assert torch.equal(found, expected)


@pytest.mark.parametrize("inverses", [False, True])
def test_rows_of_which_a_candidate_is_half_are_refused(inverses):
    model = CP.init(ENTITIES, 2 * RELATIONS, 4, seed=0)
    with pytest.raises(TypeError, match="influences of CP are not served"):
        tracin(Reciprocal(model) if inverses else model, TRAIN, TEST, loss="bce", rates=[1.0])


def test_other_scores_are_refused():
    with pytest.raises(ValueError, match="score 'dot'; RotatE has 'rotate'"):
        tracin(RotatE.init(ENTITIES, RELATIONS, 4), TRAIN, TEST, loss="bce", rates=[1.0])


def test_a_model_whose_queries_are_not_made_of_rows_has_its_last_layer():
    class Own:
        score, dim, num_entities, num_relations = "dot", 8, ENTITIES, RELATIONS
        inner = DistMult.init(ENTITIES, RELATIONS, 8, seed=0)

        def queries(self, anchors, relations, side):
            return self.inner.queries(anchors, relations, side)

        def candidates(self, side):
            return self.inner.candidates(side)

    expected = dense_influences(Own.inner, TRAIN, TEST, LOSSES["bce"])
    assert_close(whole(Own(), loss="bce"), expected)

"""captum's TracIn (Kokhlikyan et al. 2020) as the referee, on a small graph."""

import copy

import pytest
import torch
from torch import nn

from kgfast import Candidates, ConvE
from kgfast.datasets import synthetic
from kgfast.extras.influence import self_influence, tracin
from kgfast.training.config.sections import LossConfig
from support.influences import assert_close, examples_of, loss_of_scores

pytestmark = pytest.mark.slow

GRAPH = synthetic(60, 3, 90, 10, 10)
TRAIN, TEST = GRAPH.train.hrt, GRAPH.test.hrt[:6]
RATES = [0.3, 0.05]


@pytest.fixture
def captum():
    return pytest.importorskip("captum.influence", reason="captum is not installed")


class Scores(nn.Module):
    """All tails of (h, r): the table as candidates is a linear layer, of the model or its own."""

    def __init__(self, model, *, tied, bias):
        super().__init__()
        self.model = model
        self.last = nn.Linear(model.dim, model.num_entities, bias=bias)
        self.last.weight = model.entity if tied else nn.Parameter(model.entity.detach().clone())
        if bias:
            self.last.bias = model.bias

    def forward(self, anchors, relations):
        return self.last(self.model.queries(anchors, relations, "tail"))


class WithoutBias:
    score = "dot"

    def __init__(self, model):
        self.model, self.dim = model, model.dim
        self.num_entities, self.num_relations = model.num_entities, model.num_relations

    def queries(self, anchors, relations, side):
        return self.model.queries(anchors, relations, side)

    def candidates(self, side):
        return Candidates(self.model.entity)


def model_of(seed):
    model = ConvE.init(60, 3, 16, embedding_height=4, channels=3, seed=seed, initial_bias=-2.0)
    with torch.no_grad():
        model.entity.mul_(2)
        model.feature_norm.running_var.mul_(0.5)
    return model.eval()


def rows_of(hrt, sides=("tail", "head")):
    """Anchors, relations and targets, all as tail queries."""
    own = [it for it in examples_of(hrt) if it[0] in sides]
    anchors, relations, targets = (torch.stack([it[at] for it in own]) for at in (1, 2, 3))
    shift = torch.tensor([3 * (side == "head") for side, *_ in own])
    return anchors, relations + shift, targets[:, 0]


def loss_function(loss, reduction):
    def of_batch(scores, targets):
        rows = torch.stack(
            [
                loss_of_scores(row, target[None], loss)
                for row, target in zip(scores, targets, strict=True)
            ]
        )
        return rows.sum() if reduction == "sum" else rows

    of_batch.reduction = reduction
    return of_batch


def traced(kind, loss, models, *, tied=False, bias=False, **options):
    networks = [Scores(model, tied=tied, bias=bias) for model in models]
    states = {str(at): copy.deepcopy(it.state_dict()) for at, it in enumerate(networks)}

    def opened(module, path):
        module.load_state_dict(states[path])
        return RATES[int(path)]

    network = networks[0]
    is_fast = kind.__name__ == "TracInCPFast"
    if is_fast:
        options["final_fc_layer"] = network.last
    return kind(
        model=network,
        train_dataset=torch.utils.data.TensorDataset(*rows_of(TRAIN)),
        checkpoints=list(states),
        checkpoints_load_func=opened,
        loss_fn=loss_function(loss, "sum" if is_fast else "none"),
        batch_size=16,
        **options,
    )


LOSSES = [
    LossConfig(name="bce", label_smoothing=0.1),
    LossConfig(name="cross_entropy", label_smoothing=0.1),
]


def found_by_us(tmp_path, models, loss, parameters="entity"):
    options = {"loss": loss, "rates": RATES, "parameters": parameters}
    found = tracin(models, TRAIN, TEST, out=tmp_path / "all.npy", **options).matrix
    return found, self_influence(models, TRAIN, **options)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_fast_variant_has_the_last_layer(captum, tmp_path, loss):
    models = [model_of(seed) for seed in (0, 1)]
    found, itself = found_by_us(tmp_path, [WithoutBias(it) for it in models], loss)
    theirs = traced(captum.TracInCPFast, loss, models)
    assert_close(found, theirs.influence(rows_of(TEST, ("tail",))))
    assert_close(itself, theirs.self_influence())


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("parameters", ["entity", "all"])
def test_the_plain_variant_has_biases_and_everything(captum, tmp_path, loss, parameters):
    models = [model_of(seed) for seed in (0, 1)]
    found, itself = found_by_us(tmp_path, models, loss, parameters)
    layers = ["last"] if parameters == "entity" else None
    theirs = traced(
        captum.TracInCP, loss, models, tied=parameters == "all", bias=True, layers=layers
    )
    assert_close(found, theirs.influence(rows_of(TEST, ("tail",))))
    assert_close(itself, theirs.self_influence())

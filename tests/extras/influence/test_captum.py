"""captum's TracIn (Kokhlikyan et al. 2020) as the referee, on a small graph."""

import copy

import pytest
import torch
from torch import nn

from kgfast import ConvE
from kgfast.datasets import synthetic
from kgfast.extras.influence import self_influence, tracin
from kgfast.training.config.sections import LossConfig
from support.influences import assert_close, examples_of, loss_of_scores

pytestmark = pytest.mark.slow

GRAPH = synthetic(60, 3, 90, 10, 10)
TRAIN, TEST = GRAPH.train.hrt, GRAPH.test.hrt[:6]
RATES = [0.3, 0.05]


class Scores(nn.Module):
    """All tails of (h, r): the table as candidates is a linear layer, of the model or its own."""

    def __init__(self, model, *, tied):
        super().__init__()
        self.model = model
        self.last = nn.Linear(model.dim, model.num_entities)
        self.last.weight = model.entity if tied else nn.Parameter(model.entity.detach().clone())
        self.last.bias = model.bias

    def forward(self, anchors, relations):
        return self.last(self.model.queries(anchors, relations, "tail"))


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


def loss_function(loss):
    def of_batch(scores, targets):
        rows = zip(scores, targets, strict=True)
        return torch.stack([loss_of_scores(row, target[None], loss) for row, target in rows])

    of_batch.reduction = "none"
    return of_batch


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
@pytest.mark.parametrize("parameters", ["entity", "all"])
def test_values_are_those_of_captum(loss, parameters):
    captum = pytest.importorskip("captum.influence", reason="captum is not installed")
    models, loss = [model_of(seed) for seed in (0, 1)], LossConfig(name=loss, label_smoothing=0.1)
    options = {"loss": loss, "rates": RATES, "parameters": parameters}
    found = tracin(models, TRAIN, TEST, **options).matrix
    itself = self_influence(models, TRAIN, **options)  # captum loads states into the first model
    networks = [Scores(model, tied=parameters == "all") for model in models]
    states = {str(at): copy.deepcopy(it.state_dict()) for at, it in enumerate(networks)}

    def opened(module, path):
        module.load_state_dict(states[path])
        return RATES[int(path)]

    theirs = captum.TracInCP(
        model=networks[0],
        train_dataset=torch.utils.data.TensorDataset(*rows_of(TRAIN)),
        checkpoints=list(states),
        checkpoints_load_func=opened,
        loss_fn=loss_function(loss),
        batch_size=16,
        layers=["last"] if parameters == "entity" else None,
    )
    assert_close(found, theirs.influence(rows_of(TEST, ("tail",))))
    assert_close(itself, theirs.self_influence())

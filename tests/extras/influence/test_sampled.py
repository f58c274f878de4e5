"""Influences by sampled negatives, against autograd of each example and of whole batches."""

import pytest
import torch

from kgfast import losses
from kgfast.datasets import synthetic
from kgfast.extras.influence import sampled as module
from kgfast.extras.influence import self_influence, tracin
from kgfast.extras.influence.checkpoints import stages_of
from kgfast.extras.influence.examples import ExampleQueries, Examples
from kgfast.extras.influence.sampled import SampledInfluence
from kgfast.training.data import Objective
from support.influences import assert_close, flat
from support.small_runs import trainer_of

GRAPH = synthetic(40, 3, 48, 8, 8)
ROWS = {"negatives": "per_row", "filter_negatives": True, "subsampling": True}
RUNS = {
    "rotate, nssa, shared": {"data": {"neg_size": 16}},
    "rotate, nssa, rows": {"data": ROWS | {"neg_size": 5}},
    "transe, margin": {
        "model": {"name": "transe"},
        "loss": {"name": "margin"},
        "data": {"neg_size": 6, "filter_negatives": True},
    },
    "distmult with inverses, margin": {
        "model": {"name": "distmult", "reciprocal": True, "gamma": 12.0},
        "loss": {"name": "margin"},
        "data": {"neg_size": 5, "filter_negatives": True},
    },
    "complex, logistic": {
        "model": {"name": "complex", "gamma": 12.0},
        "loss": {"name": "logistic"},
        "data": ROWS | {"neg_size": 4, "subsampling": False},
    },
}


SLOW = ("rotate, nssa, shared", "complex, logistic")


@pytest.fixture(
    scope="module",
    params=[pytest.param(it, marks=[pytest.mark.slow] * (it in SLOW)) for it in RUNS],
)
def run(request, tmp_path_factory):
    """Return a run that kept two models, in its third epoch and after."""
    folder = tmp_path_factory.mktemp("run")
    sections = {name: dict(section) for name, section in RUNS[request.param].items()}
    sections["data"] |= {"train_bs": 32}
    trainer_of(folder, GRAPH, train={"steps": 20, "keep_every": 10}, **sections).fit()
    return folder


def gradient(model, drawn, row, loss):
    """Return the gradient of one example for the table of candidates, flat."""
    queries = drawn.queries
    anchor, relation, target = (
        column[row] for column in (queries.anchors, queries.relations, queries.targets)
    )
    triple = [anchor, relation, target] if queries.side == "tail" else [target, relation, anchor]
    table = model.entity.detach().clone().requires_grad_()
    mask = None if drawn.mask is None else drawn.mask[row, None]
    of = getattr(losses, loss.name)
    options = {"side": queries.side, "mask": mask, "reduction": "none"} | loss.arguments_of(of)
    split = _Split(model, model.with_entity(table))
    rows = of(split, torch.stack(triple)[None], drawn.negatives[row, None], **options)
    return flat(rows.sum() * drawn.factor[row], [table])


class _Split:
    """A model whose queries come from one table and whose candidates from another."""

    def __init__(self, asked_model, candidates):
        self._asked, self._candidates = asked_model, candidates
        self.score = asked_model.score
        if getattr(asked_model, "gamma", None) is not None:
            self.gamma = asked_model.gamma
        self.num_entities, self.num_relations = asked_model.num_entities, asked_model.num_relations
        self.entity, self.dim = candidates.entity, asked_model.dim

    def queries(self, anchors, relations, side):
        return self._asked.queries(anchors, relations, side)

    def candidates(self, side):
        return self._candidates.candidates(side)


def drawn_again(checkpoint):
    """Yield ids of a run's training examples, and the examples with their negatives."""
    replay = SampledInfluence(checkpoint.open(), checkpoint.origin)
    for ids, queries in Examples.of(GRAPH.train.hrt, "negative").chunks(1000):
        yield ids, replay.training(ids, queries)


def gradients_of(model, drawn, loss):
    rows = range(len(drawn.queries))
    return torch.stack([gradient(model, drawn, row, loss) for row in rows])


def by_autograd(run, test, side):
    """Return influences ``[M, T]`` over the checkpoints of a run, and those on itself ``[T]``."""
    stages = stages_of(run, None, None, None, "cpu", False)
    total = torch.zeros(len(test), 2 * len(GRAPH.train)).double()
    squares = torch.zeros(2 * len(GRAPH.train)).double()
    for checkpoint, rate in zip(stages.checkpoints, stages.rates, strict=True):
        model = checkpoint.open()
        replay = SampledInfluence(model, checkpoint.origin)
        others = replay.others(ExampleQueries.of(test, side))
        tests = gradients_of(model, others, stages.loss)
        for ids, drawn in drawn_again(checkpoint):
            rows = gradients_of(model, drawn, stages.loss)
            total[:, ids] += rate * tests @ rows.T
            squares[ids] += rate * rows.square().sum(1)
    return total, squares


def test_values_are_those_of_autograd(run, monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 700)
    monkeypatch.setattr(module, "_SCORES", 90)
    test = GRAPH.test.hrt[:3]
    expected, squares = by_autograd(run, test, "head")
    found, again = (tracin(run, test=test, side="head") for _ in range(2))
    assert_close(found.matrix.double(), expected)
    assert torch.equal(found.matrix, again.matrix)
    assert_close(self_influence(run).double(), squares)


@pytest.mark.parametrize("wrapper", ["MED", "RSCF"])
def test_wrapped_models_are_refused(tmp_path, wrapper):
    sections = {"model": {"base_dim": 8, "use_rscf": wrapper == "RSCF"}}
    sections |= {"med": {"dims": [4, 8]}} if wrapper == "MED" else {}
    data = {"neg_size": 4, "train_bs": 32}
    trainer_of(tmp_path, GRAPH, data=data, train={"steps": 1}, **sections).fit()
    with pytest.raises(TypeError, match=f"influences of {wrapper} are not served"):
        tracin(tmp_path, test=GRAPH.test.hrt[:1])


def test_gradients_of_examples_add_up_to_those_of_their_batches(run):
    """So negatives, masks and weights are those that the run drew."""
    stages = stages_of(run, None, None, None, "cpu", False)
    checkpoint = stages.checkpoints[0]
    origin, model = checkpoint.origin, checkpoint.open().requires_grad_(False)
    objective = Objective(origin.config, GRAPH.train.hrt, model)
    of_example = {}
    for ids, drawn in drawn_again(checkpoint):
        rows = gradients_of(model, drawn, stages.loss)
        of_example.update(zip(ids.tolist(), rows, strict=True))
    epoch = (origin.step - 1) // objective.per_epoch
    numbers = range(epoch * objective.per_epoch, (epoch + 1) * objective.per_epoch)
    assert origin.step - 1 in numbers
    for number in numbers:
        side, ids = objective.rows_of(number)
        table = model.entity.detach().clone().requires_grad_()
        trained = getattr(model, "model", model)  # a model with inverse relations, too
        split = _Split(trained, trained.with_entity(table))
        value = sum(objective(split, objective.batch(number))) * len(ids)
        expected = flat(value, [table])
        shift = len(GRAPH.train) if side == "head" else 0
        whole = sum(of_example[row + shift] for row in ids.tolist())
        assert torch.allclose(whole, expected, atol=1e-5, rtol=1e-4)


def test_a_run_has_negatives_of_its_own_triples_alone(run):
    with pytest.raises(ValueError, match="train: a run with sampled negatives has negatives of"):
        tracin(run, GRAPH.train, GRAPH.test.hrt[:1])

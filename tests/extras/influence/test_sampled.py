"""Influences by sampled negatives, against autograd of each example and of whole batches."""

import pytest
import torch

from kgfast import losses, ops
from kgfast.datasets import synthetic
from kgfast.extras.influence import sampled as module
from kgfast.extras.influence import self_influence, tracin
from kgfast.extras.influence.checkpoints import stages_of
from kgfast.extras.influence.examples import ExampleQueries, Examples
from kgfast.extras.influence.sampled import Replay
from kgfast.models.base import SIDES
from kgfast.training.data import asked_of
from kgfast.training.objective import MODES
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


def gradient(model, drawn, row, loss, parameters):
    """Return the gradient of one example, flat."""
    queries = drawn.queries
    anchor, relation, target = (
        it[row] for it in (queries.anchors, queries.relations, queries.targets)
    )
    triple = [anchor, relation, target] if queries.side == "tail" else [target, relation, anchor]
    leaves = [model.entity, model.relation]
    asked_model = model
    if parameters == "entity":  # the table that queries are made of is another one
        asked_model = model.with_entity(model.entity.detach().clone())
        table = model.entity.detach().clone().requires_grad_()
        candidates, leaves = model.with_entity(table), [table]
        model = _Split(asked_model, candidates)
    mask = None if drawn.mask is None else drawn.mask[row, None]
    options = {"side": queries.side, "mask": mask, "reduction": "none"}
    if loss.name == "nssa":
        options["alpha"] = loss.alpha
    if loss.name == "margin":
        options["margin"] = loss.margin
    of = getattr(losses, loss.name)
    rows = of(model, torch.stack(triple)[None], drawn.negatives[row, None], **options)
    return flat(rows.sum() * drawn.factor[row], leaves)


class _Split:
    """A model whose queries come from one table and whose candidates from another."""

    def __init__(self, asked_model, candidates):
        self._asked, self._candidates = asked_model, candidates
        self.score, self.gamma = asked_model.score, getattr(asked_model, "gamma", None)
        if self.gamma is None:
            del self.gamma
        self.num_entities, self.num_relations = asked_model.num_entities, asked_model.num_relations
        self.entity, self.dim = candidates.entity, asked_model.dim

    def queries(self, anchors, relations, side):
        return self._asked.queries(anchors, relations, side)

    def candidates(self, side):
        return self._candidates.candidates(side)


def by_autograd(run, train, test, parameters, side):
    """``[M, T]`` over the checkpoints of a run, and the examples with themselves."""
    stages = stages_of(run, None, None, None, "cpu", False)
    total, squares = 0.0, 0.0
    examples = Examples.of(train, "negative")
    for checkpoint, rate in zip(stages.checkpoints, stages.rates, strict=True):
        model = checkpoint.open().requires_grad_(True)
        replay = Replay(checkpoint.origin, torch.device("cpu"))
        step, sides = checkpoint.origin.step, map(examples.queries, ("tail", "head"))
        drawn = [replay.training(queries, step) for queries in sides]
        rows = [
            gradient(model, part, row, stages.loss, parameters)
            for part in drawn
            for row in range(len(train))
        ]
        others = replay.others(ExampleQueries.of(test, side))
        tests = [gradient(model, others, row, stages.loss, parameters) for row in range(len(test))]
        rows = torch.stack(rows)
        total = total + rate * torch.stack(tests) @ rows.T
        squares = squares + rate * rows.square().sum(1)
    return total, squares


@pytest.mark.parametrize("parameters", ["entity", "all"])
def test_values_are_those_of_autograd(run, tmp_path, parameters, monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 700)
    monkeypatch.setattr(module, "_SCORES", 90)
    train, test = GRAPH.train.hrt[5:15], GRAPH.test.hrt[:3]
    expected, squares = by_autograd(run, train, test, parameters, "head")
    options = {"parameters": parameters, "side": "head", "out": tmp_path / "all.npy"}
    found = tracin(run, train, test, **options).matrix.double()
    assert_close(found, expected)
    assert_close(self_influence(run, train, parameters=parameters).double(), squares)


RSCF_RUNS = {
    "rotate": {"data": {"neg_size": 6}},
    "transe": {"model": {"name": "transe", "base_dim": 8}, "data": {"neg_size": 4}},
}


@pytest.mark.parametrize("name", [pytest.param("rotate", marks=pytest.mark.slow), "transe"])
def test_filtered_candidates_have_their_factor_s_gradient_too(name, tmp_path):
    sections = {it: dict(section) for it, section in RSCF_RUNS[name].items()}
    sections["model"] = sections.get("model", {"base_dim": 4}) | {"use_rscf": True}
    sections["data"] |= {"train_bs": 32}
    trainer_of(tmp_path, GRAPH, train={"steps": 4, "keep_every": 4}, **sections).fit()
    stages = stages_of(tmp_path, None, None, None, "cpu", False)
    model, origin = stages.checkpoints[0].open(), stages.checkpoints[0].origin
    replay, train, test = Replay(origin, torch.device("cpu")), GRAPH.train.hrt[:6], GRAPH.test.hrt
    drawn = replay.training(ExampleQueries.of(train, "tail"), origin.step)
    others = replay.others(ExampleQueries.of(test[:3], "tail"))
    rows, tests = (
        torch.stack(
            [
                _by_dense_scores(model, it, row, stages.loss.alpha)
                for row in range(len(it.negatives))
            ]
        )
        for it in (drawn, others)
    )
    found = tracin(tmp_path, train, test[:3], out=tmp_path / "all.npy").matrix[:, : len(train)]
    assert_close(found, stages.rates[0] * tests @ rows.T)
    with pytest.raises(TypeError, match="influences of RSCF are not served"):
        tracin(tmp_path, train, test[:3], parameters="all")


def _by_dense_scores(model, drawn, row, alpha):
    """Return the gradient of the table as candidates, by scores of all entities."""
    queries = drawn.queries
    query = model.queries(queries.anchors[row, None], queries.relations[row, None], queries.side)
    table = model.entity.detach().clone().requires_grad_()
    factor = model.with_entity(table).candidates(queries.side).factor
    scores = ops.pairwise_scores(query.detach(), table, model.score, factor=factor) + model.gamma
    negatives = scores[:, drawn.negatives[row]]
    loss = losses.NSSALoss(alpha=alpha).of_scores(scores[0, queries.targets[row, None]], negatives)
    return flat(loss * drawn.factor[row], [table])


def test_croppable_models_are_refused(tmp_path):
    sections = {"model": {"base_dim": 8}, "data": {"neg_size": 4, "train_bs": 32}}
    trainer_of(tmp_path, GRAPH, med={"dims": [4, 8]}, train={"steps": 1}, **sections).fit()
    with pytest.raises(
        TypeError, match="MED are not served: the loss of MED weighs an example by the"
    ):
        tracin(tmp_path, test=GRAPH.test.hrt[:1])


def test_gradients_of_examples_add_up_to_those_of_their_batches(run):
    """So negatives, masks and weights are those that the run drew."""
    stages = stages_of(run, None, None, None, "cpu", False)
    checkpoint = stages.checkpoints[0]
    origin = checkpoint.origin
    model = checkpoint.open().requires_grad_(True)
    hrt, sides = asked_of(GRAPH.train.hrt, GRAPH.num_relations, model.has_inverses)
    objective = MODES["negative"](origin.config, hrt, GRAPH.num_entities, sides)
    replay = Replay(origin, torch.device("cpu"))
    examples = Examples.of(GRAPH.train.hrt, "negative")
    both = {side: replay.training(examples.queries(side), origin.step) for side in SIDES}
    epoch = objective.batches.epoch(origin.step - 1)
    numbers = range(epoch * objective.batches.per_epoch, (epoch + 1) * objective.batches.per_epoch)
    assert origin.step - 1 in numbers
    for number in numbers:
        side, ids = objective.batches.rows_of(number)
        model.zero_grad()
        (sum(objective(model, objective.batch(number))) * len(ids)).backward()
        table = model.entity.grad.to_dense()
        expected = torch.cat([table.flatten(), model.relation.grad.flatten()]).double()
        rows = []
        for row in ids.tolist():
            its_side = "head" if row >= len(GRAPH.train.hrt) else side
            drawn = both[its_side]
            row %= len(GRAPH.train.hrt)
            rows.append(gradient(model, drawn, row, stages.loss, "all"))
        assert torch.allclose(torch.stack(rows).sum(0), expected, atol=1e-5, rtol=1e-4)


def test_triples_that_the_run_never_drew_for_are_refused(run):
    other = torch.tensor([[39, 2, 39]])
    with pytest.raises(ValueError, match=r"\[39, 2, 39\] is not among the run's training triples"):
        tracin(run, other, GRAPH.test.hrt[:1])


def test_two_calls_have_the_same(run):
    first, again = (tracin(run, test=GRAPH.test.hrt[:3], k=4) for _ in range(2))
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.values, again.values)

"""Models that people write: what rank(), topk() and losses take of them, and what they say."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from torch import nn

import kgfast
from kgfast import losses
from kgfast.eval.preparation import evaluating
from support.small_runs import trainer_of

N, R, DIM = 6, 2, 4
TRIPLES = torch.tensor([[0, 0, 1], [2, 1, 3], [5, 0, 5]])


class Own:
    """A plain object: translations, with the smallest protocol."""

    score = "l1"

    def __init__(self, num_entities=N, rows=N):
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(rows, DIM, generator=generator)
        self.moves = torch.randn(R, DIM, generator=generator)
        self.num_entities, self.num_relations, self.dim = num_entities, R, DIM

    def queries(self, anchors, relations, side):
        moves = self.moves[relations]
        return self.table[anchors] + (moves if side == "tail" else -moves)

    def candidates(self, side):
        return self.table


class Whole(Own):
    """Model of a user with all optional methods."""

    def queries(self, anchors, relations, side, dims=None):
        return super().queries(anchors, relations, side)

    def candidates(self, side):
        return kgfast.Candidates(self.table)


CALLS = {
    "rank": lambda model: kgfast.rank(model, TRIPLES),
    "topk": lambda model: kgfast.topk(model, heads=[0, 1], relations=0, k=2),
    "bce": lambda model: losses.bce(model, TRIPLES),
    "cross_entropy": lambda model: losses.cross_entropy(model, TRIPLES),
    "nssa": lambda model: losses.nssa(model, TRIPLES, torch.tensor([[0, 1]] * 3)),
    "shared": lambda model: losses.nssa(model, TRIPLES, torch.tensor([0, 1])),
    "cropped": lambda model: losses.sampled_scores(
        model, TRIPLES, torch.tensor([0, 1]), dims=[2, 4]
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("rows", [4, 14])
def test_a_table_of_another_size_is_named(name, rows):
    """Fewer candidates than entities give ranks beyond their number."""
    model = Own(rows=rows)
    with pytest.raises(ValueError, match=rf"num_entities is 6, the table has shape \[{rows}, 4\]"):
        CALLS[name](model)


class Careless(Own):
    """Model of a user whose queries change the ids that they get."""

    def queries(self, anchors, relations, side):
        queries = super().queries(anchors, relations, side)
        anchors.fill_(-1)
        relations.fill_(-1)
        return queries


def assert_same_results(own, other, calls):
    for call in calls:
        assert torch.equal(call(own), call(other))


def test_what_queries_do_to_their_ids_changes_nothing():
    before, known = TRIPLES.clone(), kgfast.KnownTriples(TRIPLES)
    heads, relations, tails = TRIPLES.T.contiguous()
    calls = (
        lambda it: kgfast.rank(it, TRIPLES, known=known).realistic,
        lambda it: kgfast.top_facts(it, k=5, known=known).triples,
        lambda it: kgfast.topk(it, heads=heads, relations=relations, k=3).ids,
        lambda it: losses.bce(it, (heads, relations), tails),
        lambda it: losses.cross_entropy(it, (heads, relations), tails),
        *(CALLS["nssa"], CALLS["shared"]),
    )
    assert_same_results(Own(), Careless(), calls)
    assert torch.equal(TRIPLES, before)
    assert torch.equal(torch.stack([heads, relations, tails], 1), before)


def test_a_bare_table_and_queries_without_dims_are_served():
    calls = (
        lambda it: kgfast.rank(it, TRIPLES).greater,
        lambda it: kgfast.rank(it, TRIPLES, dims=[2, 4])[2].greater,
        lambda it: kgfast.rank(it, TRIPLES, dims=3).greater,
        lambda it: kgfast.topk(it, heads=[0], relations=1, k=3, dims=2).ids,
        lambda it: torch.cat([scores.flatten() for scores in CALLS["cropped"](it)]),
        *(CALLS[name] for name in ("bce", "cross_entropy", "nssa", "shared")),
    )
    assert_same_results(Own(), Whole(), calls)


@pytest.mark.parametrize("name", CALLS)
def test_other_candidates_are_refused(name):
    model = Own()
    model.candidates = lambda side: (model.table, None)
    with pytest.raises(TypeError, match=r"must be kgfast.Candidates or a table .* got tuple"):
        CALLS[name](model)


def test_crops_that_are_in_the_queries_need_dims():
    model = Own()
    model.crop_width = lambda dim: None
    with pytest.raises(TypeError, match=r"Own.queries.* unexpected keyword argument 'dims'"):
        kgfast.rank(model, TRIPLES, dims=2)


def test_queries_of_another_shape_are_named():
    model = Own()
    model.queries = lambda anchors, relations, side: model.table[:2]
    with pytest.raises(ValueError, match=r"model.queries must have shape \[1, F\].* got \[2, 4\]"):
        kgfast.rank(model, TRIPLES)


class Noisy(nn.Module):
    """A network whose queries are random while it trains."""

    score, num_entities, num_relations, dim = "dot", N, R, DIM

    def __init__(self):
        super().__init__()
        self.table = torch.randn(N, DIM, generator=torch.Generator().manual_seed(0))
        self.drop = nn.Dropout(0.5)

    def queries(self, anchors, relations, side):
        return self.drop(self.table[anchors])

    def candidates(self, side):
        return self.table


class Holder:
    """An object that holds networks: one itself, some in a list and a dict."""

    score, num_entities, num_relations, dim = "dot", N, R, DIM

    def __init__(self):
        self.net, self.others = Noisy(), [nn.Sequential(nn.Dropout(0.5))]
        self.named = {"last": nn.Dropout(0.5)}

    def queries(self, anchors, relations, side):
        rows = self.others[0](self.net.queries(anchors, relations, side))
        return self.named["last"](rows)

    def candidates(self, side):
        return self.net.table

    def modules(self):
        return [*self.net.modules(), *self.others[0].modules(), self.named["last"]]


class Switched:
    """An object with a mode of its own."""

    score, num_entities, num_relations, dim = "dot", N, R, DIM

    def __init__(self):
        self.training, self.table = True, Noisy().table

    def eval(self):
        self.training = False

    def train(self):
        self.training = True

    def queries(self, anchors, relations, side):
        return self.table[anchors] * (torch.rand(1) if self.training else 1)

    def candidates(self, side):
        return self.table


@pytest.mark.parametrize("make", [Noisy, Holder, Switched])
def test_models_in_train_mode_are_evaluated_and_put_back(make):
    model = make()
    expected = kgfast.rank(Noisy().eval(), TRIPLES)
    assert torch.equal(kgfast.rank(model, TRIPLES).greater, expected.greater)
    best = kgfast.topk(Noisy().eval(), heads=[0, 1], relations=0, k=3)
    assert torch.equal(kgfast.topk(model, heads=[0, 1], relations=0, k=3).ids, best.ids)
    modules = model.modules() if hasattr(model, "modules") else [model]
    assert all(module.training for module in modules)


def test_a_mode_stays_until_the_last_caller_leaves():
    model, calls = Noisy(), (ExitStack(), ExitStack())
    with torch.enable_grad():  # restores what calls of one thread leave
        for call in calls:
            call.enter_context(evaluating(model))
        assert [call.close() or model.drop.training for call in calls] == [False, True]


def test_a_bias_of_one_side_is_not_the_other_sides():
    model = Own()
    model.entity = model.table
    both = {"head": kgfast.Candidates(model.table, torch.arange(6.0)), "tail": model.table}
    model.candidates = both.get
    alone = kgfast.rank(model, TRIPLES, sides=("tail",))
    assert torch.equal(kgfast.rank(model, TRIPLES).side("tail").greater, alone.greater)


def test_a_mode_that_cannot_be_left_is_named():
    model = Own()
    model.training = True
    with pytest.raises(TypeError, match=r"model.training is True, and Own has no eval\(\)"):
        kgfast.rank(model, TRIPLES)


def test_a_trainer_compares_its_model_with_its_dataset():
    trainer = trainer_of(train={"steps": 1})
    trainer.model = kgfast.RotatE.init(299, 6, 16, seed=0)
    with pytest.raises(ValueError, match="300 names of entities, but the model has 299"):
        trainer.fit()


def test_candidates_with_a_bias_of_another_size_are_named():
    model = Whole()
    found = replace(model.candidates("tail"), bias=torch.zeros(4))
    model.candidates = lambda side: found
    with pytest.raises(ValueError, match=r"bias must have shape \[6\] or \[1\]; got \[4\]"):
        kgfast.rank(model, TRIPLES)

"""Reciprocal: heads as tails of inverse relations, of models with queries and of functions."""

import pytest
import torch

import kgfast
from kgfast import KnownTriples, Reciprocal, rank, topk
from support.mistakes import each_of
from support.ranked_models import MODELS, random_triples
from support.scorers import as_blocks

N, R = 23, 3
ORDERS = {"interleaved": lambda r: (2 * r, 2 * r + 1), "appended": lambda r: (r, r + R)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_head_query_is_a_tail_query_of_the_inverse(name, order):
    """Ranks of heads are those of the plain model's tails, of triples turned round."""
    plain, triples = MODELS[name](N, 2 * R, 4, 0), random_triples(12, N, R)
    model = Reciprocal(plain, order)
    known = KnownTriples(triples, random_triples(60, N, R, 1))
    ids = list(range(0, N, 2))
    h, r, t = triples.T
    forth, back = ORDERS[order](r)
    turned = {"tail": torch.stack([h, forth, t], 1), "head": torch.stack([t, back, h], 1)}
    kh, kr, kt = random_triples(60, N, R, 1).T
    kforth, kback = ORDERS[order](kr)
    its_known = KnownTriples(
        *turned.values(), torch.stack([kh, kforth, kt], 1), torch.stack([kt, kback, kh], 1)
    )
    for options in ({}, {"candidate_ids": ids}):
        ranks = rank(model, triples, known=known, **options)
        for column, side in enumerate(("head", "tail")):
            own = rank(plain, turned[side], known=its_known, sides=("tail",), **options)
            for field in ("greater", "equal", "num_candidates"):
                assert torch.equal(getattr(ranks, field)[:, column], getattr(own, field)[:, 0])
    top = topk(model, tails=t, relations=r, k=5)
    assert torch.equal(top.ids, topk(plain, heads=t, relations=back, k=5).ids)


@pytest.mark.parametrize("order", ORDERS)
def test_of_a_function(order):
    plain, triples = MODELS["complex"](N, 2 * R, 4, 0), random_triples(12, N, R)
    known = KnownTriples(triples)
    scorer = Reciprocal(as_blocks(plain, block=7, batch_size=5), order)
    asked = {"known": known, "sides": ("head", "relation", "tail")}
    one, other = rank(scorer, triples, **asked), rank(Reciprocal(plain, order), triples, **asked)
    assert torch.equal(one.greater, other.greater)
    assert torch.equal(one.num_candidates, other.num_candidates)
    one = topk(scorer, tails=[0, 1], relations=2, k=N)
    assert torch.equal(one.ids, topk(Reciprocal(plain, order), tails=[0, 1], relations=2, k=N).ids)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["rotate", "transe"])
def test_inverse_relations_are_no_candidates(name, order):
    plain, (h, _, t) = MODELS[name](N, 2 * R, 4, 0), random_triples(9, N, R).T
    forth, _ = ORDERS[order](torch.arange(R))
    top = topk(Reciprocal(plain, order), heads=h, tails=t, k=R)
    own = topk(plain, heads=h, tails=t, k=R, candidate_ids=forth)
    assert torch.equal(forth[top.ids], own.ids)
    assert torch.equal(top.scores, own.scores)


def test_crops_and_evaluation_mode_are_the_models():
    plain, triples = MODELS["distmult"](N, 2 * R, 4, 0), random_triples(12, N, R)
    plain.dropout = torch.nn.Dropout(0.5)
    plain.train()
    model = Reciprocal(plain)
    cropped = rank(model, triples, dims=[2, 4])
    narrow = kgfast.DistMult(plain.entity[:, :2], plain.relation[:, :2])
    assert torch.equal(cropped[2].greater, rank(Reciprocal(narrow), triples).greater)
    assert torch.equal(cropped[4].greater, rank(model, triples).greater)
    assert plain.training
    assert plain.dropout.training


def test_a_loss_of_it_is_the_models():
    plain = MODELS["complex"](N, 2 * R, 4, 0)
    model, (h, r, t) = Reciprocal(plain), random_triples(12, N, R).T
    one = kgfast.losses.cross_entropy(model, (t, r), h, side="head")
    assert one == kgfast.losses.cross_entropy(plain, (t, 2 * r + 1), h, side="tail")
    assert one == kgfast.losses.cross_entropy(model, (t, r + R), h, side="tail")
    negatives = torch.arange(5)
    triples = torch.stack([h, r, t], 1)
    one = kgfast.losses.nssa(model, triples, negatives, side="tail")
    forth = torch.stack([h, 2 * r, t], 1)
    assert one == kgfast.losses.nssa(plain, forth, negatives, side="tail")


class Nothing:
    num_relations = 2


def transe(relations):
    return MODELS["transe"](N, relations, 4, 0)


BAD = {
    ValueError: {
        "inverse relations as relations: TransE has 3 relations": lambda: Reciprocal(transe(3)),
        "order must be one of interleaved, appended; got 'last'": lambda: Reciprocal(
            transe(2), "last"
        ),
        "ConvE has inverse relations already": lambda: Reciprocal(
            kgfast.ConvE.init(N, 2, 8, embedding_height=2, seed=0)
        ),
        "Reciprocal has inverse relations already": lambda: Reciprocal(Reciprocal(transe(4))),
        "side must be 'head' or 'tail'; got 'tails'": lambda: Reciprocal(transe(4)).queries(
            torch.tensor([0]), torch.tensor([0]), "tails"
        ),
    },
    TypeError: {"model must have score": lambda: Reciprocal(Nothing())},
}


@each_of(BAD)
def test_bad_input_is_named(error, message, call):
    with pytest.raises(error, match=message):
        call()
    assert not hasattr(Reciprocal(transe(4)), "weight")

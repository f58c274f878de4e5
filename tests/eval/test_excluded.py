"""exclude= of rank(), topk() and above(): the whole order, of which ids are crossed out."""

import pytest
import torch

import kgfast
from kgfast import BlockScorer, KnownTriples, TransE, rank, topk
from support.ranked_models import MODELS, line, random_triples

N, R, K = 40, 3, 5
TRIPLES = random_triples(17, N, R)
KNOWN = KnownTriples(TRIPLES, random_triples(90, N, R, 1))


def asked(side):
    heads, relations, tails = TRIPLES.T
    return {"relations": relations} | ({"heads": heads} if side == "tail" else {"tails": tails})


def forms(side):
    """Yield forms of ``exclude``, and the ids that each query then leaves out."""
    lists = [torch.arange(row % 5) * 7 for row in range(len(TRIPLES))]
    lists[2] = torch.arange(N)  # everything
    indptr = torch.tensor([0, *map(len, lists)]).cumsum(0)
    anchors = TRIPLES[:, 0 if side == "tail" else 2].tolist()
    yield [3, 17, 3], [{3, 17}] * len(TRIPLES)
    yield (indptr, torch.cat(lists)), [set(ids.tolist()) for ids in lists]
    yield (indptr.numpy(), torch.cat(lists).numpy()), [set(ids.tolist()) for ids in lists]
    yield "anchor", [{anchor} for anchor in anchors]


def as_function(model):
    def function(anchors, others, side, ids):
        given = {"heads" if side == "tail" else "tails": anchors}
        top = topk(model, **given, relations=others, k=N)
        return top.scores.gather(1, top.ids.argsort())[:, ids]

    return BlockScorer(function, N, R, block=7)


def model_of(name):
    model = MODELS[name.replace("function", "transe")](N, R, 6, 0)
    return as_function(model) if name == "function" else model


def every_problem(test):
    """Run a test for both sides, with and without known answers, for models and a function."""
    test = pytest.mark.parametrize("side", ["tail", "head"])(test)
    test = pytest.mark.parametrize("name", ["rotate", "distmult", "function"])(test)
    return pytest.mark.parametrize("known", [None, KNOWN])(test)


@every_problem
def test_ids_are_crossed_out(backend, name, side, known):
    model = model_of(name)
    whole = topk(model, **asked(side), k=N, known=known, pad=True)
    lowest = float(whole.scores[whole.ids >= 0].min())
    for given, left_out in forms(side):
        found = topk(model, **asked(side), k=K, known=known, exclude=given, pad=True)
        reached = kgfast.above(model, lowest, **asked(side), known=known, exclude=given)
        for row, out in enumerate(left_out):
            best = [pair for pair in whole[row] if pair[0] not in out]
            assert found[row] == best[:K]
            assert reached[row] == sorted(best)


@every_problem
def test_ranks_leave_ids_out(backend, name, side, known):
    model = model_of(name)
    whole = topk(model, **asked(side), k=N, pad=True)
    raw = rank(model, TRIPLES, sides=(side,)).optimistic
    targets = TRIPLES[:, 2 if side == "tail" else 0].tolist()
    anchors = TRIPLES[:, 0 if side == "tail" else 2]
    answers = [set() for _ in targets]
    if known is not None:
        indptr, ids = known.exclude(anchors, TRIPLES[:, 1], side)
        answers = [set(some.tolist()) for some in ids.tensor_split(indptr[1:-1])]
    for value, left_out in forms(side):
        ranks = rank(model, TRIPLES, sides=(side,), known=known, exclude=value)
        assert torch.equal(ranks.raw.optimistic, raw)
        for row, (target, out) in enumerate(zip(targets, left_out, strict=True)):
            others = [pair for pair in whole[row] if pair[0] not in (out | answers[row]) - {target}]
            score = dict(others)[target]
            greater = sum(value > score for _, value in others)
            assert ranks.greater[row].tolist() == [greater]
            assert ranks.num_candidates[row].tolist() == [len(others)]


def test_ranks_leave_ids_of_a_side_out():
    triples, both = [(0, 0, 1), (1, 0, 2)], {"head": [1], "tail": None}
    of_both = rank(line(), triples, sides=("head", "relation", "tail"), exclude=both)
    for side in ("head", "relation", "tail"):
        alone = rank(line(), triples, sides=(side,), exclude=[1] if side == "head" else None)
        assert torch.equal(of_both.side(side).num_candidates, alone.num_candidates)
    assert of_both.side("head").num_candidates[:, 0].tolist() == [5, 6]
    with pytest.raises(ValueError, match=r"exclude must be of 'head' and 'tail'; got \['left'\]"):
        rank(line(), triples, exclude={"left": [1]})
    with pytest.raises(ValueError, match=r"indptr must have shape \[3\]"):
        rank(line(), triples, exclude=(torch.tensor([0, 1]), torch.tensor([1])))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("head", r"exclude must be ids, a pair .* got 'head'"),
        ([6], r"exclude\[0\] must be in 0 .. 5; got 6"),
        ((torch.tensor([0, 2]), torch.tensor([1])), "indptr must .* number of ids, 1"),
        ((torch.tensor([0]), torch.tensor([1])), r"indptr must have shape \[2\]"),
    ],
)
def test_bad_input_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        topk(line(), heads=[0], relations=0, k=1, exclude=value)


def test_names_relations_and_too_few_answers():
    model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0], [2.0]]))
    names = (["ann", "bob", "cat"], ["near", "far"])
    found = topk(model, heads="ann", relations="near", k=1, exclude=["bob"], vocabulary=names)
    assert found[0] == [("ann", -1.0)]
    assert topk(model, heads=0, tails=1, k=1, exclude=[0]).ids.tolist() == [[1]]
    with pytest.raises(ValueError, match=r"heads\[0\] = 0 with relation 0 has 2, k is 3"):
        topk(model, heads=0, relations=0, k=3, exclude="anchor")

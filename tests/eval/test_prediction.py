"""topk(): golden answers, the properties of any prediction, every argument, the result object."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgfast
from kgfast import KnownTriples, RotatE, TransE, Vocabulary, rank, topk
from support.engines import examples
from support.ranked_models import MODELS, line, random_triples


def test_golden_answers_with_ties():
    # From entity 0: distances 0 1 1 2 1 9.
    top = topk(line(), heads=0, relations=0, k=6)
    assert top.ids.tolist() == [[0, 1, 2, 4, 3, 5]]
    assert top.scores.tolist() == [[0.0, -1.0, -1.0, -1.0, -2.0, -9.0]]
    assert (top.side, top.anchors.tolist(), top.relations.tolist()) == ("tail", [0], [0])
    known = KnownTriples([(0, 0, 0), (0, 0, 4), (3, 0, 1)])
    assert topk(line(), heads=0, relations=0, k=3, known=known).ids.tolist() == [[1, 2, 3]]


def test_golden_answers_of_the_head_side():
    model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    top = topk(model, tails=[1, 2], relations=0, k=2)
    assert top.side == "head"
    assert top.ids.tolist() == [[0, 1], [1, 2]]
    known = KnownTriples([(0, 0, 1)])
    assert topk(model, tails=[1, 2], relations=0, k=1, known=known).ids.tolist() == [[1], [1]]


@pytest.mark.parametrize("name", MODELS)
@given(seed=st.integers(0, 10_000), k=st.sampled_from([1, 3, 10]))
@examples(5)
def test_agrees_with_ranks(name, seed, k):
    """A target with a pessimistic rank of at most k is answered; one beyond optimistic is not."""
    model = MODELS[name](50, 3, 6, seed)
    triples = random_triples(12, 50, 3, seed)
    known = KnownTriples(random_triples(60, 50, 3, seed + 1))
    ranks = rank(model, triples, known=known)
    heads, relations, tails = triples.T
    asked = {"tail": {"heads": heads}, "head": {"tails": tails}}
    for column, side in enumerate(("head", "tail")):
        anchors, targets = (heads, tails) if side == "tail" else (tails, heads)
        indptr, indices = known.exclude(anchors, relations, side)
        top = topk(model, **asked[side], relations=relations, k=k, known=known)
        for row in range(len(triples)):
            target = int(targets[row])
            answered = target in top.ids[row]
            if target in indices[indptr[row] : indptr[row + 1]]:
                assert not answered
            elif ranks.pessimistic[row, column] <= k:
                assert answered
            elif ranks.optimistic[row, column] > k:
                assert not answered


def test_ids_of_any_kind_and_broadcasting():
    model = RotatE.init(30, 4, 4, seed=0)
    expected = topk(model, heads=torch.tensor([3, 5]), relations=torch.tensor([1, 1]), k=2)
    numbers = torch.tensor([3, 5])
    for heads in ([3, 5], (3, 5), numbers.int(), numbers.numpy(), range(3, 6, 2)):
        again = topk(model, heads=heads, relations=1, k=2)
        assert torch.equal(again.ids, expected.ids)
        assert again.relations.tolist() == [1, 1]
    several = topk(model, heads=torch.tensor(3), relations=[1, 2, 3], k=2)
    assert several.anchors.tolist() == [3, 3, 3]
    assert torch.equal(several.ids[0], expected.ids[0])


def test_candidate_subsets():
    model = RotatE.init(100, 2, 8, seed=0)
    ids = torch.randperm(100, generator=torch.Generator().manual_seed(1))[:30]
    top = topk(model, heads=[4, 5], relations=0, k=30, candidate_ids=ids.tolist())
    for row in range(2):
        assert sorted(top.ids[row].tolist()) == sorted(ids.tolist())
    everything = topk(model, heads=[4, 5], relations=0, k=100)
    kept = torch.isin(everything.ids, ids)
    assert torch.equal(everything.ids[kept].view(2, 30), top.ids)


def test_no_candidates_at_all(backend):
    with pytest.raises(ValueError, match="number of candidates, 0; got 2"):
        topk(line(), heads=[0, 3], relations=0, k=2, candidate_ids=[])
    top = topk(line(), heads=[0, 3], relations=0, k=2, candidate_ids=[], pad=True)
    assert top.ids.tolist() == [[-1, -1]] * 2
    assert top.scores.tolist() == [[-torch.inf, -torch.inf]] * 2


def test_too_few_candidates_name_the_query():
    known = KnownTriples([(3, 0, n) for n in range(1, 6)])
    with pytest.raises(ValueError, match=r"heads\[70\] = 3 with relation 0 has 1, k is 2"):
        topk(line(), heads=[0] * 70 + [3], relations=0, k=2, known=known, batch_size=64)
    top = topk(line(), heads=[0, 3], relations=0, k=2, known=known, pad=True)
    assert top.ids.tolist() == [[0, 1], [0, -1]]
    assert top[1] == [(0, -2.0)]
    assert len(top.to_frame()) == 3


def test_nan_embeddings_are_an_error_that_names_the_query_or_the_row():
    model = RotatE.init(20, 2, 4, seed=0).requires_grad_(False)
    model.relation[1, 2] = float("nan")
    with pytest.raises(ValueError, match=r"heads\[1\] = 7 with relation 1: the query holds a NaN"):
        topk(model, heads=[0, 7], relations=[0, 1], k=1)
    model.entity[9, 0] = float("inf")
    with pytest.raises(ValueError, match="candidates: row 9 holds a NaN or an infinity"):
        topk(model, heads=[0], relations=[0], k=1)


PEOPLE = Vocabulary(["ann", "bob", "cid", "dan", "eve", "fay"])
LIKES = Vocabulary(["likes"])


def test_names():
    top = topk(line(), heads=[0, 5], relations=0, k=2)
    assert repr(top) == "Predictions of 2 tail queries, k = 2\n(0, 0, ?)  0 0, 1 -1\n" + (
        "(5, 0, ?)  5 0, 3 -7"
    )
    named = topk(line(), heads=[0, 5], relations=0, k=2, vocabulary=(PEOPLE, LIKES))
    assert repr(named).splitlines()[1:] == [
        "(ann, likes, ?)  ann 0, bob -1",
        "(fay, likes, ?)  fay 0, dan -7",
    ]
    assert named[1] == [("fay", 0.0), ("dan", -7.0)]
    heads = topk(line(), tails=3, relations=0, k=1, vocabulary=(PEOPLE, None))
    assert repr(heads).splitlines() == ["Predictions of 1 head query, k = 1", "(?, 0, dan)  dan 0"]


def test_to_frame():
    pytest.importorskip("pandas")
    top = topk(line(), tails=[3, 5], relations=0, k=2)
    frame = top.to_frame((PEOPLE, LIKES))
    assert frame.index.tolist() == [0, 0, 1, 1]
    assert frame["head"].tolist() == ["dan", "bob", "fay", "dan"]
    assert frame["tail"].tolist() == ["dan", "dan", "fay", "fay"]
    assert frame["relation"].tolist() == ["likes"] * 4
    again = topk(line(), tails=frame["tail"][::2], relations=0, k=2, vocabulary=(PEOPLE, LIKES))
    assert torch.equal(again.ids, top.ids)
    assert frame["rank"].tolist() == [1, 2, 1, 2]
    assert frame["score"].tolist() == [0.0, -1.0, 0.0, -7.0]
    assert top.to_frame()["head"].tolist() == [3, 1, 5, 3]


def ask(**kwargs):
    return lambda: topk(line(), **{"relations": 0, "k": 1, **kwargs})


BAD = {
    "model": (lambda: topk(object(), heads=0, relations=0, k=1), TypeError, "model must have"),
    "neither": (ask(), ValueError, "two of heads, relations and tails"),
    "all": (ask(heads=0, tails=0), ValueError, "two of heads, relations and tails"),
    "head": (ask(heads=[0, 6]), ValueError, r"heads\[1\] must be in 0 .. 5; got 6"),
    "tail": (ask(tails=-1), ValueError, r"tails must be in 0 .. 5; got -1"),
    "relation": (ask(heads=0, relations=[0, 1]), ValueError, r"relations\[1\] .* 0 .. 0"),
    "lengths": (ask(heads=[0, 1], relations=[0, 0, 0]), ValueError, "one length; got 2 and 3"),
    "floats": (ask(heads=[0.5]), TypeError, "heads must be integers"),
    "axes": (ask(heads=[[0]]), ValueError, "heads must have one axis"),
    "k": (ask(heads=0, k=0), ValueError, "k must be at least 1"),
    "k type": (ask(heads=0, k=1.0), TypeError, "k must be an int"),
    "known": (ask(heads=0, known=[(0, 0, 1)]), TypeError, "KnownTriples"),
    "batch": (ask(heads=0, batch_size=0), ValueError, "batch_size"),
    "subset": (ask(heads=0, candidate_ids=[1, 1]), ValueError, "must not repeat"),
    "float subset": (ask(heads=0, candidate_ids=[0.5]), TypeError, "candidate_ids"),
    "vocabulary": (lambda: ask(heads=0)().to_frame(PEOPLE), TypeError, "must be a pair"),
    "vocabulary kind": (
        lambda: ask(heads=0)().to_frame(("ann", None)),
        TypeError,
        "must hold Vocabulary, lists of names or None; got str",
    ),
    "vocabulary twice": (
        lambda: ask(heads=0)().to_frame((["ann", "ann"], None)),
        ValueError,
        r"vocabulary: entities: names\[1\] = 'ann' is a duplicate",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("k", [8, 2**40, 2**70])
def test_more_answers_than_candidates_are_refused_before_there_is_room_for_them(k):
    model = kgfast.TransE(torch.zeros(7, 2), torch.zeros(1, 2))
    message = f"^k must be at most the number of candidates, 7; got {k} .pad=True fills the rest"
    with pytest.raises(ValueError, match=message):
        kgfast.topk(model, heads=[0], relations=0, k=k)
    with pytest.raises(ValueError, match="of candidates, 2; got"):
        kgfast.topk(model, heads=[0], relations=0, k=k, candidate_ids=[1, 2])
    rows = torch.ones(1, 2), torch.ones(7, 2)
    with pytest.raises(ValueError, match=message):
        kgfast.ops.topk(*rows, k)
    if k > 2**31:
        with pytest.raises(ValueError, match=r"^k must be at most 2147483647"):
            kgfast.ops.topk(*rows, k, pad=True)


def test_a_size_of_batches_is_an_integer_of_any_size():
    model = kgfast.TransE(torch.zeros(7, 2), torch.zeros(1, 2))
    for value in ("a", 1.5, True):
        with pytest.raises(TypeError, match=f"^batch_size must be an int; got {value!r}"):
            kgfast.rank(model, [(0, 0, 1)], batch_size=value)
    assert len(kgfast.rank(model, [(0, 0, 1)], batch_size=2**70).triples) == 1

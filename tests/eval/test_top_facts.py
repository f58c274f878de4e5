"""top_facts(): the best of all triples, as sorting every score gives them."""

import numpy as np
import pytest
import torch

import kgfast
from kgfast import DistMult, Facts, KnownTriples, Vocabulary, top_facts, topk
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score
from support.ranked_models import MODELS, line, random_triples
from support.scorers import as_blocks

N, R = 19, 5


def sorted_facts(model, known=None, heads=None, relations=None, tails=None):
    """All new triples of a slice and their canonical scores, in the order that is promised."""
    axes = [
        torch.arange(count) if ids is None else torch.tensor(sorted(ids))
        for ids, count in ((heads, N), (relations, R), (tails, N))
    ]
    triples = torch.cartesian_prod(*axes)
    candidates = model.candidates("tail")
    with torch.no_grad():
        queries = model.queries(triples[:, 0], triples[:, 1], "tail")
        rows = candidates.table[triples[:, 2]]
        bias = None if candidates.bias is None else candidates.bias[triples[:, 2]]
        scores = canonical_scores(queries, rows, get_score(model.score), bias)
    if known is not None:
        new = ~known.contains(triples)
        triples, scores = triples[new], scores[new]
    order = scores.argsort(stable=True, descending=True)
    return triples[order], scores[order]


def assert_best(facts, model, k, **slices):
    triples, scores = sorted_facts(model, **slices)
    assert torch.equal(facts.triples, triples[:k])
    assert torch.equal(facts.scores, scores[:k].to(facts.scores.dtype))
    assert len(facts) == min(k, len(triples))


@pytest.mark.parametrize("name", MODELS)
def test_facts_are_the_best_of_all(name):
    model = MODELS[name](N, R, 4, 3)
    known = KnownTriples(random_triples(300, N, R, 1))
    assert_best(top_facts(model, k=40, known=known), model, 40, known=known)
    assert_best(top_facts(model.double(), k=1), model, 1)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_facts_do_not_depend_on_batches_or_seeds(batch_size, monkeypatch):
    model = MODELS["complex"](N, R, 4, 0)
    slices = {"heads": [8, 3, 5], "relations": [4, 0, 2], "tails": [1, 9, 2, 18, 7]}
    facts = top_facts(model, k=11, batch_size=batch_size, **slices)
    assert_best(facts, model, 11, **slices)
    assert_best(top_facts(model, k=30, batch_size=batch_size), model, 30)


@pytest.mark.parametrize(("block", "batch_size"), [(3, 64), (100, 3), (None, 2), (None, 64)])
def test_ties_are_ordered_by_the_lowest_triple(block, batch_size):
    """Scores of a few values, so that most facts tie, also across batches and depths."""
    generator = torch.Generator().manual_seed(0)
    entity = torch.randint(2, (N, 2), generator=generator).float()
    relation = torch.randint(2, (R, 2), generator=generator).float()
    for model in (kgfast.DistMult(entity, relation), kgfast.TransE(entity, relation)):
        known = KnownTriples(random_triples(50, N, R, 1))
        scorer = model if block is None else as_blocks(model, block=block, batch_size=batch_size)
        facts = top_facts(scorer, k=60, known=known, batch_size=batch_size)
        assert_best(facts, model, 60, known=known)


def test_ties_stay_in_order_where_passes_cut_a_batch():
    entity, relation = torch.ones(6, 2), torch.ones(2, 2)
    model = kgfast.DistMult(kgfast.tables.Shard(entity, total_rows=6), relation)
    for memory in range(5_500, 6_500, 100):  # five queries a pass
        facts = top_facts(model, k=10, tails=[0], max_memory=memory)
        assert facts.triples.tolist() == [[h, r, 0] for h in range(5) for r in range(2)]


PEOPLE = Vocabulary(["ann", "bob", "cid", "dan", "eve", "fay"]), Vocabulary(["likes"])


def test_scores_that_are_no_numbers_come_last(tmp_path):
    """Products of finite rows overflow; in memory and in a file."""
    rows = torch.tensor([[1e200, 1e200], [1.0, 2.0], [3.0, 4.0], [5.0, 5.0]], dtype=torch.float64)
    np.save(tmp_path / "e.npy", rows.numpy())
    for table in (rows, kgfast.tables.open(tmp_path / "e.npy")):
        model = DistMult(table, torch.tensor([[1e150, -1e150]], dtype=torch.float64))
        assert topk(model, heads=1, relations=0, k=4).ids.tolist() == [[1, 2, 3, 0]]
        assert top_facts(model, heads=[1, 2], k=7).triples[-1].tolist() == [1, 0, 0]


def test_names_and_tables():
    pytest.importorskip("pandas")
    facts = top_facts(line(), k=2, vocabulary=PEOPLE, heads=["fay", "ann"], tails=["fay", "dan"])
    assert repr(facts) == "2 facts\n(fay, likes, fay)  0\n(ann, likes, dan)  -2"
    frame = facts.to_frame()
    assert frame.to_dict("list") == {
        "head": ["fay", "ann"],
        "relation": ["likes", "likes"],
        "tail": ["fay", "dan"],
        "score": [0.0, -2.0],
    }
    plain = top_facts(line(), k=12)
    assert repr(plain).splitlines()[0] == "12 facts"
    assert repr(plain).endswith("...")
    assert plain.to_frame(PEOPLE)["head"].iloc[0] == "ann"
    assert plain.to_frame()["head"].iloc[0] == 0
    assert repr(Facts(torch.empty(0, 3), torch.empty(0))) == "0 facts"


BAD = {
    "model": (lambda: top_facts(object()), TypeError, "model must have"),
    "k": (lambda: top_facts(line(), k=0), ValueError, "k must be at least 1"),
    "known": (lambda: top_facts(line(), known=[(0, 0, 1)]), TypeError, "KnownTriples"),
    "heads": (lambda: top_facts(line(), heads=[0, 6]), ValueError, r"heads\[1\] must be in 0 .. 5"),
    "tails": (lambda: top_facts(line(), tails=[1, 1]), ValueError, r"tails\[1\] must not repeat"),
    "names": (lambda: top_facts(line(), heads=["ann"]), TypeError, "names need vocabulary="),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()

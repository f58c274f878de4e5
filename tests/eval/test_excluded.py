"""topk(exclude=): the answers are those of the whole order, of which ids are crossed out."""

import numpy as np
import pytest
import torch

from kgfast import (
    MED,
    RSCF,
    BlockScorer,
    Index,
    KnownTriples,
    Reciprocal,
    RotatE,
    TransE,
    TypeConstraints,
    Vocabulary,
    tables,
    topk,
)
from support.ranked_models import MODELS, line, random_triples

N, R, D, K = 40, 3, 6, 5
TRIPLES = random_triples(17, N, R)
TRIPLES[3:7] = TRIPLES[3]  # queries that are equal and leave other ids out
KNOWN = KnownTriples(TRIPLES, random_triples(90, N, R, 1))
AROUND = {
    **MODELS,
    "rscf": lambda n, r, d, seed: RSCF(RotatE.init(n, r, d, seed=seed), seed=1),
    "reciprocal": lambda n, r, d, seed: Reciprocal(RotatE.init(n, 2 * r, d, seed=seed)),
    "med": lambda n, r, d, seed: MED(RotatE.init(n, r, d, seed=seed), [2, 4, d]),
    "float64": lambda n, r, d, seed: TransE.init(n, r, d, seed=seed).double(),
    "function": lambda n, r, d, seed: blocks(RotatE.init(n, r, d, seed=seed)),
}


def blocks(model):
    """Return the model's scores by a function."""

    def function(anchors, others, side, ids):
        asked = {"tail": "heads", "head": "tails"}[side]
        top = topk(model, **{asked: anchors}, relations=others, k=N)
        return top.scores.gather(1, top.ids.argsort())[:, ids]

    return BlockScorer(function, N, R, block=7)


def asked(side):
    heads, relations, tails = TRIPLES.T
    return {
        "tail": {"heads": heads, "relations": relations},
        "head": {"tails": tails, "relations": relations},
        "relation": {"heads": heads, "tails": tails},
    }[side]


def forms(count, side):
    """Yield forms of ``exclude``, and the ids that each query then leaves out."""
    generator = torch.Generator().manual_seed(7)
    shared = torch.randint(count, (count // 3 + 1,), generator=generator)
    lists = [torch.randint(count, (row % 5,), generator=generator) for row in range(len(TRIPLES))]
    lists[2] = torch.arange(count)  # everything
    indptr = torch.tensor([0, *map(len, lists)]).cumsum(0)
    yield shared, [set(shared.tolist())] * len(TRIPLES)
    yield (indptr, torch.cat(lists)), [set(ids.tolist()) for ids in lists]
    if side != "relation":
        anchors = TRIPLES[:, 0 if side == "tail" else 2].tolist()
        yield "anchor", [{anchor} for anchor in anchors]


def crossed_out(model, side, left_out, *, known=None, candidates=None, k=K, **options):
    """Ids and scores of the whole order without known answers, of which some are left out."""
    count = model.num_relations if side == "relation" else model.num_entities
    whole = topk(model, **asked(side), k=count, **options)
    ids = torch.full((len(TRIPLES), k), -1)
    scores = torch.full((len(TRIPLES), k), -torch.inf, dtype=whole.scores.dtype)
    pairs = zip(*(values.tolist() for values in asked(side).values()), strict=True)
    for row, pair in enumerate(pairs):
        first, second = (torch.tensor([value]) for value in pair)
        out = set(left_out[row])
        if known is not None:
            out |= set(known.exclude(first, second, side)[1].tolist())
        allowed = set(range(count)) if candidates is None else set(candidates[row].tolist())
        best = [place for place, id in enumerate(whole.ids[row].tolist()) if id in allowed - out]
        best = best[:k]
        ids[row, : len(best)] = whole.ids[row, best]
        scores[row, : len(best)] = whole.scores[row, best]
    return ids, scores


def check(found, expected):
    assert torch.equal(found.ids, expected[0])
    assert torch.equal(found.scores, expected[1])


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize("name", AROUND)
def test_ids_are_crossed_out(backend, name, side):
    model = AROUND[name](N, R, D, 0)
    for given, left_out in forms(N, side):
        for known in (None, KNOWN):
            found = topk(model, **asked(side), k=K, known=known, exclude=given, pad=True)
            check(found, crossed_out(model, side, left_out, known=known))


@pytest.mark.parametrize("name", ["rotate", "distmult"])
def test_relations(backend, name):
    model = MODELS[name](N, 11, D, 0)
    for given, left_out in forms(11, "relation"):
        found = topk(model, **asked("relation"), k=K, known=KNOWN, exclude=given, pad=True)
        check(found, crossed_out(model, "relation", left_out, known=KNOWN))


def test_of_crops_and_an_index(backend):
    model = AROUND["med"](N, R, D, 0)
    index = Index(model, croppable=True)
    for given, left_out in forms(N, "tail"):
        for dim in (None, 2, 4):
            options = {"exclude": given, "k": K, "pad": True, "dims": dim, "index": index}
            expected = crossed_out(model, "tail", left_out, known=KNOWN, dims=dim)
            check(topk(model, **asked("tail"), known=KNOWN, **options), expected)


@pytest.mark.parametrize("name", ["rotate", "distmult", "function"])
def test_among_candidates_of_every_kind(backend, name):
    model = AROUND[name](N, R, D, 0)
    generator = torch.Generator().manual_seed(5)
    lists = torch.stack([torch.randperm(N, generator=generator)[:9] for _ in TRIPLES])
    some = torch.randperm(N, generator=generator)[:17]
    allowed = TypeConstraints.from_triples(torch.cat([TRIPLES, random_triples(40, N, R, 2)]))
    kinds = (
        (some, [some] * len(TRIPLES)),
        (lists, list(lists)),
        (allowed, [allowed.candidates(int(it), "tail") for it in TRIPLES[:, 1]]),
    )
    for ids, candidates in kinds:
        for given, left_out in forms(N, "tail"):
            options = {"exclude": given, "candidate_ids": ids, "k": K, "pad": True, "known": KNOWN}
            found = topk(model, **asked("tail"), **options)
            expected = crossed_out(model, "tail", left_out, known=KNOWN, candidates=candidates)
            check(found, expected)


def test_the_best_new_tail_is_not_its_head():
    assert topk(line(), heads=[0, 5], relations=0, k=1).ids.tolist() == [[0], [5]]
    assert topk(line(), heads=[0, 5], relations=0, k=1, exclude="anchor").ids.tolist() == [[1], [3]]


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_batches_change_nothing(batch_size, monkeypatch):
    model = MODELS["rotate"](N, R, D, 0)
    for most in (1, 30, 1 << 19):  # ids of a batch
        monkeypatch.setattr("kgfast.eval.candidates._PAIRS", most)
        for given, left_out in forms(N, "tail"):
            options = {"exclude": given, "k": K, "pad": True, "batch_size": batch_size}
            found = topk(model, **asked("tail"), known=KNOWN, **options)
            check(found, crossed_out(model, "tail", left_out, known=KNOWN))


def test_entities_in_files(tmp_path):
    """A folder is that of the ids that are left out, too."""
    model = MODELS["rotate"](N, R, D, 0)
    np.save(tmp_path / "e.npy", model.entity.detach().numpy())
    stored = model.with_entity(tables.open(tmp_path / "e.npy"))
    for number, (given, left_out) in enumerate(forms(N, "tail")):
        options = {"exclude": given, "k": K, "pad": True, "max_memory": 30_000}
        folder = tmp_path / f"{number}"
        found = topk(stored, **asked("tail"), known=KNOWN, partial=folder, **options)
        check(found, crossed_out(model, "tail", left_out, known=KNOWN))
        options["exclude"] = [0]
        with pytest.raises(ValueError, match="is of another call"):
            topk(stored, **asked("tail"), known=KNOWN, partial=folder, **options)


def test_ids_of_any_kind_and_names():
    names = Vocabulary([f"e{row}" for row in range(6)]), None
    expected = topk(line(), heads=[0, 1], relations=0, k=2, exclude=[1, 4]).ids
    assert not torch.isin(expected, torch.tensor([1, 4])).any()
    for given in ((1, 4), torch.tensor([1, 4, 1]).int(), np.array([4, 1]), range(1, 5, 3)):
        again = topk(line(), heads=[0, 1], relations=0, k=2, exclude=given)
        assert torch.equal(again.ids, expected)
    options = {"heads": [0, 1], "relations": 0, "k": 2, "vocabulary": names}
    assert torch.equal(topk(line(), **options, exclude=["e1", "e4"]).ids, expected)
    pair = np.array([0, 2, 4], dtype=np.int32), torch.tensor([1, 4, 4, 1])
    assert torch.equal(topk(line(), **options, exclude=pair).ids, expected)
    assert topk(line(), heads=0, relations=0, k=1, exclude=0).ids.tolist() == [[1]]
    plain = topk(line(), heads=[0, 1], relations=0, k=2).ids
    for none in ([], torch.empty(0, dtype=torch.int64), (torch.zeros(3).long(), pair[1][:0])):
        assert torch.equal(topk(line(), heads=[0, 1], relations=0, k=2, exclude=none).ids, plain)


def test_no_queries():
    for given in ([1], "anchor", (torch.zeros(1).long(), torch.zeros(0).long())):
        assert topk(line(), heads=[], relations=0, k=2, exclude=given).ids.shape == (0, 2)


def test_padding_is_what_it_was():
    options = {"heads": [0, 3], "relations": 0, "k": 2}
    indptr, ids = torch.tensor([0, 1, 6]), torch.tensor([0, 1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match=r"heads\[1\] = 3 with relation 0 has 1, k is 2"):
        topk(line(), **options, exclude=(indptr, ids))
    found = topk(line(), **options, exclude=(indptr, ids), pad=True)
    assert found.ids.tolist() == [[1, 2], [0, -1]]
    assert found.scores[1].tolist() == [-2.0, -torch.inf]
    assert found[1] == [(0, -2.0)]
    assert found.columns()["tail"] == [1, 2, 0]
    known = KnownTriples([(0, 0, 1), (0, 0, 2), (0, 0, 3)])
    with pytest.raises(ValueError, match=r"heads\[0\] = 0 with relation 0 has 1, k is 2"):
        topk(line(), **options, known=known, exclude=[0, 1, 5])
    with pytest.raises(ValueError, match="k must be at most the number of candidates, 6; got 7"):
        topk(line(), **options | {"k": 7}, exclude=[0])


CSR = torch.tensor([0, 1, 2])
BAD = {
    "id": ([0, 6], ValueError, r"^exclude\[1\] must be in 0 .. 5; got 6"),
    "first": ([0, -2, 9], ValueError, r"^exclude\[1\] must be in 0 .. 5; got -2"),
    "one": (-1, ValueError, "^exclude must be in 0 .. 5; got -1"),
    "of csr": ((CSR, CSR[:2] + 5), ValueError, r"^exclude: ids\[1\] must be in 0 .. 5; got 6"),
    "short": ((CSR[:2], CSR[:1]), ValueError, r"^exclude: indptr must have shape \[3\].*got \[2\]"),
    "falls": ((CSR[[0, 2, 1]], CSR[:1]), ValueError, "^exclude: indptr must rise .* of ids, 1"),
    "floats": ([0.5], TypeError, "^exclude must be integers"),
    "floats of csr": ((CSR, CSR[:2].float()), TypeError, "^exclude: ids must be integers"),
    "bools": (torch.ones(6).bool(), TypeError, "^exclude must be integers"),
    "rows": ([[1], [2]], TypeError, r"^exclude must be ids for all .* \(indptr, ids\) .*of rows"),
    "lists": (([0, 1], [2]), TypeError, "^exclude must be .* got a tuple of rows"),
    "matrix": (torch.zeros(2, 2).long(), ValueError, "^exclude must have one axis"),
    "word": ("anchors", ValueError, r'^exclude must be .* or "anchor"; got \'anchors\''),
    "names": (["ann"], TypeError, "^exclude must be integers, got names"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    given, error, message = BAD[name]
    with pytest.raises(error, match=message):
        topk(line(), heads=[0, 1], relations=0, k=1, exclude=given)


def test_relations_have_no_anchor_among_them():
    with pytest.raises(ValueError, match=r'^exclude="anchor" leaves entities out'):
        topk(line(), heads=0, tails=1, k=1, exclude="anchor")
    with pytest.raises(ValueError, match=r"^exclude\[0\] must be in 0 .. 0; got 1"):
        topk(line(), heads=0, tails=1, k=1, exclude=[1])

"""Ranking and predicting relations: exact, filtered by (h, t), never pooled with entities."""

import pytest
import torch

import kgfast
from kgfast import MED, RSCF, ConvE, KnownTriples, rank, topk
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score
from support.ranked_models import MODELS, line, random_triples

N, R, SIDES = 17, 9, ("head", "relation", "tail")
OTHERS = {
    "conve": lambda n, r, d, seed: ConvE.init(n, r, 8, embedding_height=2, seed=seed).eval(),
    "med": lambda n, r, d, seed: MED(MODELS["rotate"](n, r, d, seed), dims=[2, d]),
    "rscf rotate": lambda n, r, d, seed: RSCF(MODELS["rotate"](n, r, d, seed), seed=seed),
    "rscf transe": lambda n, r, d, seed: RSCF(MODELS["transe"](n, r, d, seed), seed=seed),
}


def triple_scores(model, heads, tails, dim=None):
    """Canonical tail scores of (h, r, t) for every relation, ``[B, R]``, one triple at a time."""
    candidates = model.candidates("tail", dim) if dim else model.candidates("tail")
    rows = []
    for head, tail in zip(heads.tolist(), tails.tolist(), strict=True):
        relations = torch.arange(model.num_relations)
        with torch.no_grad():
            queries = model.queries(torch.tensor([head] * len(relations)), relations, "tail", dim)
        factor = None if candidates.factor is None else candidates.factor[[tail]]
        bias = None if candidates.bias is None else candidates.bias[[tail]]
        score = get_score(model.score)
        rows.append(canonical_scores(queries, candidates.table[[tail]], score, bias, factor))
    return torch.stack(rows).detach()


def relation_scores(model, heads, tails):
    """Return canonical scores ``[B, R]`` of models whose score compares relations."""
    queries = model.queries(heads, tails, "relation")[:, None]
    return canonical_scores(queries, model.candidates("relation").table, get_score(model.score))


def assert_counts(ranks, scores, triples, known):
    """Check that ranks are those of the scores of all relations, less the known ones."""
    for row, (h, r, t) in enumerate(triples.tolist()):
        others = [n for n in range(R) if n != r]
        new = [n for n in others if not known.contains([(h, n, t)]).item()]
        for part, pool in ((ranks.raw, others), (ranks, new)):
            assert part.greater[row] == sum(bool(scores[row, n] > scores[row, r]) for n in pool)
            assert part.equal[row] == sum(bool(scores[row, n] == scores[row, r]) for n in pool)
            assert part.num_candidates[row] == len(pool) + 1


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_ranks_are_those_of_all_scores(name):
    model = (MODELS | OTHERS)[name](N, R, 4, 0).requires_grad_(False)
    triples = random_triples(20, N, R)
    known = KnownTriples(
        triples, triples % torch.tensor([N, 4, N]), triples // torch.tensor([1, 2, 1])
    )
    scores = relation_scores if model.scores_relations else triple_scores
    of_all = scores(model, triples[:, 0], triples[:, 2])
    ranks = rank(model, triples, known=known, sides=SIDES)
    assert_counts(ranks.side("relation"), of_all, triples, known)
    two = rank(model, triples, known=known)
    assert torch.equal(ranks.greater[:, [0, 2]], two.greater)
    top = topk(model, heads=triples[:, 0], tails=triples[:, 2], k=R)
    assert torch.equal(top.ids, of_all.argsort(dim=1, descending=True, stable=True))


def test_a_score_of_relations_is_that_of_the_triple():
    """The queries of side relation mean what those of side tail mean."""
    heads, tails = torch.arange(5), torch.arange(5, 10)
    for name, make in MODELS.items():
        model = make(N, R, 4, 0).double().requires_grad_(False)
        if model.scores_relations:
            torch.testing.assert_close(
                relation_scores(model, heads, tails), triple_scores(model, heads, tails), msg=name
            )


@pytest.mark.parametrize("name", ["rotate", "transe", "complex", "complex interleaved", "med"])
def test_crops(name):
    model = (MODELS | OTHERS)[name](N, R, 4, 0).requires_grad_(False)
    triples = random_triples(10, N, R)
    ranks = rank(model, triples, sides=("relation",), dims=[2, 4])
    assert torch.equal(ranks[4].greater, rank(model, triples, sides=("relation",)).greater)
    columns = [0, 1, 4, 5] if name == "complex" else range(4)
    if name.startswith("complex"):
        rows = model.entity[:, columns], model.relation[:, columns]
        narrow = type(model)(*rows, layout=model.layout)
    elif name == "transe":
        narrow = kgfast.TransE(model.entity[:, :2], model.relation[:, :2])
    else:
        return
    assert torch.equal(ranks[2].greater, rank(narrow, triples, sides=("relation",)).greater)


def test_metrics_never_pool_relations_with_entities():
    model, triples = MODELS["complex"](N, R, 4, 0), random_triples(30, N, R)
    known = KnownTriples(triples)
    ranks = rank(model, triples, known=known, sides=SIDES)
    entities = rank(model, triples, known=known)
    alone = rank(model, triples, known=known, sides=("relation",))
    assert ranks.metrics() == entities.metrics()
    assert (ranks.mrr, ranks.hits(3)) == (entities.mrr, entities.hits(3))
    of_relations = ranks.side("relation").metrics()
    assert of_relations == alone.metrics()
    assert of_relations["mrr"] != ranks.mrr
    for grouping in ("relation", "cardinality", "frequency"):
        of_all = ranks.by(grouping).metrics()
        assert str(of_all) == str(entities.by(grouping).metrics())
        assert all(row["count"] > 0 for row in of_all.values())
    assert sum(row["count"] for row in alone.by("frequency").metrics().values()) == 30
    assert set(ranks.to_frame()["side"]) == set(SIDES)


def test_known_relations_of_a_pair():
    known = KnownTriples([(0, 2, 1), (0, 0, 1), (1, 1, 0), (0, 0, 1)])
    indptr, indices = known.exclude(torch.tensor([0, 1, 9]), torch.tensor([1, 0, 0]), "relation")
    assert (indptr.tolist(), indices.tolist()) == ([0, 2, 3, 3], [0, 2, 1])
    assert known.counts(torch.tensor([0]), torch.tensor([1]), "relation").tolist() == [2]
    moved = known.to("cpu").exclude(torch.tensor([0]), torch.tensor([1]), "relation")
    assert moved[1].tolist() == [0, 2]


def test_predictions_of_relations():
    model = MODELS["transe"](N, R, 4, 0)
    known = KnownTriples([(0, r, 1) for r in range(R - 2)])
    names = None, [f"r{i}" for i in range(R)]
    top = topk(model, heads=[0, 3], tails=[1, 2], k=2, known=known, vocabulary=names)
    assert (top.side, top.relations) == ("relation", None)
    assert (top.heads.tolist(), top.tails.tolist()) == ([0, 3], [1, 2])
    assert sorted(top.ids[0].tolist()) == [R - 2, R - 1]
    assert repr(top).splitlines()[1].startswith("(0, ?, 1)  r")
    frame = top.to_frame()
    assert frame["head"].tolist() == [0, 0, 3, 3]
    assert frame["tail"].tolist() == [1, 1, 2, 2]
    assert set(frame["relation"]) <= set(names[1])
    only = topk(model, heads=0, tails=[1, 2], k=1, candidate_ids=[4])
    assert only.ids.tolist() == [[4], [4]]
    with pytest.raises(ValueError, match=r"heads\[0\] = 0 with tail 1 has 2, k is 3"):
        topk(model, heads=0, tails=1, k=3, known=known)


class Own:
    """Distances on a line; the relation moves."""

    score, num_entities, num_relations, dim = "l1", N, R, 1

    def __init__(self):
        self.table, self.moves = torch.arange(N)[:, None].float(), torch.arange(R)[:, None].float()

    def queries(self, anchors, relations, side):
        if side == "relation":
            return self.table[relations] - self.table[anchors]
        moves = self.moves[relations]
        return self.table[anchors] + (moves if side == "tail" else -moves)

    def candidates(self, side):
        return self.moves if side == "relation" else self.table


def test_an_own_model_says_so_by_its_candidates():
    ranks = rank(Own(), [(0, 3, 3), (0, 5, 1)], sides=("relation",))
    assert ranks.greater.flatten().tolist() == [0, 5]


@pytest.mark.parametrize("wrong", ["entities", "error", "count"])
def test_a_model_without_relations_is_named(wrong):
    model = Own()
    model.candidates = {
        "entities": lambda side: model.table,
        "error": lambda side: {"head": model.table, "tail": model.table}[side],
        "count": lambda side: model.moves[:4] if side == "relation" else model.table,
    }[wrong]
    for call in (
        lambda: rank(model, [(0, 3, 3)], sides=("relation",)),
        lambda: topk(model, heads=0, tails=1, k=1),
    ):
        with pytest.raises(NotImplementedError, match="Own ranks no relations"):
            call()
    assert rank(model, [(0, 3, 3)]).greater.shape == (1, 2)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="two of heads, relations and tails must be given"):
        topk(line(), heads=0, k=1)
    with pytest.raises(ValueError, match="heads and tails must have one length; got 2 and 3"):
        topk(line(), heads=[0, 1], tails=[0, 1, 2], k=1)
    with pytest.raises(ValueError, match=r"sides must be distinct .* got \('relations',\)"):
        rank(line(), [(0, 0, 1)], sides=("relations",))
    with pytest.raises(ValueError, match="side must be 'head' or 'tail'; got 'relation'"):
        MODELS["rotate"](N, R, 4, 0).candidates("relation")
    model = MODELS["rotate"](N, R, 4, 0).requires_grad_(False)
    model.entity[3, 0] = float("nan")
    with pytest.raises(
        ValueError, match=r"RotatE of triples: NaN for block 0 of the relation side"
    ):
        rank(model, [(3, 3, 3)], sides=("relation",))
    ranks = rank(model, [(3, 3, 3)], sides=("relation",), nan="worst")
    assert ranks.pessimistic.item() == R

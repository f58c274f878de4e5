"""rank() and topk() among candidates of each triple, and of each relation."""

import math

import numpy as np
import pytest
import torch

from kgfast import KnownTriples, TransE, Triples, TypeConstraints, Vocabulary, compare, rank, topk
from support.lists import padded, random_lists

N, R, T = 12, 3, 20


def model(dtype: torch.dtype = torch.float32) -> TransE:
    generator = torch.Generator().manual_seed(0)
    tables = (torch.randint(-2, 3, (rows, 3), generator=generator).to(dtype) for rows in (N, R))
    return TransE(*tables)


def triples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    columns = [torch.randint(size, (T,), generator=generator) for size in (N, R, N)]
    return torch.stack(columns, 1)


def columns_of(ranks) -> list[torch.Tensor]:
    return [it for own in (ranks, ranks.raw) for it in (own.greater, own.equal, own.num_candidates)]


def one_by_one(rows: dict[str, list[torch.Tensor]], known: KnownTriples) -> list[torch.Tensor]:
    """Every triple and side alone, with its candidates as the only ones."""
    sides = []
    for side in ("head", "tail"):
        alone = [
            columns_of(rank(model(), hrt[None], known=known, sides=(side,), candidate_ids=ids))
            for hrt, ids in zip(triples(), rows[side], strict=True)
        ]
        sides.append([torch.cat(column) for column in zip(*alone, strict=True)])
    return [torch.cat(pair, 1) for pair in zip(*sides, strict=True)]


def rows_of(lists) -> list[torch.Tensor]:
    return list(lists.indices.split(lists.indptr.diff().tolist()))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_each_triple_and_side_has_its_candidates(backend, batch_size, monkeypatch):
    known = KnownTriples(triples())
    lists = {side: random_lists(T, N, seed) for seed, side in enumerate(("head", "tail"))}
    expected = one_by_one({side: rows_of(own) for side, own in lists.items()}, known)
    if batch_size is not None:
        monkeypatch.setattr("kgfast.eval.candidates._PAIRS", 40)
    for form in (padded, lambda own: padded(own).int().numpy()):
        given = {side: form(own) for side, own in lists.items()}
        found = rank(model(), triples(), known=known, candidate_ids=given, batch_size=batch_size)
        for a, b in zip(columns_of(found), expected, strict=True):
            assert torch.equal(a, b)


def test_a_file_of_candidates_is_read_by_block(tmp_path):
    lists = random_lists(T, N, 4)
    path = tmp_path / "candidates.npy"
    np.save(path, padded(lists).numpy())
    mapped = np.load(path, mmap_mode="r")
    found = rank(model(), triples(), candidate_ids=mapped, batch_size=6)
    expected = rank(model(), triples(), candidate_ids=padded(lists))
    assert all(map(torch.equal, columns_of(found), columns_of(expected)))


def test_triples_without_candidates_are_counted_and_left_out_of_metrics():
    names = Vocabulary(f"e{it}" for it in range(N)), Vocabulary(list("rst"))
    hrt = triples()
    asked, known = Triples(hrt, entities=names[0], relations=names[1]), KnownTriples(hrt)
    rows = torch.arange(N)
    both = rows[: N // 2], rows[N // 2 :]
    given = {"r": both, "t": (rows, rows[:0])}  # s has no candidates, t no tails
    allowed = TypeConstraints(given, vocabulary=names)
    relation = hrt[:, 1]
    first = int((relation != 0).nonzero()[0])
    side = "head" if relation[first] == 1 else "tail"
    name = "rst"[relation[first]]
    count = int((relation != 0).sum())
    message = (
        rf"{count} of {T} triples .* first triples\[{first}\], of relation '{name}', on.*{side}"
    )
    with pytest.warns(UserWarning, match=message) as seen:
        ranks = rank(model(), asked, known=known, candidate_ids=allowed)
    assert seen[0].filename == __file__
    assert ranks.num_candidates[relation == 1].tolist() == [[0, 0]] * int((relation == 1).sum())
    for kind in ("optimistic", "realistic", "pessimistic"):
        assert not ranks.ranks(kind)[relation == 1].any()
        assert not ranks.raw.ranks(kind)[relation == 2][:, 1].any()
        assert (ranks.ranks(kind)[relation == 2][:, 0] >= 1).all()
    alone = rank(model(), asked[relation == 0], known=known, candidate_ids=allowed)
    assert ranks.metrics() == alone.metrics()
    worst = [of.raw.metrics("pessimistic") for of in (ranks, alone)]
    assert worst[0] == worst[1]
    assert (ranks.num_ranks, ranks.hits(5)) == (alone.num_ranks, alone.hits(5))
    assert ranks.intervals(samples=20) == alone.intervals(samples=20)
    heads = rank(model(), asked[relation != 1], known=known, sides=("head",), candidate_ids=allowed)
    assert ranks.side("head").metrics() == heads.metrics()
    groups = ranks.by("relation")
    assert math.isnan(groups["s"].mrr)
    assert groups["r"].metrics() == alone.metrics()
    assert groups.metrics()["s"]["count"] == groups.metrics()["t"]["count"] == 0
    assert groups.macro() == alone.by("relation").macro()
    assert f"realistic; {count} without candidates left out\n" in repr(ranks)
    found, expected = compare(ranks, ranks, samples=9), compare(alone, alone, samples=9)
    assert repr(found) == repr(expected)
    assert len(ranks.to_frame()) == 2 * T


def test_no_candidates_at_all_are_no_ranks():
    none = torch.full((T, 2), -1)
    for given in (none, none[:, :0], [], TypeConstraints({})):
        with pytest.warns(UserWarning, match="20 of 20 triples have no candidates"):
            ranks = rank(model(), triples(), known=KnownTriples(triples()), candidate_ids=given)
        assert not ranks.num_candidates.any()
        assert not ranks.raw.pessimistic.any()
        assert all(map(math.isnan, ranks.metrics().values()))
        with pytest.raises(ValueError, match="none has candidates on every side"):
            compare(ranks, ranks)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_constraints_restrict_each_relation(backend, batch_size):
    known = KnownTriples(triples())
    allowed = TypeConstraints.from_triples(triples()[:8])
    rows = {
        side: [allowed.candidates(relation, side) for relation in triples()[:, 1].tolist()]
        for side in ("head", "tail")
    }
    expected = one_by_one(rows, known)
    found = rank(model(), triples(), known=known, candidate_ids=allowed, batch_size=batch_size)
    for a, b in zip(columns_of(found), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_come_from_the_lists(backend, dtype):
    heads, relations = triples()[:, 0], triples()[:, 1]
    lists, known = random_lists(T, N, 5), KnownTriples(triples())
    allowed = TypeConstraints.from_triples(triples()[:8])
    of_relations = [allowed.candidates(relation, "tail") for relation in relations.tolist()]
    for given, rows in ((padded(lists), rows_of(lists)), (allowed, of_relations)):
        found = topk(
            model(dtype), heads=heads, relations=relations, k=4, known=known, pad=True,
            candidate_ids=given, batch_size=7,
        )  # fmt: skip
        for query, ids in enumerate(rows):
            alone = topk(
                model(dtype), heads=heads[query], relations=relations[query], k=4, known=known,
                pad=True, candidate_ids=ids,
            )  # fmt: skip
            assert torch.equal(found.ids[query], alone.ids[0])
            assert torch.equal(found.scores[query], alone.scores[0])
    nobody = topk(model(), heads=heads[:0], relations=relations[:0], k=2, candidate_ids=allowed)
    assert nobody.ids.shape == (0, 2)


def test_relations_are_ranked_among_all_and_answered_from_lists():
    ids = torch.tensor([[0, 2]]).repeat(T, 1)
    alone = rank(model(), triples(), sides=("relation",))
    for given in (ids, [0, 2]):
        ranks = rank(model(), triples(), sides=("head", "relation", "tail"), candidate_ids=given)
        assert torch.equal(ranks.side("relation").greater, alone.greater)
        assert (ranks.side("relation").num_candidates == R).all()
    found = topk(model(), heads=triples()[:, 0], tails=triples()[:, 2], k=2, candidate_ids=ids)
    assert found.ids.sort(1).values.tolist() == ids.tolist()
    allowed = TypeConstraints({})
    with pytest.raises(ValueError, match="type constraints are of entities"):
        topk(model(), heads=[0], tails=[1], k=1, candidate_ids=allowed)


def test_a_query_with_too_few_answers_is_named():
    allowed = TypeConstraints({0: ([0], [1]), 1: ([0], [1, 2])})
    with pytest.raises(ValueError, match=r"heads\[1\] = 4 with relation 0 has 1, k is 2"):
        topk(model(), heads=[3, 4], relations=[1, 0], k=2, candidate_ids=allowed)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.zeros(5, 2).long(), ValueError, "a row for each of 20 queries"),
        (torch.zeros(T, 2), TypeError, "must be integers, got dtype torch.float32"),
        (np.zeros((T, 2)), TypeError, "must be integers, got dtype float64"),
        ([[0, 1]] * T, ValueError, r"candidate_ids must have shape \[\*\]; got \[20, 2\]"),
        (
            dict.fromkeys(("head", "tail"), TypeConstraints({0: ([0], [1])})),
            TypeError,
            r"candidate_ids\['head'\]: type constraints have both sides; give them alone",
        ),
        ({"head": [0, 1]}, ValueError, "side 'tail' is ranked and has none"),
        ({"heads": [0]}, ValueError, "must be of 'head' and 'tail'; got 'heads'"),
        (
            {"head": [0], "tail": torch.zeros(5, 2).long()},
            ValueError,
            r"candidate_ids\['tail'\] must have a row for each of 20",
        ),
        (torch.full((T, 2), 3), ValueError, r"candidate_ids\[0, 1\] must not repeat .* got 3"),
        (torch.full((T, 1), 12), ValueError, r"candidate_ids\[0, 0\] must be in 0 .. 11"),
        (TypeConstraints({0: ([0], [99])}), ValueError, "of 100 entities, but the model has 12"),
        (TypeConstraints({7: ([0], [1])}), ValueError, "of 8 relations, but the model has 3"),
    ],
)
def test_candidates_that_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        rank(model(), triples(), candidate_ids=given)


def test_the_row_at_fault_is_counted_from_the_first_triple():
    ids = torch.arange(3).repeat(T, 1)
    ids[13, 2] = 0
    with pytest.raises(ValueError, match=r"candidate_ids\[13, 2\]"):
        rank(model(), triples(), candidate_ids=ids, batch_size=5)


def test_constraints_and_known_triples_of_another_vocabulary_are_refused():
    names = [Vocabulary(f"{letter}{i}" for i in range(N)) for letter in "ab"]
    relations = Vocabulary(f"r{i}" for i in range(R))
    allowed = TypeConstraints({}, vocabulary=(names[0], relations))
    with pytest.raises(ValueError, match="'b0' in the triples, but 'a0' in the type constraints"):
        rank(model(), triples(), candidate_ids=allowed, vocabulary=(names[1], relations))
    known = KnownTriples(triples(), vocabulary=(names[0], relations))
    with pytest.raises(ValueError, match="'b0' in the triples, but 'a0' in the known triples"):
        rank(model(), triples(), known=known, vocabulary=(names[1], relations))

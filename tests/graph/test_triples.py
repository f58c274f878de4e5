"""Vocabularies, triples, and known triples against an oracle of plain Python sets."""

import pickle
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kgfast.graph import KnownTriples, Triples, Vocabulary, as_triples_tensor, pair_index

Triple = tuple[int, int, int]


class KnownOracle:
    """Answers of KnownTriples, written to be obviously right."""

    def __init__(self, *parts):
        self.triples = {triple for part in parts for triple in part}

    def exclude(self, anchors, relations, side):
        found = defaultdict(set)
        for h, r, t in self.triples:
            found[(h, r) if side == "tail" else (t, r)].add(t if side == "tail" else h)
        return [sorted(found[key]) for key in zip(anchors, relations, strict=True)]

    def cardinality(self, relation):
        rows = [(h, t) for h, r, t in self.triples if r == relation]
        heads, tails = (len(set(column)) for column in zip(*rows, strict=True))
        left = "N" if len(rows) / tails >= 1.5 else "1"
        right = "N" if len(rows) / heads >= 1.5 else "1"
        return f"{left}-{right}"

    def frequency(self, entity):
        return sum((h == entity) + (t == entity) for h, _, t in self.triples)


def excluded(known, anchors, relations, side, **options):
    asked = (torch.tensor(it, dtype=torch.int64) for it in (anchors, relations))
    indptr, indices = known.exclude(*asked, side, **options)
    assert indptr.dtype == indices.dtype == torch.int64
    assert indptr[0] == 0
    assert indptr[-1] == len(indices)
    return [indices[start:end].tolist() for start, end in pairwise(indptr.tolist())]


# Few ids, so that duplicates and shared pairs are common; or huge ones, whose rows do not pack
# into 64 bits and take the other sort.
small_triples = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 6)))
huge_ids = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**40, 2**40 + 1])
huge_triples = st.lists(st.tuples(huge_ids, st.integers(0, 3), huge_ids))
any_triples = small_triples | huge_triples
small_or_huge_id = st.integers(0, 7) | huge_ids
sides = pytest.mark.parametrize("side", ["head", "tail"])


@sides
@given(
    parts=st.lists(any_triples, max_size=3),
    queries=any_triples,
    span=st.tuples(small_or_huge_id, small_or_huge_id),
)
@example(parts=[], queries=[], span=(0, 0))
@example(parts=[[]], queries=[(0, 0, 0), (5, 1, 5)], span=(0, 9))
def test_lookups_equal_the_oracle(side, parts, queries, span):
    """Compare all answers, those in a range, and their numbers; a repeated triple counts once."""
    known, oracle = KnownTriples(*parts), KnownOracle(*parts)
    queries = queries + [triple for part in parts for triple in part]
    anchors = [h if side == "tail" else t for h, _, t in queries]
    relations = [r for _, r, _ in queries]
    expected = oracle.exclude(anchors, relations, side)
    assert excluded(known, anchors, relations, side) == expected
    inside = [[id for id in ids if span[0] <= id < span[1]] for ids in expected]
    assert excluded(known, anchors, relations, side, within=span) == inside
    asked = (torch.tensor(it, dtype=torch.int64) for it in (anchors, relations))
    assert known.counts(*asked, side).tolist() == [len(answers) for answers in expected]
    assert known.contains(queries).tolist() == [query in oracle.triples for query in queries]
    assert len(known) == known.num_triples == len(oracle.triples)
    assert repr(KnownTriples(*parts, *(part[::-1] for part in parts))) == repr(known)


@given(triples=small_triples, chunk=st.integers(1, 4))
@example(triples=[], chunk=1)
@example(triples=[(0, 0, 1), (0, 0, 2), (3, 0, 4)], chunk=4)  # 1.5 tails per (h, r) are N
def test_cardinalities_and_frequencies_equal_the_oracle(triples, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_index, "CHUNK", chunk)
        known, oracle = KnownTriples(triples), KnownOracle(triples)
        cardinalities, per_entity = known.relation_cardinalities(), known.entity_frequency()
        per_relation = known.relation_frequency().tolist()
    relations = [r for _, r, _ in oracle.triples]
    assert cardinalities == {r: oracle.cardinality(r) for r in set(relations)}
    size = max((max(h, t) + 1 for h, _, t in triples), default=0)
    assert per_entity.tolist() == [oracle.frequency(e) for e in range(size)]
    assert per_relation == [relations.count(r) for r in range(max(relations, default=-1) + 1)]


@sides
def test_unseen_ids_do_not_alias_other_pairs(side):
    known = KnownTriples([(1, 0, 1), (1, 1, 1)])
    # Packed carelessly, (0, 2) and (2, -2) are both the pair (1, 0).
    assert excluded(known, [0, 2, -1], [2, -2, 4], side) == [[], [], []]
    known = KnownTriples([(0, 0, 0), (0, 3, 0)])
    # ... and 2**62 * 4 wraps around to 0.
    assert excluded(known, [2**62], [0], side) == [[]]


def test_known_triples_refuse_bad_queries():
    known = KnownTriples([(0, 0, 1)])
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="side must be 'head', 'relation' or 'tail', got 'tails'"):
        known.exclude(one, one, "tails")
    with pytest.raises(TypeError, match=r"anchors must be integers, got dtype torch\.float32"):
        known.exclude(one.float(), one, "tail")
    with pytest.raises(ValueError, match=r"one shape \[B\], got \[1\] and \[2\]"):
        known.counts(one, torch.tensor([0, 0]), "tail")
    with pytest.raises(ValueError, match="ids are too large to index"):
        KnownTriples([(0, 2**32, 2**32)])


@pytest.mark.parametrize(
    ("triples", "error", "message"),
    [
        ([(0, 0, 1), (0, -1, 1)], ValueError, r"triples\[1\] = \(0, -1, 1\): relation -1 must be"),
        ([(0, 0, 9), (0, 0, 3)], ValueError, r"triples\[0\] .* tail 9 must be in 0\.\.2"),
        ([(0, 5, 2)], ValueError, r"triples\[0\] .* relation 5 must be in 0\.\.4"),
        ([(3, 0, 0)], ValueError, r"head 3 must be in 0\.\.2"),
        ([(0, 0)], ValueError, r"shape \[T, 3\] \(h, r, t\), got \[1, 2\]"),
        ([(0, 0, 1), (0, 0)], ValueError, "rows of unequal length"),
        ([(0.0, 0.0, 1.0)], TypeError, "got dtype float64"),
        (torch.zeros(1, 3).bool(), TypeError, r"got dtype torch\.bool"),
        ([("a", "b", "c")], TypeError, "must be integers"),
        (np.array([[0, 0, 2**63]], np.uint64), ValueError, "beyond"),
    ],
)
def test_triples_refuse_bad_rows(triples, error, message):
    with pytest.raises(error, match=message):
        Triples(triples, num_entities=3, num_relations=5)


@pytest.mark.filterwarnings("error")  # torch only warns when it shares a read-only array
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_triples_accept_every_integer_dtype(dtype):
    array = np.array([[0, 1, 2], [2, 0, 1]], dtype)
    array.flags.writeable = False
    assert Triples(array).hrt.dtype == torch.int64
    assert Triples(array).hrt.tolist() == array.tolist()


def test_triples_columns_and_sizes():
    hrt = torch.tensor([(0, 3, 5), (7, 1, 2)])
    triples = Triples(hrt)
    assert triples.hrt is as_triples_tensor(triples) is hrt
    assert (triples.num_entities, triples.num_relations, len(triples)) == (8, 4, 2)
    assert triples.head_ids.tolist() == [0, 7]
    assert triples.relation_ids.tolist() == [3, 1]
    assert triples.tail_ids.tolist() == [5, 2]
    assert list(triples) == [(0, 3, 5), (7, 1, 2)]
    assert triples[-1] == (7, 1, 2)
    assert Triples([]).hrt.shape == (0, 3)
    assert repr(Triples(triples, num_entities=40_943)) == (
        "Triples(2 triples, 40,943 entities, 4 relations)"
    )


@pytest.mark.parametrize(
    "index", [slice(1, None), [1], torch.tensor([1]), torch.tensor([False, True])]
)
def test_parts_of_triples_keep_sizes_and_names(index):
    names = Vocabulary("abc"[i] for i in range(3))
    triples = Triples([(0, 0, 1), (1, 1, 0)], entities=names, num_relations=9)
    part = triples[index]
    assert list(part) == [(1, 1, 0)]
    assert (part.num_entities, part.num_relations, part.entities) == (3, 9, names)


def test_triples_from_names():
    entities, relations = Vocabulary(["cat", "mouse"]), Vocabulary(["eats", "fears"])
    triples = Triples.from_names([("mouse", "fears", "cat")], entities, relations)
    assert list(triples) == [(1, 1, 0)]
    assert (triples.entities, triples.relations) == (entities, relations)
    assert len(Triples.from_names([], entities, relations)) == 0
    with pytest.raises(ValueError, match=r"triples\[0\] = \('cat', 'eats'\)"):
        Triples.from_names([("cat", "eats")], entities, relations)
    with pytest.raises(ValueError, match=r"unknown name 'mose'.*did you mean 'mouse'"):
        Triples.from_names([("cat", "eats", "mose")], entities, relations)


def test_sizes_must_agree_with_vocabularies():
    with pytest.raises(ValueError, match="num_entities=3, but the vocabulary has 2 entities"):
        Triples([], num_entities=3, entities=Vocabulary(["a", "b"]))
    with pytest.raises(ValueError, match="num_relations must be >= 0"):
        Triples([], num_relations=-1)


@given(names=st.lists(st.text(), unique=True))
def test_vocabulary_maps_both_ways(names):
    vocabulary = Vocabulary(names)
    assert list(vocabulary) == list(vocabulary.names) == names
    assert [vocabulary[name] for name in names] == list(range(len(names)))
    assert vocabulary.names_of(vocabulary.ids(names)) == names
    assert vocabulary.ids(names).dtype == torch.int64
    assert vocabulary == Vocabulary(names)
    assert hash(vocabulary) == hash(Vocabulary(names))
    assert vocabulary != Vocabulary([*names, "".join(names) + "x"])
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary


def test_vocabulary_errors():
    with pytest.raises(ValueError, match=r"names\[2\] = 'a' is a duplicate"):
        Vocabulary(["a", "b", "a", "b"])
    with pytest.raises(TypeError, match="must be strings"):
        Vocabulary(["a", 1])
    with pytest.raises(TypeError, match="got one string"):
        Vocabulary("ab")
    vocabulary = Vocabulary(["hypernym", "hyponym"])
    with pytest.raises(ValueError, match=r"unknown name 'hypernim'.*did you mean 'hypernym'"):
        vocabulary["hypernim"]
    with pytest.raises(ValueError, match=r"id 2 is outside 0\.\.1"):
        vocabulary.name(2)
    with pytest.raises(ValueError, match="id -1 is outside"):
        vocabulary.names_of([-1])
    assert "hyponym" in vocabulary
    assert "meronym" not in vocabulary
    assert repr(Vocabulary([])) == "Vocabulary(0 names)"
    assert repr(Vocabulary(map(str, range(1000)))) == "Vocabulary(1,000 names: '0', '1', '2', ...)"

"""Type constraints: made and refused."""

import pytest

from kgfast import Triples, TypeConstraints, Vocabulary

PEOPLE = Vocabulary(["a", "b"]), Vocabulary(["r"])
HRT = [(0, 0, 2), (1, 0, 2), (0, 0, 2), (3, 2, 0)]


def listed(allowed):
    return [
        tuple(allowed.candidates(relation, side).tolist() for side in ("head", "tail"))
        for relation in range(allowed.num_relations)
    ]


def test_from_triples_keeps_what_each_relation_has():
    allowed = TypeConstraints.from_triples(HRT[:2], HRT[2:])
    assert listed(allowed) == [([0, 1], [2]), ([], []), ([3], [0])]
    assert (allowed.num_relations, allowed.num_entities) == (3, 4)
    assert len(allowed.candidates(9, "tail")) == 0
    assert TypeConstraints.from_triples([]).num_relations == 0
    with pytest.raises(ValueError, match="side must be"):
        allowed.candidates(0, "relation")


def test_labels_are_kept():
    names = Vocabulary(list("abcd")), Vocabulary(["r", "s", "t", "u"])
    train = Triples(HRT, entities=names[0], relations=names[1])
    allowed = TypeConstraints.from_triples(train)
    assert allowed.names == names
    assert allowed.num_relations == 4
    mapping = {"r": (["b", "a"], ["c"]), "t": {"head": {"d"}, "tail": [0]}}
    mapped = TypeConstraints(mapping, vocabulary=names)
    assert mapped == allowed
    assert mapped != TypeConstraints.from_triples(HRT)
    assert mapped != 3


@pytest.mark.parametrize(
    ("mapping", "vocabulary", "error", "message"),
    [
        ({"r": ([0], [1])}, None, TypeError, "names need vocabulary="),
        ({"s": ([0], [1])}, PEOPLE, ValueError, "'s'"),
        ({0: ([2], [1])}, PEOPLE, ValueError, r"heads of relation 0 must be in 0\.\.1; got 2"),
        ({1: ([0], [1])}, PEOPLE, ValueError, r"relation must be in 0\.\.0; got 1"),
        ({0: ([0], [1, 1])}, None, ValueError, "tails of relation 0 must not repeat an id; got 1"),
        ({0: [0]}, None, TypeError, "relation 0 must map to a pair"),
        ({0: ([0], []), "r": ([0], [])}, PEOPLE, ValueError, "'r' is given twice"),
        ({0: ([0.5], [])}, None, TypeError, "must be integers"),
    ],
)
def test_mappings_that_are_refused(mapping, vocabulary, error, message):
    with pytest.raises(error, match=message):
        TypeConstraints(mapping, vocabulary=vocabulary)


def test_types_of_entities():
    names = Vocabulary(list("abcde")), Vocabulary(["r", "s"])
    train = Triples([(0, 0, 2), (3, 1, 4)], entities=names[0], relations=names[1])
    types = [("a", "person"), ("b", "person"), ("b", "city"), ("c", "city"), ("other", "city")]
    allowed = TypeConstraints.from_types(train, types)
    # d and e have no type: they are allowed where the triples have them.
    assert listed(allowed) == [([0, 1], [1, 2]), ([3], [4])]
    assert allowed.names == names
    by_id = [(0, 1), (1, 1), (1, 2), (2, 2)]
    assert listed(TypeConstraints.from_types(train.hrt, by_id)) == listed(allowed)
    assert TypeConstraints.from_types(train, []) == TypeConstraints.from_triples(train)
    with pytest.raises(ValueError, match=r"no pair has an entity.*'Q5'"):
        TypeConstraints.from_types(train, [("Q5", "person")])
    with pytest.raises(TypeError, match="names of entities need vocabulary="):
        TypeConstraints.from_types([(0, 0, 1)], [("a", "person")])

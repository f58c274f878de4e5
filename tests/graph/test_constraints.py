"""Type constraints: made, read, written and refused."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from kgfast import Triples, TypeConstraints, Vocabulary

PEOPLE = Vocabulary(["a", "b"]), Vocabulary(["r"])
HRT = [(0, 0, 2), (1, 0, 2), (0, 0, 2), (3, 2, 0)]


def listed(allowed):
    return [
        (allowed.candidates(it, "head").tolist(), allowed.candidates(it, "tail").tolist())
        for it in range(allowed.num_relations)
    ]


def test_from_triples_keeps_what_each_relation_has():
    allowed = TypeConstraints.from_triples(HRT[:2], HRT[2:])
    assert listed(allowed) == [([0, 1], [2]), ([], []), ([3], [0])]
    assert (allowed.num_relations, allowed.num_entities) == (3, 4)
    assert len(allowed.candidates(9, "tail")) == 0
    assert TypeConstraints.from_triples([]).num_relations == 0


def test_labels_are_kept():
    names = Vocabulary(list("abcd")), Vocabulary(["r", "s", "t", "u"])
    train = Triples(HRT, entities=names[0], relations=names[1])
    allowed = TypeConstraints.from_triples(train)
    assert allowed.names == names
    assert allowed.num_relations == 4
    mapped = TypeConstraints.from_mapping(
        {"r": (["b", "a"], ["c"]), "t": {"head": {"d"}, "tail": [0]}}, vocabulary=names
    )
    assert mapped == allowed
    assert mapped != TypeConstraints.from_triples(HRT)
    assert mapped != 3


def test_openke(tmp_path):
    path = tmp_path / "type_constrain.txt"
    path.write_text("2\n1\t1\t3\n1\t2\t0\t4\n0\t2\t7\t5\n0\t0\n")
    for source in (path, tmp_path):
        assert listed(TypeConstraints.from_openke(source)) == [([5, 7], []), ([3], [0, 4])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: expected the number of relations, .* found 0 lines"),
        ("2\n0 1 3\n0 0\n", ":1: expected the number of relations, and two lines"),
        ("1\n0 2 3\n0 0\n", r":2: .* got \[0, 2, 3\]"),
        ("1\n0 1 x\n0 0\n", ":2: 'x' is not an id"),
        ("1\n0\n0 0\n", r":2: .* got \[0\]"),
        ("2\n0 0\n0 0\n0 0\n1 0\n", ":4: relation 0 must .* have two lines"),
        ("2\n0 0\n0 0\n1 0\n2 0\n", ":5: relation 2 must be below 2"),
        ("1\n0 2 3 3\n0 0\n", "heads of relation 0 must not repeat an id; got 3"),
        (b"1\n0 1 \xff\n0 0\n", ":2: '\ufffd' is not an id"),
        (b"\xff\xfe1\n", ":1: .* is not an id"),
        ("1\n9999999999 0\n9999999999 0\n", "relation 9999999999 must be below 1, the number"),
    ],
)
def test_openke_files_that_are_refused(tmp_path, text, message):
    path = tmp_path / "type_constrain.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"type_constrain\.txt.*{message}"):
        TypeConstraints.from_openke(path)
    with pytest.raises(FileNotFoundError):
        TypeConstraints.from_openke(tmp_path / "other.txt")


def test_openke_files_of_fewer_relations_than_the_graph_are_refused(tmp_path):
    path = tmp_path / "type_constrain.txt"
    path.write_text("1\n0 1 1\n0 1 0\n")
    names = Vocabulary(["a", "b"]), Vocabulary(["r", "s", "t", "u"])
    with pytest.raises(ValueError, match=r"constrain.txt:1: types of 1 relations; the graph has 4"):
        TypeConstraints.from_openke(path, vocabulary=names)
    assert TypeConstraints.from_openke(path).num_relations == 1


@pytest.mark.parametrize("named", [False, True])
def test_save_and_load(tmp_path, named):
    names = (Vocabulary(["a b", "ü\n", "", "d"]), Vocabulary(["r", "s", "t"])) if named else None
    allowed = TypeConstraints.from_mapping({0: ([3, 1], []), 2: ([0], [1, 2])}, vocabulary=names)
    path = tmp_path / "types.safetensors"
    allowed.save(path)
    assert TypeConstraints.load(path) == allowed
    assert [it.name for it in tmp_path.iterdir()] == [path.name]


def test_files_that_are_no_constraints(tmp_path):
    path = tmp_path / "other.safetensors"
    with pytest.raises(FileNotFoundError, match="no such folder"):
        TypeConstraints.from_mapping({}).save(tmp_path / "none" / "types.safetensors")
    with pytest.raises(FileNotFoundError, match="no such file of type constraints"):
        TypeConstraints.load(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="no file of TypeConstraints"):
        TypeConstraints.load(path)
    for header in (None, {"format": "kgfast type constraints 2"}):
        save_file({"x": torch.zeros(1)}, path, header)
        with pytest.raises(ValueError, match=r"not a file of TypeConstraints\.save, or of another"):
            TypeConstraints.load(path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("head_ids", torch.tensor([1.5])),
        ("head_indptr", torch.tensor([[0, 1]])),
        ("entities", torch.tensor([0xFF, 0xFE, 10], dtype=torch.uint8)),
        ("entities", torch.tensor([1.5, 3.0])),
    ],
)
def test_saved_constraints_that_are_damaged_are_named(tmp_path, name, values):
    path = tmp_path / "types.safetensors"
    TypeConstraints.from_mapping({0: ([1], [0])}, vocabulary=PEOPLE).save(path)
    save_file(load_file(path) | {name: values}, path, {"format": "kgfast type constraints 1"})
    with pytest.raises(ValueError, match=r"types\.safetensors: no file of TypeConstraints\.save: "):
        TypeConstraints.load(path)


@pytest.mark.parametrize(
    ("mapping", "vocabulary", "error", "message"),
    [
        ({"r": ([0], [1])}, None, TypeError, "names need vocabulary="),
        ({"s": ([0], [1])}, PEOPLE, ValueError, "'s'"),
        ({0: (["c"], [1])}, PEOPLE, ValueError, "'c'"),
        ({0: ([2], [1])}, PEOPLE, ValueError, r"heads of relation 0 must be in 0\.\.1; got 2"),
        ({0: ([-1], [1])}, None, ValueError, "heads of relation 0 must be in 0..; got -1"),
        ({1: ([0], [1])}, PEOPLE, ValueError, r"relation 1 must be in 0\.\.0"),
        ({0: ([0], [1, 1])}, None, ValueError, "tails of relation 0 must not repeat an id; got 1"),
        ({0: [0]}, None, TypeError, "relation 0 must map to a pair"),
        ({0: {"head": [0]}}, None, ValueError, "must map to 'head' and 'tail'"),
        ({0: ([0], []), "r": ([0], [])}, PEOPLE, ValueError, "'r' is given twice"),
        ({0: ([0.5], [])}, None, TypeError, "must be integers"),
    ],
)
def test_mappings_that_are_refused(mapping, vocabulary, error, message):
    with pytest.raises(error, match=message):
        TypeConstraints.from_mapping(mapping, vocabulary=vocabulary)


def test_lists_that_are_refused():
    good = torch.tensor([0, 1]), torch.tensor([3])
    for bad, message in (
        ((torch.tensor([0, 2]), torch.tensor([3])), "must rise from 0"),
        ((torch.tensor([[0, 1]]), torch.tensor([3])), r"indptr \[R \+ 1\]"),
        ((torch.tensor([0, 1, 1]), torch.tensor([3])), "heads are of 2 relations, tails of 1"),
    ):
        with pytest.raises(ValueError, match=message):
            TypeConstraints(bad, good)
    with pytest.raises(ValueError, match="the vocabulary names 2"):
        TypeConstraints(good, good, vocabulary=(None, Vocabulary(["r", "s"])))
    with pytest.raises(ValueError, match="side must be"):
        TypeConstraints(good, good).lists("relation")


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
    nothing = TypeConstraints.from_types(train, [])
    assert nothing == TypeConstraints.from_triples(train)


def test_types_of_no_entity_of_the_graph():
    names = Vocabulary(["a", "b"]), Vocabulary(["r"])
    train = Triples([(0, 0, 1)], entities=names[0], relations=names[1])
    with pytest.raises(ValueError, match=r"no pair has an entity.*'Q5'"):
        TypeConstraints.from_types(train, [("Q5", "person")])
    with pytest.raises(TypeError, match="'a' is a name, which needs vocabulary="):
        TypeConstraints.from_types([(0, 0, 1)], [("a", "person")])

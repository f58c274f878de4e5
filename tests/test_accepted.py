"""Forms of arguments: each is taken as it is, and never with another meaning."""

import numpy as np
import pytest
import torch

import kgfast
from kgfast import ComplEx, DistMult, KnownTriples, RotatE, TransE, Triples, Vocabulary, ops
from kgfast.datasets import synthetic
from support.mistakes import each_of

N, R, DIM = 5, 2, 3
PEOPLE = Vocabulary(["Ann Smith", "Bob", "Cy", "Dee", "Eve"])
VERBS = Vocabulary(["knows", "likes"])
NAMES = PEOPLE, VERBS
ROWS = [("Bob", "likes", "Ann Smith"), ("Eve", "knows", "Cy")]
IDS = torch.tensor([[1, 1, 0], [4, 0, 2]])


def model():
    return TransE.init(N, R, DIM, seed=0)


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


class Factory:
    """A triples factory, as PyKEEN has it."""

    def __init__(self, triples, entities=PEOPLE, relations=VERBS):
        self.mapped_triples = torch.as_tensor(triples)
        if entities is not None:
            self.entity_to_id = {name: place for place, name in enumerate(entities)}
            self.relation_to_id = {name: place for place, name in enumerate(relations)}


# -- rank(model, dataset) ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph():
    return synthetic(60, 3, 200, 20, 20)


def test_a_dataset_is_its_test_split_filtered(graph):
    fresh = TransE.init(60, 3, 4, seed=0)
    got = kgfast.rank(fresh, graph)
    want = kgfast.rank(fresh, graph.test, known=graph.known())
    raw = kgfast.rank(fresh, graph.test)
    assert torch.equal(got.realistic, want.realistic)
    assert not torch.equal(got.realistic, raw.realistic)
    assert set(got.by("relation")) == set(want.by("relation"))
    unfiltered = kgfast.rank(fresh, graph, known=None)
    assert torch.equal(unfiltered.realistic, raw.realistic)
    some = KnownTriples(graph.train)
    filtered = kgfast.rank(fresh, graph, known=some)
    assert torch.equal(filtered.realistic, kgfast.rank(fresh, graph.test, known=some).realistic)


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, np.array(ROWS), [list(row) for row in ROWS]])
@pytest.mark.parametrize("vocabulary", [NAMES, Triples(IDS, entities=PEOPLE, relations=VERBS)])
def test_triples_by_name(rows, vocabulary):
    got = kgfast.rank(model(), rows, vocabulary=vocabulary)
    assert torch.equal(got.greater, kgfast.rank(model(), IDS).greater)
    assert set(got.by("relation")) == {"knows", "likes"}
    known = KnownTriples(rows, vocabulary=vocabulary)
    assert known.contains(IDS).all()
    assert len(known) == 2


@pytest.mark.parametrize("by", ["heads", "tails"])
def test_queries_by_name(by):
    named = {by: ["Ann Smith", "Eve"], "relations": "likes"}
    ids = {by: [0, 4], "relations": 1}
    got = kgfast.topk(model(), **named, k=2, vocabulary=NAMES)
    assert torch.equal(got.ids, kgfast.topk(model(), **ids, k=2).ids)
    assert "Ann Smith" in repr(got)
    one = kgfast.topk(
        model(), **{by: "Eve", "relations": ["likes", "knows"]}, k=1, vocabulary=NAMES
    )
    assert one.ids.shape == (2, 1)


BROADCAST = {
    "one relation": {"heads": [1, 4, 0], "relations": [1]},
    "a tensor": {"tails": [1, 4, 0], "relations": torch.tensor([1])},
    "one head": {"heads": [3], "relations": [1, 0, 1]},
    "one tail": {"heads": [1, 4, 0], "tails": np.array([2])},
    "a name": {"heads": ["Bob", "Eve", "Ann Smith"], "relations": ["likes"]},
    "one of each": {"heads": [1], "relations": torch.tensor(1)},
}


@pytest.mark.parametrize("name", BROADCAST)
def test_one_id_in_a_list_goes_with_all_of_the_other(name):
    asked, options = BROADCAST[name], {"k": 2, "vocabulary": NAMES}
    got = kgfast.topk(model(), **asked, **options)
    arrays = {key: np.asarray(ids) for key, ids in asked.items()}
    count = max(ids.size for ids in arrays.values())
    whole = {key: np.broadcast_to(ids, count).tolist() for key, ids in arrays.items()}
    want = kgfast.topk(model(), **whole, **options)
    assert got.ids.shape == (count, 2)
    assert torch.equal(got.ids, want.ids)
    assert torch.equal(got.scores, want.scores)
    assert kgfast.topk(model(), heads=[], relations=[1], k=2).ids.shape == (0, 2)


WITHOUT = {
    "triples": lambda: kgfast.rank(model(), ROWS),
    "known": lambda: KnownTriples(np.array(ROWS)),
    "a head": lambda: kgfast.topk(model(), heads="Bob", relations=0, k=1),
    "relations": lambda: kgfast.topk(model(), heads=0, relations=["likes"], k=1),
    "relations of none": lambda: kgfast.topk(
        model(), heads="Bob", relations="likes", k=1, vocabulary=(PEOPLE, None)
    ),
    "candidates": lambda: kgfast.rank(model(), IDS, candidate_ids=["Bob"]),
    "a loss": lambda: kgfast.losses.nssa(model(), ROWS, torch.tensor([0])),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_names_without_a_vocabulary_are_refused(name):
    with pytest.raises(TypeError, match="must be integers, got names: names need vocabulary="):
        WITHOUT[name]()


def test_unknown_names_and_other_vocabularies_are_named():
    with pytest.raises(ValueError, match=r"unknown name 'Bobb' .* did you mean 'Bob'"):
        kgfast.topk(model(), heads=["Bobb"], relations=0, k=1, vocabulary=NAMES)
    with pytest.raises(ValueError, match=r"vocabulary: 2 names of entities, but the model has 5"):
        kgfast.rank(model(), IDS, vocabulary=(Vocabulary(["a", "b"]), VERBS))
    with pytest.raises(TypeError, match="vocabulary must be a pair"):
        kgfast.rank(model(), IDS, vocabulary=PEOPLE)


def test_labels_that_differ_from_the_vocabulary_are_an_error():
    other = Vocabulary(["Ann Smith", "Cy", "Bob", "Dee", "Eve"])
    triples = Triples(IDS, entities=other, relations=VERBS)
    for value in (triples, Factory(IDS, other)):
        with pytest.raises(ValueError, match=r"entity 1 is 'Cy' in the triples, but 'Bob' in voc"):
            kgfast.rank(model(), value, vocabulary=NAMES)
        with pytest.raises(ValueError, match="entity 1 is 'Cy'"):
            KnownTriples(value, vocabulary=NAMES)
        with pytest.raises(ValueError, match=r"entity 1 is 'Cy' .* 'Bob' in the parts before"):
            KnownTriples(Triples(IDS, entities=PEOPLE, relations=VERBS), value)
    fewer = Factory([[0, 0, 1]], Vocabulary(["Ann Smith", "Bob"]))
    with pytest.raises(ValueError, match=r"have names for 2 ids .*, vocabulary for 5"):
        kgfast.rank(model(), fewer, vocabulary=NAMES)


# -- objects of other libraries, sets ----------------------------------------------------------


def test_objects_with_mapped_triples():
    want = kgfast.rank(model(), IDS)
    for factory in (Factory(IDS), Factory(IDS, None)):
        assert torch.equal(kgfast.rank(model(), factory).greater, want.greater)
        assert KnownTriples(factory).contains(IDS).all()
        loss = kgfast.losses.nssa(model(), factory, torch.tensor([0]))
        assert torch.equal(loss, kgfast.losses.nssa(model(), IDS, torch.tensor([0])))
    assert set(kgfast.rank(model(), Factory(IDS), vocabulary=NAMES).by("relation")) == {*VERBS}
    assert set(kgfast.rank(model(), Factory(IDS)).by("relation")) == {*VERBS}


SETS = {
    "tensors": lambda a, b: KnownTriples(a, b),
    "lists of tuples": lambda a, b: KnownTriples([tuple(it) for it in a.tolist()], b.tolist(), []),
    "triples and arrays": lambda a, b: KnownTriples(Triples(a), b.numpy()),
    "factories": lambda a, b: KnownTriples(Factory(a), Factory(b)),
    "rows that are tensors": lambda a, b: KnownTriples([*a, *b]),
    "a set": lambda a, b: KnownTriples({tuple(it) for it in [*a.tolist(), *b.tolist()]}),
}


@pytest.mark.parametrize("name", SETS)
def test_sets_of_triples(name):
    first, second = torch.tensor([[0, 0, 1], [1, 0, 2], [2, 1, 2]]), torch.tensor([[3, 1, 1]] * 2)
    known = SETS[name](first, second)
    assert len(known) == 4
    assert known.contains(torch.cat([first, second])).all()


# -- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_numpy_tables_are_read_in_place(dtype):
    entity, relation = (random(rows, DIM).numpy().astype(dtype) for rows in (N, R))
    for make in (TransE, DistMult):
        got = make(entity, relation)
        assert got.entity.data_ptr() == entity.ctypes.data
        want = make(torch.from_numpy(entity.copy()), torch.from_numpy(relation.copy()))
        assert torch.equal(kgfast.rank(got, IDS).greater, kgfast.rank(want, IDS).greater)
        assert not got.entity.requires_grad


BAD_TABLES = {
    TypeError: {
        r"got torch.complex64: pass torch.view_as_real\(table\).flatten\(1\)": lambda: TransE(
            torch.zeros(2, 2, dtype=torch.complex64), random(R, 2)
        ),
        "a tensor or an array; got list": lambda: TransE([[1.0]], random(R, 1)),
        "entity must be floating point; got torch.int64": lambda: TransE(
            np.zeros((2, 2), int), random(R, 2)
        ),
        "entity: torch cannot read this array": lambda: TransE(
            np.zeros((2, 2), ">f4"), random(R, 2)
        ),
    },
    ValueError: {"two axes": lambda: TransE(np.zeros(3, "f4"), random(R, 3))},
}


@each_of(BAD_TABLES)
def test_tables_that_cannot_be_served_are_named(error, message, call):
    with pytest.raises(error, match=message):
        call()


# -- numbers that a bit of the tensor negates ----------------------------------------------------


def lazily(values):
    """Return the numbers as torch hands them out of complex ones: negated in memory."""
    found = torch.complex(torch.zeros_like(values), -values).conj().imag
    assert found.is_neg()
    return found


HELD = {
    "transe": lambda e, r: TransE(e, r),
    "distmult": lambda e, r: DistMult(e, r),
    "complex": lambda e, r: ComplEx(e, r),
    "rotate": lambda e, r: RotatE(e, r[:, : e.shape[1] // 2]),
}


@pytest.mark.parametrize("name", HELD)
def test_models_of_lazily_negated_tables_are_those_of_their_numbers(name):
    entity, relation = random(40, 8), random(3, 8)
    expected, found = (
        HELD[name](*it) for it in ((entity, relation), map(lazily, (entity, relation)))
    )
    hrt = torch.stack([torch.arange(40), torch.arange(40) % 3, torch.arange(40).flip(0)], 1)
    negatives = torch.arange(120).view(40, 3) % 40
    for call in (
        lambda it: kgfast.rank(it, hrt, known=KnownTriples(hrt[:20])).greater,
        lambda it: kgfast.topk(it, heads=hrt[:, 0], relations=hrt[:, 1], k=5).scores,
        lambda it: kgfast.top_facts(it, heads=[0, 1, 2], k=9).scores,
        lambda it: kgfast.rank(it, hrt, index=kgfast.Index(it)).greater,
        lambda it: kgfast.losses.bce(it, hrt),
        lambda it: kgfast.losses.nssa(it, hrt, negatives),
    ):
        assert torch.equal(call(found), call(expected))


@pytest.mark.parametrize("loss", ["cross_entropy", "scores"])
def test_gradients_that_come_lazily_negated_count_as_their_numbers(loss):
    queries, table, weights = random(6, 8), random(9, 8), random(6)

    def gradients(is_lazy):
        leaves = [it.clone().requires_grad_() for it in (queries, table)]
        if loss == "cross_entropy":
            rows = ops.cross_entropy(*leaves, None, torch.arange(6), 0.1, "dot")
        else:
            rows = ops.indexed_scores(*leaves, torch.arange(6)[:, None], score="dot").flatten()
        if is_lazy:
            rows.register_hook(lambda gradient: torch._neg_view(-gradient))
        (rows * weights).sum().backward()
        return [it.grad for it in leaves]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(found, expected)

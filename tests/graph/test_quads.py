"""Quads (h, r, t, time): ranks, answers, filters and groups against loops over complex numbers."""

import itertools

import pytest
import torch

import kgfast
from kgfast import KnownTriples, Triples, Vocabulary
from kgfast.distributed import count_range, merge
from kgfast.graph import TimedRelations
from kgfast.graph.named import named_columns
from kgfast.losses.regularizers import n3

N, R, T, DIM = 23, 3, 5, 4
SIZES = (N, R, N, T)


def complex_rows(table, layout="halves"):
    rows = table.double()
    if layout == "interleaved":
        return torch.complex(rows[:, 0::2], rows[:, 1::2])
    return torch.complex(*rows.chunk(2, 1))


def test_labels_of_pairs_are_those_of_relations():
    pairs = TimedRelations(Vocabulary(["r"]).labelled({"r": "likes"}), Vocabulary(["1", "2"]))
    assert pairs.text(1) == "r @ 2 (likes)"
    assert named_columns({"relation": [1]}, (None, pairs))[1] == {"relation_label": ["likes"]}


def model_of(layout="halves", seed=0, **options):
    return kgfast.TNTComplEx.init(N, R, DIM, num_times=T, seed=seed, layout=layout, **options)


def scores_of(model):
    """Return the scores of all quads, [N, R, N, T], by the paper's equation."""
    tables = (model.entity, model.relation, model.static_relation, model.time)
    entity, relation, static, time = (complex_rows(table, model.layout) for table in tables)
    factors = relation[:, None] * time[None] + static[:, None]  # [R, T, D]
    return torch.einsum("hd,rld,td->hrtl", entity, factors, entity.conj()).real


def quads_of(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(size, (count,), generator=generator) for size in SIZES]
    return torch.stack(columns, 1)


def expected_rank(scores, quad, side, known):
    """Return the realistic rank of a quad among the entities that no known quad names."""
    head, relation, tail, time = quad
    row = scores[head, relation, :, time] if side == "tail" else scores[:, relation, tail, time]
    target = tail if side == "tail" else head

    def is_known(entity):
        ends = (head, relation, entity) if side == "tail" else (entity, relation, tail)
        return (*ends, time) in known

    others = [row[e] for e in range(N) if e != target and not is_known(e)]
    greater, equal = (sum(map(test, others)) for test in (row[target].lt, row[target].eq))
    return 1 + int(greater) + int(equal) / 2


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("times", ["same", "any", None])
def test_ranks_are_those_of_a_loop(layout, times):
    model, quads = model_of(layout).double(), quads_of(60)
    every = quads_of(400, seed=1)
    known = None if times is None else KnownTriples(every, quads, num_times=T, times=times)
    listed = {tuple(quad) for quad in torch.cat([every, quads]).tolist()} if known else set()
    if times == "any":
        listed = {(*quad[:3], time) for quad in listed for time in range(T)}
    ranks, scores = kgfast.rank(model, quads, known=known), scores_of(model)
    assert torch.equal(ranks.triples, quads)
    for row, quad in enumerate(quads.tolist()):
        expected = [expected_rank(scores, quad, side, listed) for side in ("head", "tail")]
        assert ranks.realistic[row].tolist() == expected
    for name, column, size in (("relation", 1, R), ("time", 3, T)):
        groups = ranks.by(name)
        assert list(groups) == [id for id in range(size) if (quads[:, column] == id).any()]
        for id, group in groups.items():
            assert torch.equal(group.greater, ranks.greater[quads[:, column] == id])


def test_the_static_and_the_timed_filter_differ():
    model, quads = model_of(), torch.tensor([[0, 0, 1, 0]])
    others = torch.tensor([[0, 0, tail, 1] for tail in range(2, N)])
    known = {
        times: KnownTriples(quads, others, num_times=T, times=times) for times in ("same", "any")
    }
    sizes = {
        times: kgfast.rank(model, quads, known=index, sides=("tail",)).num_candidates.item()
        for times, index in known.items()
    }
    assert sizes == {"same": N, "any": 2}


def test_answers_are_those_of_a_loop():
    model, quads = model_of().double(), quads_of(9)
    scores, (heads, relations, tails, times) = scores_of(model), quads.T
    best = kgfast.topk(model, heads=heads, relations=relations, times=times, k=4)
    assert torch.equal(best.ids, scores[heads, relations, :, times].topk(4).indices)
    at_two = kgfast.topk(model, tails=tails, relations=relations, times=2, k=1)
    assert torch.equal(at_two.ids[:, 0], scores[:, relations, tails, 2].argmax(0))
    assert torch.equal(at_two.relations, relations)
    assert at_two.times.tolist() == [2] * 9
    found = kgfast.above(model, best.scores[:, 3], heads=heads, relations=relations, times=times)
    assert torch.equal(found.ids.view(9, 4), best.ids.sort(1).values)


def test_names_are_those_of_relations_and_of_times():
    days = [f"2014-01-{day}" for day in range(10, 10 + T)]
    pairs = TimedRelations(Vocabulary(["a", "b @ c", "d"]), Vocabulary(days))
    people = Vocabulary([f"e{id}" for id in range(N)])
    for id, (relation, day) in enumerate(itertools.product(pairs.columns[0], days)):
        assert pairs.name(id) == f"{relation} @ {day}"
        assert pairs[pairs.name(id)] == id
    rows = [("e1", "b @ c", "e2", days[3]), ("e0", "d", "e1", days[0])]
    triples = Triples.from_names(rows, people, pairs)
    assert triples.quads.tolist() == [[1, 1, 2, 3], [0, 2, 1, 0]]
    model, names = model_of(), (people, pairs)
    ranks = kgfast.rank(model, rows, vocabulary=names)
    assert torch.equal(ranks.greater, kgfast.rank(model, triples.quads).greater)
    assert list(ranks.by("time")) == [days[0], days[3]]
    assert list(ranks.by("relation")) == ["b @ c", "d"]
    assert ranks.to_frame()["time"].tolist() == [days[3]] * 2 + [days[0]] * 2
    best = kgfast.topk(model, heads="e1", relations="d", times=days[2], k=1, vocabulary=names)
    assert best.columns()["time"] == [days[2]]
    assert repr(best).splitlines()[1].startswith("(e1, d, ?, 2014-01-12)")
    parts = [count_range(model, triples, *ends) for ends in ((0, 9), (9, N))]
    assert torch.equal(merge(parts).greater, ranks.greater)
    of_people = kgfast.rank(model, triples.quads, vocabulary=(people, None))
    assert of_people.to_frame()["time"].tolist() == [3] * 2 + [0] * 2


def test_known_quads_are_saved(tmp_path):
    quads = quads_of(200)
    triples = Triples(quads, num_times=T, num_entities=N, num_relations=R * T)
    for times in ("same", "any"):
        known = KnownTriples(triples, times=times)
        known.save(tmp_path / times)
        stored = KnownTriples.open(tmp_path / times)
        assert stored.num_times == T
        for some in (known, stored):
            moved = torch.cat([quads[:, :3], (quads[:, 3:] + 1) % T], 1)
            listed = set(map(tuple, quads.tolist()))
            is_known = [times == "any" or tuple(quad) in listed for quad in moved.tolist()]
            assert some.contains(quads).all()
            assert some.contains(moved).tolist() == is_known
            assert list(some.relation_cardinalities()) == list(range(R))
            assert some.relation_frequency().shape == (R,)


def test_types_hold_at_all_times():
    quads = quads_of(30)
    allowed = kgfast.TypeConstraints.from_triples(Triples(quads, num_times=T))
    for relation, time in itertools.product(range(R), range(T)):
        tails = quads[quads[:, 1] == relation, 2].unique()
        assert torch.equal(allowed.candidates(relation * T + time, "tail"), tails)
    assert kgfast.TypeConstraints.from_types(Triples(quads, num_times=T), [(0, "a")]) == allowed


def test_a_relation_has_one_threshold():
    pairs = quads_of(40), quads_of(40, 1)
    found = kgfast.classify(model_of(), valid=pairs, test=pairs)
    assert list(found.by_relation()) == [*range(R)]


def test_penalties_are_those_of_the_paper():
    model, quads = model_of().double(), quads_of(7)
    tables = (model.entity, model.relation, model.static_relation, model.time)
    entity, relation, static, time = map(complex_rows, tables)
    heads, relations, tails, times = quads.T
    rows = (entity[heads], entity[tails], relation[relations] * time[times], static[relations])
    expected = sum(values.abs().pow(3).sum(1) for values in rows).mean()
    assert n3(model, quads).item() == pytest.approx(expected.item(), rel=1e-12)
    steps = (time[1:] - time[:-1]).abs().pow(3).sum(1).mean()
    assert model.smoothness().item() == pytest.approx(steps.item(), rel=1e-12)
    with pytest.raises(ValueError, match=r"static_relation must be .3, 8. on cpu"):
        kgfast.TNTComplEx(*tables[:2], tables[2][:2], tables[3])


def test_inverse_relations_are_at_the_same_time():
    inner = kgfast.TNTComplEx.init(N, 2 * R, DIM, num_times=T, seed=0).double()
    model, quads, scores = kgfast.Reciprocal(inner, "appended"), quads_of(30), scores_of(inner)
    assert (model.num_relations, model.num_times) == (R * T, T)
    ranks = kgfast.rank(model, quads, sides=("head",))
    heads, relations, tails, times = quads.T
    rows = scores[tails, relations + R, :, times]
    greater = (rows > rows.gather(1, heads[:, None])).sum(1)
    assert torch.equal(ranks.greater[:, 0], greater)
    with pytest.raises(ValueError, match="order must be 'appended'"):
        kgfast.Reciprocal(inner)
    with pytest.raises(ValueError, match="as many inverse relations as relations"):
        kgfast.Reciprocal(kgfast.TNTComplEx.init(N, R, DIM, num_times=4), "appended")


def test_gradients_are_those_of_complex_numbers():
    model, quads = model_of().double(), quads_of(50)
    kgfast.losses.cross_entropy(model, quads).backward()
    ours = [getattr(model, name).grad for name in model.table_names]
    plain = [getattr(model, name).detach().requires_grad_() for name in model.table_names]
    entity, relation, static, time = map(complex_rows, plain)
    heads, relations, tails, times = quads.T
    queries = entity[heads] * (relation[relations] * time[times] + static[relations])
    scores = (queries @ entity.conj().T).real
    torch.nn.functional.cross_entropy(scores, tails).backward()
    for table, gradient in zip(plain, ours, strict=True):
        torch.testing.assert_close(gradient, table.grad, rtol=1e-9, atol=1e-12)


def test_a_temporal_model_with_constant_times_is_complex():
    entity, relation = model_of().entity, model_of().relation
    one = torch.cat([torch.ones(T, DIM), torch.zeros(T, DIM)], 1)
    model = kgfast.TNTComplEx(entity, 0 * relation, relation, one)
    quads = quads_of(40)
    static = kgfast.rank(kgfast.ComplEx(entity, relation), quads[:, :3])
    assert torch.equal(kgfast.rank(model, quads).greater, static.greater)


STATIC = kgfast.DistMult.init(N, R, DIM, seed=0)
QUADS = quads_of(3)
LATE = QUADS + torch.tensor([[0, 0, 0, 0], [0, 0, 0, T], [0, 0, 0, 0]])
MISTAKES = {
    r"\[T, 3\].*got \[3, 4\]; quads need": lambda: kgfast.rank(STATIC, QUADS),
    "the model has no times": lambda: kgfast.topk(STATIC, heads=0, relations=0, times=0, k=1),
    r"triples are quads of 5 times, not no times": lambda: kgfast.rank(
        STATIC, Triples(QUADS, num_times=T)
    ),
    r"must have shape \[T, 4\]": lambda: kgfast.rank(model_of(), QUADS[:, :3]),
    r"triples\[1\] = .*time \d must be in 0..4": lambda: kgfast.rank(model_of(), LATE),
    "the model has 5 times: give": lambda: kgfast.topk(model_of(), heads=0, relations=0, k=1),
    r"times\[1\] must be in 0 .. 4; got 5": lambda: kgfast.topk(
        model_of(), heads=0, relations=0, times=[0, 5], k=1
    ),
    "relations must be in 0 .. 2; got 3": lambda: kgfast.topk(
        model_of(), heads=0, relations=3, times=0, k=1
    ),
    "relations and times must have one length; got 2 and 3": lambda: kgfast.topk(
        model_of(), heads=0, relations=[0, 1], times=[0, 1, 2], k=1
    ),
    "known has 6 times, the model 5: quads": lambda: kgfast.rank(
        model_of(), QUADS, known=KnownTriples(QUADS, num_times=6)
    ),
    "known has no times, the model 5: quads": lambda: kgfast.rank(
        model_of(), QUADS, known=KnownTriples(QUADS[:, :3])
    ),
    "one number of times; got": lambda: KnownTriples(Triples(QUADS, num_times=7), QUADS[:, :3]),
    "times must be 'same', or 'any' of quads": lambda: KnownTriples(QUADS[:, :3], times="any"),
    r"by\('time'\) needs quads": lambda: kgfast.rank(STATIC, QUADS[:, :3]).by("time"),
    "scores relations at a time": lambda: kgfast.losses.relation_logits(model_of(), *QUADS.T[::2]),
    "model of 5": lambda: kgfast.rank(model_of(), QUADS, candidate_ids=kgfast.TypeConstraints({})),
    "known must hold": lambda: kgfast.rank(STATIC, QUADS[:, :3], known=KnownTriples([(N, 0, 0)])),
    "ranks no relations": lambda: kgfast.rank(model_of(), QUADS, sides=("relation",)),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
        MISTAKES[message]()

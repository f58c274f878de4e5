"""rank(): golden ranks, the properties that any ranking has, and every argument."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgfast
from kgfast import MED, ComplEx, KnownTriples, RotatE, TransE, rank
from support.engines import examples
from support.ranked_models import MODELS, line, random_triples


def test_golden_ranks_with_ties():
    # From entity 0: distances 0 1 1 2 1 9. Target 1 ties with 2 and 4, entity 0 is nearer.
    ranks = rank(line(), [(0, 0, 1)], sides=("tail",))
    assert (ranks.greater.item(), ranks.equal.item(), ranks.num_candidates.item()) == (1, 2, 6)
    assert ranks.optimistic.item() == 2
    assert ranks.realistic.item() == 3.0
    assert ranks.pessimistic.item() == 4
    # Knowing (0, 0, 0) and (0, 0, 4) removes the nearer one and one of the ties.
    known = KnownTriples([(0, 0, 0), (0, 0, 4), (0, 0, 1), (0, 0, 1)])
    ranks = rank(line(), [(0, 0, 1)], known=known, sides=("tail",))
    assert (ranks.greater.item(), ranks.equal.item(), ranks.num_candidates.item()) == (0, 1, 4)
    assert ranks.raw.realistic.item() == 3.0


def test_golden_ranks_of_the_head_side():
    # To entity 5 (at 9): the heads by distance are 5 (0), 3 (7), 1 and 2 (8), 0 (9), 4 (10).
    ranks = rank(line(), [(1, 0, 5)], sides=("head",))
    assert (ranks.greater.item(), ranks.equal.item()) == (2, 1)


def test_sides_are_columns_in_the_order_asked_for():
    triples = random_triples(20, 30, 2)
    model = RotatE.init(30, 2, 4, seed=0)
    both = rank(model, triples)
    assert both.sides == ("head", "tail")
    assert torch.equal(rank(model, triples, sides=("tail",)).greater, both.greater[:, 1:])
    assert torch.equal(rank(model, triples, sides=("tail", "head")).greater, both.greater.flip(1))


@pytest.mark.parametrize("name", MODELS)
@given(seed=st.integers(0, 10_000), entities=st.sampled_from([1, 2, 9, 50]))
@examples(8)
def test_filtering_is_removing_and_recomputing(name, seed, entities):
    model = MODELS[name](entities, 3, 6, seed)
    triples = random_triples(8, entities, 3, seed)
    known = KnownTriples(triples, random_triples(40, entities, 3, seed + 1))
    ranks = rank(model, triples, known=known)
    assert ranks.raw.by("cardinality").keys() == ranks.by("cardinality").keys()
    for column, side in enumerate(("head", "tail")):
        for row, (h, r, t) in enumerate(triples.tolist()):
            anchor, target = (t, h) if side == "head" else (h, t)
            answers = known.exclude(torch.tensor([anchor]), torch.tensor([r]), side)[1].tolist()
            keep = [n for n in range(entities) if n not in set(answers) - {target}]
            left = rank(model, triples[[row]], sides=(side,), candidate_ids=keep)
            assert left.greater.item() == ranks.greater[row, column].item()
            assert left.equal.item() == ranks.equal[row, column].item()
            assert left.num_candidates.item() == ranks.num_candidates[row, column].item()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "rescal"])
def test_crops_equal_cropped_models(name):
    model, triples = MODELS[name](60, 3, 10, 0), random_triples(25, 60, 3)
    expected = rank(cropped(model, name, 4), triples)
    assert torch.equal(rank(model, triples, dims=4).greater, expected.greater)
    both = rank(model, triples, dims=[4, 10])
    assert list(both) == [4, 10]
    assert torch.equal(both[4].greater, expected.greater)
    assert torch.equal(both[10].greater, rank(model, triples).greater)


def cropped(model, name, dim):
    """Return a model of the first ``dim`` features; phases do not depend on the crop."""
    planes = model.entity.shape[1] // model.dim
    columns = torch.arange(planes * model.dim).view(planes, -1)[:, :dim].flatten()
    if getattr(model, "layout", None) == "interleaved":
        columns = torch.arange(planes * dim)
    entity = model.entity[:, columns]
    if name.startswith("complex"):
        return ComplEx(entity, model.relation[:, columns], layout=model.layout)
    if name.startswith("rotate"):
        phases = model.relation[:, :dim].double() * (torch.pi / model.embedding_range)
        options = {"norm": model.norm, "layout": model.layout, "relation_format": "phase"}
        return RotatE(entity, phases, **options)
    options = {"norm": model.score} if name.startswith("transe") else {}
    return type(model)(entity, model.relation[:, :dim], **options)


def test_l2_of_halves_has_crops_by_split_alone():
    model = RotatE.init(5, 1, 4, norm="l2", seed=0)
    with pytest.raises(ValueError, match="store the embeddings interleaved"):
        rank(model, [(0, 0, 1)], dims=2)
    split, local = MED(model, [2, 4], crop="split"), model.first_columns(2)
    assert rank(split, [(0, 0, 1)], dims=2).greater.equal(rank(local, [(0, 0, 1)]).greater)


def test_candidate_subsets():
    model, triples = RotatE.init(100, 2, 8, seed=0), random_triples(20, 100, 2)
    ids = torch.randperm(100, generator=torch.Generator().manual_seed(1))[:30]
    known = KnownTriples(triples, random_triples(500, 100, 2, 1))
    ranks = rank(model, triples, known=known, candidate_ids=ids)
    for given_ids in (ids.tolist(), ids.numpy(), ids.int()):
        again = rank(model, triples, known=known, candidate_ids=given_ids)
        assert torch.equal(ranks.greater, again.greater)
    inside = torch.isin(triples[:, 2], ids)
    assert set(ranks.raw.num_candidates[inside, 1].tolist()) == {30}
    assert set(ranks.raw.num_candidates[~inside, 1].tolist()) == {31}
    assert bool((ranks.num_candidates < ranks.raw.num_candidates).any())
    assert bool((ranks.pessimistic <= ranks.num_candidates).all())


def test_subnormal_queries_while_the_caller_flushes_them(backend):
    generator = torch.Generator().manual_seed(0)
    entity, relation = (torch.randint(50, (n, 4), generator=generator) * 1e-41 for n in (300, 3))
    model, triples = TransE(entity, relation), random_triples(20, 300, 3)
    expected, best = rank(model, triples), kgfast.topk(model, heads=[1, 2], relations=0, k=9)
    assert torch.set_flush_denormal(True)
    try:
        found, again = rank(model, triples), kgfast.topk(model, heads=[1, 2], relations=0, k=9)
        still_flushing = torch.tensor(1e-310, dtype=torch.float64) * 1 == 0
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found.greater, expected.greater)
    assert torch.equal(found.equal, expected.equal)
    assert torch.equal(again.ids, best.ids)
    assert still_flushing


def test_a_graph_of_one_entity():
    model = RotatE.init(1, 1, 2, seed=0)
    ranks = rank(model, [(0, 0, 0)], known=KnownTriples([(0, 0, 0)]))
    assert ranks.realistic.tolist() == [[1.0, 1.0]]
    assert ranks.num_candidates.tolist() == [[1, 1]]
    assert ranks.mrr == 1.0
    assert ranks.metrics()["amri"] == 0  # no rank but 1 is possible


def test_nan_worst_never_improves_a_metric():
    """Five of 55 relation embeddings set to NaN raise the MRR of other evaluators."""
    model, triples = RotatE.init(30, 5, 4, seed=0).requires_grad_(False), random_triples(40, 30, 5)
    before = rank(model, triples)
    model.relation[2] = float("nan")
    after = rank(model, triples, nan="worst")
    touched = triples[:, 1] == 2
    assert bool((after.realistic[touched] == after.num_candidates[touched]).all())
    assert torch.equal(after.realistic[~touched], before.realistic[~touched])
    assert after.mrr < before.mrr


FAR = KnownTriples([(0, 5, 1)])
BAD = {
    "model": (lambda: rank(object(), [(0, 0, 1)]), TypeError, "model must have score"),
    "known": (lambda: rank(line(), [(0, 0, 1)], known=[(0, 0, 1)]), TypeError, "KnownTriples"),
    "ids": (lambda: rank(line(), [(0, 0, 1)], known=FAR), ValueError, "in 0 .. 0; got 5"),
    "side": (lambda: rank(line(), [(0, 0, 1)], sides=("left",)), ValueError, "sides"),
    "string": (lambda: rank(line(), [(0, 0, 1)], sides="tail"), ValueError, "in a tuple"),
    "nan": (lambda: rank(line(), [(0, 0, 1)], nan="best"), ValueError, "nan must be"),
    "batch": (lambda: rank(line(), [(0, 0, 1)], batch_size=0), ValueError, "batch_size"),
    "entity": (lambda: rank(line(), [(0, 0, 1), (0, 0, 6)]), ValueError, r"triples\[1\].*0..5"),
    "relation": (lambda: rank(line(), [(0, 1, 1)]), ValueError, r"triples\[0\].*0..0"),
    "floats": (lambda: rank(line(), torch.zeros(1, 3)), TypeError, "integers"),
    "shape": (lambda: rank(line(), torch.zeros(1, 2).long()), ValueError, r"\[T, 3\]"),
    "dim": (lambda: rank(line(), [(0, 0, 1)], dims=2), ValueError, "dims must be in 1 .. 1"),
    "no dims": (lambda: rank(line(), [(0, 0, 1)], dims=[]), ValueError, "at least one crop"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()

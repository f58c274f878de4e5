"""rank(), topk(), above() and top_facts() alike: whoever computes, and what they leave.

Answers and arguments of each are tested in files beside this one.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgfast
from kgfast import KnownTriples, RotatE, above, rank, top_facts, topk
from support.engines import ISAS, assert_same, engines, examples
from support.ranked_models import MODELS, line, random_triples

N, R, DIM = 200, 4, 33
TRIPLES = random_triples(40, N, R)
KNOWN = KnownTriples(TRIPLES, random_triples(300, N, R, 1))
HEADS, RELATIONS, TAILS = TRIPLES.T.contiguous()
FEW = {"heads": [5, 9, 100], "relations": [3, 0], "k": 30}


def of_rank(model, **options):
    found = rank(model, TRIPLES, **options)
    both = (found, found.raw)
    return [it for own in both for it in (own.greater, own.equal, own.num_candidates)]


def of_topk(model, **options):
    sides = ({"heads": HEADS}, {"tails": TAILS})
    found = [topk(model, **side, relations=RELATIONS, k=7, **options) for side in sides]
    return [it for own in found for it in (own.ids, own.scores)]


def of_above(model, **options):
    """All answers as good as the seventh; of heads of one relation, above a fixed score."""
    best = topk(model, heads=HEADS, relations=RELATIONS, k=7)
    tails = above(model, best.scores[:, 6], heads=HEADS, relations=RELATIONS, **options)
    heads = above(model, float(best.scores[3, 3]), tails=TAILS, relations=2, **options)
    return [it for own in (tails, heads) for it in (own.indptr, own.ids, own.scores)]


def of_facts(model, **options):
    found = top_facts(model, **FEW, **options)
    return [found.triples, found.scores]


EACH_FRONT = pytest.mark.parametrize("front", [of_rank, of_topk, of_above, of_facts])


@EACH_FRONT
@engines(*ISAS, "baseline", "panels", "triton")
@pytest.mark.parametrize("name", MODELS)
def test_every_engine_finds_what_the_reference_finds(engine, front, name):
    model = MODELS[name](N, R, DIM, 0)
    with kgfast.use_backend("reference"):
        expected = front(model, known=KNOWN)
    with kgfast.use_backend(engine.flat.name):
        there = model.to(engine.device)
        options = {"index": kgfast.Index(there)} if engine.name == "panels" else {}
        if options and front is of_facts:
            pytest.skip("top_facts() takes no index")
        found = front(there, known=KNOWN, **options)
    assert_same([it.cpu() for it in found], expected, zeros_have_signs=not engine.is_triton)


@EACH_FRONT
@given(batch_size=st.integers(1, 60), seed=st.integers(0, 10_000))
@examples(15)
def test_results_do_not_depend_on_batches(front, batch_size, seed):
    model = RotatE.init(N, R, 8, seed=seed)
    whole = front(model, known=KNOWN)
    assert_same(front(model, known=KNOWN, batch_size=batch_size), whole)


@EACH_FRONT
def test_evaluation_mode_is_restored_gradients_are_off_and_random_numbers_left_alone(front):
    model = RotatE.init(N, R, 2, seed=0)
    model.dropout, model.other = torch.nn.Dropout(0.5), torch.nn.Dropout(0.5)
    model.train()
    model.other.eval()
    state, seen, queries = torch.get_rng_state(), [], model.queries
    model.dropout.register_forward_hook(lambda module, *_: seen.append(module.training))
    model.queries = lambda *args, **kwargs: model.dropout(queries(*args, **kwargs))
    found = front(model)
    assert set(seen) == {False}
    assert model.training
    assert model.dropout.training
    assert not model.other.training
    assert not any(it.requires_grad for it in found)
    assert torch.equal(torch.get_rng_state(), state)


def test_bars_say_what_is_done(capsys):
    for call, word in (
        (lambda: rank(line(), [(0, 0, 1)] * 5, progress=True), "ranking"),
        (lambda: topk(line(), heads=[0] * 5, relations=0, k=1, progress=True), "predicting"),
        (lambda: above(line(), 0.0, heads=[0] * 5, relations=0, progress=True), "predicting"),
        (lambda: top_facts(line(), k=1, progress=True), "searching"),
    ):
        call()
        assert word in capsys.readouterr().out

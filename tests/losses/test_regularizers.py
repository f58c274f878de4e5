"""Penalties and relation prediction, against plain formulas in float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from kgfast import CP, MED, RESCAL, RSCF, ComplEx, ConvE, DistMult, Reciprocal, RotatE, TransE
from kgfast.losses import regularizers, relation_logits, relation_task, sampled_scores
from support.memory import PeakMemory

N, R, D = 9, 3, 4
HRT = torch.tensor([[0, 1, 2], [3, 0, 3], [0, 1, 5], [8, 2, 0]])
MODELS = {
    "distmult": lambda r: DistMult.init(N, r, D, seed=0),
    "complex": lambda r: ComplEx.init(N, r, D, seed=0),
    "complex interleaved": lambda r: ComplEx.init(N, r, D, seed=0, layout="interleaved"),
    "cp": lambda r: CP.init(N, r, D, seed=0),
    "rescal": lambda r: RESCAL.init(N, r, D, seed=0),
    "rotate": lambda r: RotatE.init(N, r, D, seed=0),
    "transe": lambda r: TransE.init(N, r, D, seed=0),
}
FITS = {"n3": tuple(MODELS)[:4], "dura": tuple(MODELS)[:5], "l2": tuple(MODELS)}


def numbers(model, rows):
    """Rows as the numbers that a score multiplies."""
    if not isinstance(model, ComplEx):
        return rows
    pairs = (rows[:, 0::2], rows[:, 1::2]) if model.layout == "interleaved" else rows.chunk(2, 1)
    return torch.complex(*pairs)


def of_rows(model, h, r, t):
    """Heads, relations and tails as the score has them, ``[B, *]`` each."""
    if isinstance(model, CP):
        return model.entity[h][:, :D], model.relation[r], model.entity[t][:, D:]
    tables = (model.entity[h], model.relation[r], model.entity[t])
    return tuple(numbers(model, rows) for rows in tables)


def plain(name, model, h, r, t):
    heads, own, tails = of_rows(model, h, r, t)
    if name == "n3":
        return sum(it.abs().pow(3).sum(1) for it in (heads, own, tails))
    if name == "l2":
        return sum(it.abs().square().sum(1) for it in (heads, own, tails))
    if isinstance(model, RESCAL):
        own = own.view(-1, D, D)
        forth, back = torch.einsum("bd,bde->be", heads, own), torch.einsum("bde,be->bd", own, tails)
    else:
        forth, back = heads * own, tails * own
    squares = [it.abs().square().sum(1) for it in (heads, tails, forth, back)]
    return sum(squares)


CASES = [(name, kind) for name, kinds in FITS.items() for kind in kinds]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_penalties_and_gradients_are_those_of_the_formula(name, kind):
    model = MODELS[kind](R).double()
    expected = plain(name, model, *HRT.T)
    mean = getattr(regularizers, name)(model, HRT)
    torch.testing.assert_close(mean, expected.mean())
    parameters = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(mean, parameters),
        torch.autograd.grad(expected.mean(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    both = [getattr(regularizers, name)(model, HRT, side=side) for side in ("head", "tail")]
    assert both[0].item() == pytest.approx(both[1].item())


@pytest.mark.parametrize("order", ["appended", "interleaved"])
@pytest.mark.parametrize(("name", "kind"), [it for it in CASES if it[1] in ("cp", "complex")])
def test_the_inverse_of_a_relation_is_penalised_where_heads_are_asked_for(name, kind, order):
    inner = MODELS[kind](2 * R).double()
    model, (h, r, t) = Reciprocal(inner, order), HRT.T
    forth, back = (r, r + R) if order == "appended" else (2 * r, 2 * r + 1)
    of = getattr(regularizers, name)
    torch.testing.assert_close(of(model, HRT), plain(name, inner, h, forth, t).mean())
    turned = of(model, HRT, side="head")
    torch.testing.assert_close(turned, plain(name, inner, t, back, h).mean())


@pytest.mark.parametrize("name", ["l2", "dura"])
def test_matrices_of_relations_are_not_repeated_for_triples(name):
    model, triples = RESCAL.init(N, R, 64, seed=0), HRT.repeat(1000, 1)
    with PeakMemory("cpu") as peak:  # 64 MiB, if they were
        getattr(regularizers, name)(model, triples).backward()
    assert peak.bytes < 24 << 20


@pytest.mark.parametrize("name", ["n3", "l2", "dura"])
def test_wrapped_models_have_the_penalty_of_the_model_inside(name):
    model, of = MODELS["complex"](R), getattr(regularizers, name)
    assert torch.equal(of(MED(model, [2, D]), HRT), of(model, HRT))


@pytest.mark.parametrize("name", ["n3", "l2", "dura"])
def test_penalties_of_half_tables_are_sums_in_float32(name):
    tables, of = [torch.full((rows, 512), 40.0) for rows in (N, R)], getattr(regularizers, name)
    assert of(ComplEx(*map(torch.Tensor.half, tables)), HRT) == of(ComplEx(*tables), HRT)


FUNCTIONS = {
    "rows": lambda: (it := MODELS["cp"](R), regularizers.n3(it, HRT, sparse=True)),
    "products": lambda: (it := MODELS["rescal"](R), regularizers.dura(it, HRT)),
    "filters": lambda: (it := RSCF(MODELS["rotate"](R)), it.queries(*HRT.T[:2], "tail").sum()),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_there_is_no_second_derivative(kind):
    model, total = FUNCTIONS[kind]()
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(total, model.entity, create_graph=True)


@pytest.mark.parametrize("name", ["n3", "dura"])
def test_models_that_a_penalty_does_not_fit_are_refused(name):
    others = [MODELS[kind](R) for kind in MODELS if kind not in FITS[name]]
    for model in (*others, ConvE.init(N, R, 8, embedding_height=2, seed=0)):
        with pytest.raises(ValueError, match=f"{name} takes DistMult, ComplEx, CP"):
            getattr(regularizers, name)(model, HRT)
    assert regularizers.l2(model, HRT) > 0


def test_bad_input_is_named():
    model, zero = MODELS["distmult"](R), torch.tensor([0])
    conve = ConvE.init(N, R, 8, embedding_height=2, seed=0)
    for error, message, call in (
        (ValueError, "relation 3", lambda: regularizers.n3(model, [(0, R, 1)])),
        (ValueError, "side must be", lambda: regularizers.l2(model, HRT, side="tails")),
        (ValueError, "heads", lambda: relation_logits(model, zero + N, zero)),
        (ValueError, "tails", lambda: relation_logits(model, zero.repeat(2), zero)),
        (TypeError, "ConvE would run", lambda: relation_logits(conve, zero, zero)),
    ):
        with pytest.raises(error, match=message):
            call()


LOGITS = {
    **{kind: MODELS[kind] for kind in MODELS},
    "rscf of rotate": lambda r: RSCF(MODELS["rotate"](r), seed=0),
    "med of transe": lambda r: MED(MODELS["transe"](r), [2, D]),
}


@pytest.mark.parametrize("kind", LOGITS)
def test_logits_of_relations_are_the_scores_of_their_triples(kind, monkeypatch):
    model, (h, r, t) = LOGITS[kind](R), HRT.T
    logits = relation_logits(model, h, t)
    triples = torch.cartesian_prod(torch.arange(len(h)), torch.arange(R))
    hrt = torch.stack([h[triples[:, 0]], triples[:, 1], t[triples[:, 0]]], 1)
    inner = model.model if isinstance(model, MED) else model
    scores, _ = sampled_scores(inner, hrt, torch.tensor([0]))
    gamma = getattr(model, "gamma", 0.0)
    torch.testing.assert_close(logits, (scores - gamma).view(len(h), R))
    parameters = list(inner.parameters())
    expected = torch.autograd.grad(cross_entropy(logits, r), parameters)
    monkeypatch.setattr(relation_task, "_NUMBERS", 1)  # a relation at a time, and again
    loss = cross_entropy(relation_logits(model, h, t), r)
    for ours, theirs in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_inverse_relations_are_predicted_too():
    inner, (h, _, t) = MODELS["complex"](2 * R), HRT.T
    logits = relation_logits(Reciprocal(inner, "appended"), h, t)
    assert torch.equal(logits, relation_logits(inner, h, t))
    assert logits.shape == (len(h), 2 * R)

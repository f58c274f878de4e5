"""kgfast.losses: those of a model are the formulas of its scores, on every model."""

import copy
import inspect
import math
import pickle
from collections import Counter

import pytest
import torch
from torch.nn import functional

from kgfast import CP, MED, Candidates, DistMult, KnownTriples, Reciprocal, RotatE, losses
from support import oracles
from support.loss_models import (
    MODELS,
    B,
    K,
    N,
    R,
    dense_scores,
    query_of,
    some_negatives,
    some_triples,
)

EACH_MODEL = pytest.mark.parametrize("name", MODELS)
SIDES = pytest.mark.parametrize("side", ["head", "tail"])


def assert_same(model, got: torch.Tensor, exact: torch.Tensor) -> None:
    """Values, and gradients of all parameters."""
    oracles.assert_accurate(got.detach(), exact.detach())
    parameters = list(model.parameters())
    weight = torch.linspace(1, 2, max(1, got.numel())).reshape(got.shape)
    gradients = torch.autograd.grad((got * weight).sum(), parameters, retain_graph=True)
    expected = torch.autograd.grad((exact * weight).sum(), parameters, retain_graph=True)
    for one, other in zip(gradients, expected, strict=True):
        assert one.abs().sum() > 0
        assert (one - other).abs().max() <= 2e-5 * other.abs().max()


@EACH_MODEL
@SIDES
@pytest.mark.parametrize("style", ["torch", "conve", "pykeen"])
@pytest.mark.usefixtures("backend")
def test_bce(name, side, style):
    model, eps = MODELS[name](), 0.1
    anchors, relations, targets = query_of(some_triples(), side)
    scores = dense_scores(model, anchors, relations, side)
    hot = functional.one_hot(targets, N).double()
    labels = {
        "torch": (1 - eps) * hot + eps / N,
        "conve": (1 - eps) * hot + 1 / N,
        "pykeen": hot * (1 - eps) + (1 - hot) * eps / (N - 1),
    }[style]
    each = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    for reduction, exact in (("mean", each.mean()), ("sum", each.sum()), ("none", each.sum(1))):
        given = {"label_smoothing": eps, "smoothing_style": style, "reduction": reduction}
        got = losses.bce(model, (anchors, relations), targets, side=side, **given)
        assert_same(model, got, exact)


@EACH_MODEL
@SIDES
@pytest.mark.usefixtures("backend")
def test_bce_with_several_positives(name, side):
    h, r, t = some_triples()[0].tolist()
    more = [(h, r, n) for n in range(0, N, 2)] + [(n, r, t) for n in range(0, N, 3)]
    model, known = MODELS[name](), KnownTriples(some_triples(), more)
    anchors, relations, _ = query_of(some_triples(), side)
    labels = torch.zeros(B, N, dtype=torch.float64)
    positives = known.exclude(anchors, relations, side)
    labels[torch.repeat_interleave(positives[0].diff()), positives[1]] = 1
    assert labels.sum() > B
    exact = functional.binary_cross_entropy_with_logits(
        dense_scores(model, anchors, relations, side), labels
    )
    assert_same(model, losses.bce(model, (anchors, relations), positives, side=side), exact)


@EACH_MODEL
@SIDES
@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.usefixtures("backend")
def test_cross_entropy(name, side, eps):
    model = MODELS[name]()
    anchors, relations, targets = query_of(some_triples(), side)
    scores = dense_scores(model, anchors, relations, side)
    for reduction in ("mean", "sum", "none"):
        exact = functional.cross_entropy(scores, targets, label_smoothing=eps, reduction=reduction)
        given = {"side": side, "label_smoothing": eps, "reduction": reduction}
        got = losses.cross_entropy(model, (anchors, relations), targets, **given)
        assert_same(model, got, exact)


@SIDES
@pytest.mark.usefixtures("backend")
def test_cross_entropy_with_weights_is_that_of_torch(side):
    model, triples = MODELS["distmult"](), some_triples()
    anchors, relations, targets = query_of(triples, side)
    of_entities = losses.frequency_weights(triples, N)
    scores = dense_scores(model, anchors, relations, side)
    for reduction in ("mean", "sum", "none"):
        wide = of_entities.to(scores.dtype)
        exact = functional.cross_entropy(scores, targets, wide, reduction=reduction)
        given = {"weights": of_entities[targets], "reduction": reduction}
        assert_same(model, losses.cross_entropy(model, triples, side=side, **given), exact)


@EACH_MODEL
@SIDES
@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
@pytest.mark.parametrize("dims", [None, [2, 3, 6]], ids=["full", "crops"])
@pytest.mark.usefixtures("backend")
def test_sampled_scores(name, side, pool, dims):
    model, triples, negatives = MODELS[name](), some_triples(), some_negatives(pool)
    anchors, relations, targets = query_of(triples, side)
    scores = torch.stack(
        [dense_scores(model, anchors, relations, side, dim) for dim in dims or [None]]
    )
    exact = [scores[:, torch.arange(B), targets]]
    exact.append(scores.gather(2, negatives.expand(len(scores), B, K)))
    got = losses.sampled_scores(model, triples, negatives, side, dims)
    for one, other in zip(got, exact, strict=True):
        assert_same(model, one, other if dims else other[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("model", [DistMult, CP, Reciprocal, MED])
@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
@SIDES
def test_sparse_gradients_of_tables_of_every_dtype(dtype, model, pool, side):
    triples, negatives = some_triples(), some_negatives(pool)
    grads = []
    for sparse in (False, True):
        own = (CP if model is CP else DistMult).init(N, 2 * R, 6, seed=0).to(dtype)
        if model is Reciprocal:
            own = Reciprocal(own)
        own = MED(own, [2, 6]) if model is MED else own
        loss = losses.med if model is MED else losses.nssa
        loss(own, triples, negatives, side=side, sparse=sparse).backward()
        grads.append(own.entity.grad.to_dense())
    largest = grads[0].abs().max().item()
    torch.testing.assert_close(*grads, rtol=0, atol=8 * torch.finfo(dtype).eps * largest)


@pytest.mark.parametrize("row", ["target", "pool"])
def test_a_row_of_a_sparse_gradient_that_is_not_finite_is_named_by_its_id(row):
    table = torch.ones(N, 4)
    table[5 if row == "target" else 2] = torch.nan
    model = DistMult(torch.nn.Parameter(table), torch.ones(R, 4))
    name = "table: row 5" if row == "target" else "candidates: row 2"
    with pytest.raises(ValueError, match=f"{name} holds a NaN"):
        losses.nssa(model, [(0, 0, 1), (3, 0, 5)], torch.tensor([4, 2]), sparse=True)


class Biased(DistMult):
    def candidates(self, side, dims=None):
        return Candidates(self.entity, self.bias)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.usefixtures("backend")
def test_negatives_of_minus_infinity_are_none(alpha):
    model, hrt, negatives = Biased.init(N, R, 4, seed=0), some_triples(), some_negatives()
    none = min(set(range(N)) - set(hrt.flatten().tolist()))
    model.bias = torch.zeros(N).index_fill(0, torch.tensor(none), -torch.inf)
    negatives[0], negatives[1, 0] = none, none
    found = losses.nssa(model, hrt, negatives, alpha=alpha, reduction="none")
    plain, mask = DistMult.init(N, R, 4, seed=0), negatives != none
    expected = losses.nssa(plain, hrt, negatives, alpha=alpha, mask=mask, reduction="none")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("name", ["nssa", "margin", "logistic"])
@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
@SIDES
@pytest.mark.usefixtures("backend")
def test_a_loss_of_a_model_is_that_of_its_scores(name, pool, side, masked):
    model, triples, negatives = MODELS["rotate"](), some_triples(), some_negatives(pool)
    anchors, relations, targets = query_of(triples, side)
    scores = dense_scores(model, anchors, relations, side)
    pairs = scores[torch.arange(B), targets], scores.gather(1, negatives.expand(B, K))
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 1] = mask[2, 0] = False
    given = {"mask": mask if masked else None}
    if name == "nssa":
        given["weights"] = torch.linspace(0.5, 2, B)
    for reduction in ("mean", "sum", "none"):
        got = getattr(losses, name)(
            model, triples, negatives, side=side, reduction=reduction, **given
        )
        assert_same(model, got, losses.LOSSES[name](reduction=reduction).of_scores(*pairs, **given))


def test_subsampling_weights_are_those_of_the_official_code():
    triples = [(0, 0, 1), (0, 0, 2), (3, 1, 2), (0, 0, 1), (2, 0, 1)]
    count: Counter = Counter()
    for h, r, t in triples:
        for pair in ((h, r), (t, -r - 1)):
            count[pair] = count[pair] + 1 if pair in count else 4
    expected = [math.sqrt(1 / (count[h, r] + count[t, -r - 1])) for h, r, t in triples]
    got = losses.subsampling_weights(triples)
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx(expected)
    assert losses.subsampling_weights(torch.empty(0, 3, dtype=torch.int64)).shape == (0,)


def test_frequency_weights_are_those_of_the_official_code():
    triples = [(0, 0, 1), (0, 0, 2), (3, 1, 2), (0, 0, 1), (4, 0, 4)]
    count = Counter(entity for h, _, t in triples for entity in (h, t))
    expected = [count[entity] / max(count.values()) * 0.9 + 0.1 for entity in range(6)]
    got = losses.frequency_weights(triples, 6)
    assert got.dtype == torch.float32
    assert got.tolist() == pytest.approx(expected)
    for wrong, message in (
        ([(0, 0, 6)], r"tails\[0\] must be in 0 .. 5; got 6"),
        ([(-1, 0, 2)], "head -1 must be >= 0"),
        (torch.empty(0, 3, dtype=torch.int64), "need at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            losses.frequency_weights(wrong, 6)


OPTIONS = {
    "bce": {"label_smoothing": 0.1, "smoothing_style": "conve", "reduction": "sum"},
    "cross_entropy": {"label_smoothing": 0.1},
    "nssa": {"alpha": 0.5, "reduction": "none"},
    "margin": {"margin": 3.0},
    "logistic": {"reduction": "sum"},
    "med": {"sparse": True},
}
EACH_LOSS = pytest.mark.parametrize("name", losses.LOSSES)


def batch_of(name):
    """Return a model, triples, and what they are compared with."""
    is_of_crops = losses.LOSSES[name].over == "crops"
    model = MED(RotatE.init(N, R, 6, seed=0), [2, 6]) if is_of_crops else MODELS["rotate"]()
    is_of_all = losses.LOSSES[name].over == "entities"
    return model, some_triples(), () if is_of_all else (some_negatives(),)


@EACH_LOSS
@SIDES
def test_a_loss_is_its_function(name, side):
    options, (model, triples, others) = OPTIONS.get(name, {}), batch_of(name)
    loss, function = losses.LOSSES[name](**options), getattr(losses, name)
    expected = function(model, triples, *others, side=side, **options)
    for one in (loss, pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss)):
        assert torch.equal(one(model, triples, *others, side=side), expected)
        assert all(f"{key}={value!r}" in repr(one) for key, value in options.items())
    assert pickle.loads(pickle.dumps(function)) is function


@EACH_LOSS
def test_the_hyperparameters_of_a_loss_are_those_of_its_function(name):
    cls = losses.LOSSES[name]
    options = set(inspect.signature(cls).parameters)
    accepted = set(inspect.signature(getattr(losses, name)).parameters)
    assert set(cls.hyperparameters()) <= options <= accepted
    model, triples, others = batch_of(name)
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword"):
        getattr(losses, name)(model, triples, *others, weight=1.0)


@EACH_LOSS
@SIDES
def test_a_batch_is_triples_or_a_tuple_of_their_columns(name, side):
    (model, triples, others), loss = batch_of(name), getattr(losses, name)
    anchors, relations, targets = query_of(triples, side)
    expected = loss(model, triples, *others, side=side)
    for batch in (triples.tolist(), triples.numpy(), (anchors, relations, targets)):
        assert torch.equal(loss(model, batch, *others, side=side), expected)
    if not others:
        assert torch.equal(loss(model, (anchors, relations), targets, side=side), expected)
        other = loss(model, (anchors, relations, anchors), targets, side=side)
        assert torch.equal(other, expected)  # given candidates are taken


def test_sampled_scores_of_an_empty_batch_and_of_no_negatives():
    model = MODELS["rotate"]()
    positive, negative = losses.sampled_scores(
        model, torch.empty(0, 3, dtype=torch.int64), torch.empty(0, K, dtype=torch.int64)
    )
    assert (positive.shape, negative.shape) == ((0,), (0, K))
    for none in (torch.empty(B, 0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)):
        positive, negative = losses.sampled_scores(model, some_triples(), none)
        assert (positive.shape, negative.shape) == ((B,), (B, 0))


def test_any_object_with_the_contract_has_losses():
    class Constant:
        score, num_entities, num_relations, dim = "dot", 3, 1, 1

        def queries(self, anchors, relations, side, dims=None):
            return torch.ones(len(anchors), 1)

        def candidates(self, side):
            return Candidates(torch.tensor([[0.0], [1.0], [2.0]]))

    rows = losses.cross_entropy(Constant(), [(0, 0, 2)])
    assert rows.item() == pytest.approx(math.log(1 + math.e + math.e**2) - 2)

"""kgfast.losses: every formula by its definition, on every model, and every argument."""

import math
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import oracles
from kgfast import Candidates, ComplEx, DistMult, KnownTriples, RotatE, TransE, losses
from kgfast.losses import formulas

N, R, B, K = 11, 3, 6, 4
MODELS = {
    "rotate": lambda: RotatE.init(N, R, 6, gamma=4.0, seed=0),
    "rotate l2": lambda: RotatE.init(N, R, 6, seed=0, norm="l2", layout="interleaved"),
    "rotate interleaved": lambda: RotatE.init(N, R, 6, seed=0, layout="interleaved"),
    "transe": lambda: TransE.init(N, R, 6, gamma=2.0, seed=0),
    "transe l2": lambda: TransE.init(N, R, 6, seed=0, norm="l2"),
    "distmult": lambda: DistMult.init(N, R, 6, seed=0),
    "complex": lambda: ComplEx.init(N, R, 6, seed=0),
    "complex interleaved": lambda: ComplEx.init(N, R, 6, seed=0, layout="interleaved"),
    "biased": lambda: Biased.init(N, R, 6, seed=0),
}
EACH_MODEL = pytest.mark.parametrize("name", MODELS)
SIDES = pytest.mark.parametrize("side", ["head", "tail"])


class Biased(DistMult):
    """DistMult with a bias per entity and a gamma."""

    gamma = 1.5

    def candidates(self, side):
        if not hasattr(self, "bias"):
            self.bias = nn.Parameter(torch.linspace(-1, 1, len(self.entity)))
        return Candidates(self.entity, self.bias)


def some_triples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.rand(B, 3, generator=generator) * torch.tensor([N, R, N])).long()


def some_negatives(pool: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(N, (K,) if pool else (B, K), generator=generator)


def query_of(triples: torch.Tensor, side: str) -> tuple[torch.Tensor, ...]:
    """Anchors, relations, targets."""
    heads, relations, tails = triples.T
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


def dense_scores(model, anchors, relations, side, dim=None) -> torch.Tensor:
    """Scores ``[B, N]`` of the same queries in float64, gamma and bias included."""
    queries = model.queries(anchors, relations, side, dims=dim).double()
    candidates = model.candidates(side)
    width = None if dim is None else model.crop_width(dim)
    scores = oracles.dense_scores(
        queries[:, None], candidates.table.double(), model.score, dim=width
    )
    if candidates.bias is not None:
        scores = scores + candidates.bias.double()
    return scores + getattr(model, "gamma", 0.0)


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
    model.candidates(side)
    scores = dense_scores(model, anchors, relations, side)
    hot = functional.one_hot(targets, N).double()
    labels = {
        "torch": (1 - eps) * hot + eps / N,
        "conve": (1 - eps) * hot + 1 / N,
        "pykeen": hot * (1 - eps) + (1 - hot) * eps / (N - 1),
    }[style]
    each = functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    for reduction, exact in (("mean", each.mean()), ("sum", each.sum()), ("none", each.sum(1))):
        got = losses.bce(
            model,
            anchors,
            relations,
            targets,
            side=side,
            label_smoothing=eps,
            smoothing_style=style,
            reduction=reduction,
        )
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
    assert_same(model, losses.bce(model, anchors, relations, positives, side=side), exact)


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
        got = losses.cross_entropy(
            model,
            anchors,
            relations,
            targets,
            side=side,
            label_smoothing=eps,
            reduction=reduction,
        )
        assert_same(model, got, exact)


@EACH_MODEL
@SIDES
@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
@pytest.mark.parametrize("dims", [None, [2, 6, 3]], ids=["full", "crops"])
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


@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
@pytest.mark.usefixtures("backend")
def test_sparse_gradients_equal_dense_ones(pool):
    triples, negatives = some_triples(), some_negatives(pool)
    grads = []
    for sparse in (False, True):
        model = RotatE.init(N, R, 6, seed=0)
        # Queries gather rows with dense gradients, so the table is another tensor here.
        table = model.entity.detach().clone().requires_grad_()
        model.candidates = lambda side, table=table: Candidates(table)
        losses.nssa(model, triples, negatives, sparse=sparse).backward()
        grads.append(table.grad)
        assert table.grad.is_sparse == sparse
    torch.testing.assert_close(grads[1].to_dense(), grads[0])


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def random_scores(*leading: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    positive = 3 * torch.randn(*leading, B, generator=generator, dtype=torch.float64)
    return positive, 3 * torch.randn(*leading, B, K, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_nssa_is_the_official_form(alpha):
    positive, negative = random_scores()
    weights = torch.linspace(0.1, 0.9, B, dtype=torch.float64)
    of_positives = of_negatives = 0.0
    for b in range(B):
        row = negative[b].tolist()
        total = sum(math.exp(alpha * s) for s in row)
        inner = sum(math.exp(alpha * s) / total * log_sigmoid(-s) for s in row)
        of_positives -= weights[b].item() * log_sigmoid(positive[b].item())
        of_negatives -= weights[b].item() * inner
    expected = (of_positives + of_negatives) / weights.sum().item() / 2
    got = formulas.nssa(positive, negative, alpha=alpha, weights=weights)
    assert got.item() == pytest.approx(expected, rel=1e-12)
    rows = formulas.nssa(positive, negative, alpha=alpha, weights=weights, reduction="none")
    total = formulas.nssa(positive, negative, alpha=alpha, weights=weights, reduction="sum")
    assert rows.shape == (B,)
    assert total.item() == pytest.approx(rows.sum().item())
    assert total.item() == pytest.approx(expected * weights.sum().item())
    plain = formulas.nssa(positive, negative, alpha=alpha)
    assert plain.item() == pytest.approx(
        formulas.nssa(positive, negative, alpha=alpha, weights=torch.ones(B)).item()
    )


def test_no_gradient_flows_through_the_weights_of_nssa():
    positive, negative = (it.requires_grad_() for it in random_scores())
    formulas.nssa(positive, negative, alpha=2.0, reduction="sum").backward()
    share = (2.0 * negative).softmax(-1)
    torch.testing.assert_close(negative.grad, share * negative.sigmoid() / 2)
    torch.testing.assert_close(positive.grad, (positive.sigmoid() - 1) / 2)


def test_margin_is_torch_margin_ranking():
    positive, negative = random_scores()
    for reduction in ("mean", "sum"):
        expected = functional.margin_ranking_loss(
            positive[:, None].expand_as(negative),
            negative,
            torch.ones_like(negative),
            margin=1.5,
            reduction=reduction,
        )
        got = formulas.margin(positive, negative, margin=1.5, reduction=reduction)
        assert got.item() == pytest.approx(expected.item())
    rows = formulas.margin(positive, negative, margin=1.5, reduction="none")
    assert rows.sum().item() == pytest.approx(expected.item())


def test_logistic_is_the_softplus_form():
    positive, negative = random_scores()
    terms = [math.log1p(math.exp(-s)) for s in positive.tolist()]
    terms += [math.log1p(math.exp(s)) for s in negative.flatten().tolist()]
    assert formulas.logistic(positive, negative, reduction="sum").item() == pytest.approx(
        sum(terms)
    )
    assert formulas.logistic(positive, negative).item() == pytest.approx(sum(terms) / len(terms))
    rows = formulas.logistic(positive, negative, reduction="none")
    assert rows.sum().item() == pytest.approx(sum(terms))


FORMULAS = pytest.mark.parametrize("formula", [formulas.nssa, formulas.margin, formulas.logistic])


@FORMULAS
def test_masked_negatives_take_no_part(formula):
    positive, negative = random_scores()
    keep = [0, 2]
    mask = torch.zeros(B, K, dtype=torch.bool)
    mask[:, keep] = True
    expected = formula(positive, negative[:, keep])
    assert formula(positive, negative, mask=mask).item() == pytest.approx(expected.item())
    negative = negative.masked_fill(~mask, 1e3).requires_grad_()
    formula(positive, negative, mask=mask).backward()
    assert not negative.grad[:, [1, 3]].any()
    mask[1] = False  # a row without negatives
    assert formula(positive, negative, mask=mask).isfinite()


@FORMULAS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_leading_axes_stay(formula, reduction):
    positive, negative = random_scores(2, 3)
    result = formula(positive, negative, reduction=reduction)
    assert result.shape == ((2, 3, B) if reduction == "none" else (2, 3))
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(
                result[i, j], formula(positive[i, j], negative[i, j], reduction=reduction)
            )


@FORMULAS
def test_extreme_scores_stay_finite(formula):
    positive = torch.tensor([-1e4, 1e4], requires_grad=True)
    negative = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    loss = formula(positive, negative)
    loss.backward()
    assert loss.isfinite()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()


@pytest.mark.parametrize("name", ["nssa", "margin", "logistic"])
@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
@SIDES
@pytest.mark.usefixtures("backend")
def test_a_loss_of_a_model_is_the_formula_of_its_scores(name, pool, side):
    model, triples, negatives = MODELS["rotate"](), some_triples(), some_negatives(pool)
    scores = losses.sampled_scores(model, triples, negatives, side)
    mask = torch.ones(B, K, dtype=torch.bool)
    mask[0, 1] = False
    got = getattr(losses, name)(model, triples, negatives, side=side, mask=mask)
    assert torch.equal(got, getattr(formulas, name)(*scores, mask=mask))


def test_a_weight_of_a_loss_reaches_it():
    model, triples, negatives = MODELS["transe"](), some_triples(), some_negatives()
    weights = losses.subsampling_weights(triples)
    scores = losses.sampled_scores(model, triples, negatives)
    got = losses.nssa(model, triples, negatives, alpha=0.3, weights=weights)
    assert torch.equal(got, formulas.nssa(*scores, alpha=0.3, weights=weights))


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


def test_labels_of_every_style():
    assert losses.smoothed_labels(0.0, "conve", 5) == (1.0, 0.0)
    assert losses.smoothed_labels(0.2, "torch", 5) == pytest.approx((0.8, 0.04))
    assert losses.smoothed_labels(0.2, "conve", 5) == pytest.approx((0.8, 0.2))
    assert losses.smoothed_labels(0.2, "pykeen", 5) == pytest.approx((0.75, 0.05))


MODULES = {
    "bce": (
        losses.BCELoss(label_smoothing=0.1, smoothing_style="conve", reduction="sum"),
        {"label_smoothing": 0.1, "smoothing_style": "conve", "reduction": "sum"},
    ),
    "cross_entropy": (losses.CrossEntropyLoss(label_smoothing=0.1), {"label_smoothing": 0.1}),
    "nssa": (losses.NSSALoss(alpha=0.5, reduction="none"), {"alpha": 0.5, "reduction": "none"}),
    "margin": (losses.MarginLoss(margin=3.0), {"margin": 3.0}),
    "logistic": (losses.LogisticLoss(reduction="sum"), {"reduction": "sum"}),
}


@pytest.mark.parametrize("name", MODULES)
@SIDES
def test_a_module_is_its_function(name, side):
    module, options = MODULES[name]
    model, triples = MODELS["rotate"](), some_triples()
    given = (triples, some_negatives())
    if name in ("bce", "cross_entropy"):
        given = query_of(triples, side)
    expected = getattr(losses, name)(model, *given, side=side, **options)
    assert torch.equal(module(model, *given, side=side), expected)
    assert not list(module.parameters())
    assert all(f"{key}={value!r}" in repr(module) for key, value in options.items())


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

    rows = losses.cross_entropy(Constant(), *torch.tensor([[0], [0], [2]]))
    assert rows.item() == pytest.approx(math.log(1 + math.e + math.e**2) - 2)


def bce_of(**change):
    anchors, relations, targets = query_of(some_triples(), "tail")
    given = {"anchors": anchors, "relations": relations, "positives": targets} | change
    return losses.bce(MODELS["rotate"](), **given)


def nssa_of(**change):
    given = {"triples": some_triples(), "negatives": some_negatives()} | change
    return losses.nssa(MODELS["rotate"](), **given)


def an_empty_row():
    return torch.tensor([0, 1, 2, 2, 3, 4, 5]), torch.arange(5)


def broken():
    model = MODELS["rotate"]().requires_grad_(False)
    model.entity[4, 1] = torch.nan
    return model


BAD = {
    "side": (lambda: bce_of(side="both"), ValueError, "side must be 'head' or 'tail'"),
    "reduction": (lambda: bce_of(reduction="max"), ValueError, "reduction must be one of mean"),
    "smoothing": (lambda: bce_of(label_smoothing=1.0), ValueError, r"must be in \[0, 1\); got 1.0"),
    "negative smoothing": (lambda: bce_of(label_smoothing=-0.1), ValueError, r"in \[0, 1\)"),
    "style": (lambda: bce_of(smoothing_style="keras"), ValueError, "smoothing_style must be one"),
    "anchors": (
        lambda: bce_of(anchors=torch.arange(B) + 6),
        ValueError,
        r"anchors\[5\] .* 0 .. 10",
    ),
    "relations": (
        lambda: bce_of(relations=torch.full((B,), R)),
        ValueError,
        r"relations\[0\] must be in 0 .. 2; got 3",
    ),
    "float anchors": (lambda: bce_of(anchors=torch.zeros(B)), TypeError, "anchors must be int64"),
    "fewer relations": (
        lambda: bce_of(relations=torch.zeros(2).long()),
        ValueError,
        r"relations must have shape \[6\]",
    ),
    "fewer positives": (
        lambda: bce_of(positives=torch.arange(2)),
        ValueError,
        r"positives must have shape \[6\]",
    ),
    "list of positives": (lambda: bce_of(positives=[1]), TypeError, "positives must be a tensor"),
    "no positives": (
        lambda: bce_of(positives=an_empty_row()),
        ValueError,
        "row 2 has no positives",
    ),
    "positive id": (
        lambda: bce_of(positives=torch.arange(B) + 6),
        ValueError,
        r"positive_indices\[5\] must be in 0 .. 10; got 11",
    ),
    "NaN": (
        lambda: losses.bce(broken(), *torch.zeros(3, 1).long()),
        ValueError,
        "candidates: row 4 holds a NaN",
    ),
    "NaN in cross entropy": (
        lambda: losses.cross_entropy(broken(), *torch.zeros(3, 1).long()),
        ValueError,
        "candidates: row 4 holds a NaN",
    ),
    "triples": (lambda: nssa_of(triples=torch.full((B, 3), 5)), ValueError, r"triples\[0\]"),
    "negatives": (lambda: nssa_of(negatives=[1, 2]), TypeError, "negatives must be an int64"),
    "float negatives": (lambda: nssa_of(negatives=torch.zeros(B, K)), TypeError, "an int64"),
    "rows of negatives": (
        lambda: nssa_of(negatives=torch.zeros(2, K).long()),
        ValueError,
        r"negatives must have shape \[6, K\], a row per triple, or \[K\]",
    ),
    "negatives elsewhere": (
        lambda: nssa_of(negatives=some_negatives().to("meta")),
        ValueError,
        "negatives must be on cpu",
    ),
    "negative id": (lambda: nssa_of(negatives=torch.full((B, K), N)), ValueError, "got 11"),
    "id in the pool": (
        lambda: nssa_of(negatives=torch.tensor([0, -3])),
        ValueError,
        r"negatives\[1\] must be in 0 .. 10; got -3",
    ),
    "alpha": (lambda: nssa_of(alpha=-1.0), ValueError, "alpha must be finite and at least 0"),
    "weights": (lambda: nssa_of(weights=torch.ones(2)), ValueError, r"weights must have shape \[6"),
    "mask": (lambda: nssa_of(mask=torch.ones(B, K)), ValueError, r"mask must be bool \[6, 4\]"),
    "margin": (
        lambda: formulas.margin(*random_scores(), margin=float("nan")),
        ValueError,
        "margin must be finite",
    ),
    "scores": (
        lambda: formulas.logistic(torch.zeros(2), torch.zeros(3, 4)),
        ValueError,
        r"positive must be \[..., B\] and negative \[..., B, K\]; got shapes \[2\] and \[3, 4\]",
    ),
    "dims": (
        lambda: losses.sampled_scores(
            MODELS["rotate"](), some_triples(), some_negatives(), dims=[7]
        ),
        ValueError,
        "dims must be in 1 .. 6; got 7",
    ),
    "shares": (lambda: losses.smoothed_labels(0.1, "pykeen", 1), ValueError, "more than 1 cand"),
    "module": (lambda: losses.BCELoss(label_smoothing=2.0), ValueError, r"in \[0, 1\)"),
    "module reduction": (lambda: losses.NSSALoss(reduction="max"), ValueError, "reduction must"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()

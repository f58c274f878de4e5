"""The formulas of kgfast.losses on scores alone: by definition, masked, stacked, extreme."""

import math

import pytest
import torch
from torch.nn import functional

from kgfast import losses
from support.loss_models import B, K, random_scores


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


# Each loss in plain arithmetic.


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
    formula = losses.NSSAFormula(alpha=alpha)
    got = formula.of_scores(positive, negative, weights)
    assert got.item() == pytest.approx(expected, rel=1e-12)
    rows = formula.of_scores(positive, negative, weights, reduction="none")
    total = formula.of_scores(positive, negative, weights, reduction="sum")
    assert rows.shape == (B,)
    assert total.item() == pytest.approx(rows.sum().item())
    assert total.item() == pytest.approx(expected * weights.sum().item())
    plain = formula.of_scores(positive, negative)
    assert plain.item() == pytest.approx(
        formula.of_scores(positive, negative, torch.ones(B)).item()
    )


def test_no_gradient_flows_through_the_weights_of_nssa():
    positive, negative = (it.requires_grad_() for it in random_scores())
    losses.NSSAFormula(alpha=2.0).of_scores(positive, negative, reduction="sum").backward()
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
        got = losses.MarginFormula(margin=1.5).of_scores(positive, negative, reduction=reduction)
        assert got.item() == pytest.approx(expected.item())
    rows = losses.MarginFormula(margin=1.5).of_scores(positive, negative, reduction="none")
    assert rows.sum().item() == pytest.approx(expected.item())


def test_logistic_is_the_softplus_form():
    positive, negative = random_scores()
    terms = [math.log1p(math.exp(-s)) for s in positive.tolist()]
    terms += [math.log1p(math.exp(s)) for s in negative.flatten().tolist()]
    formula = losses.LogisticFormula()
    total = formula.of_scores(positive, negative, reduction="sum")
    assert total.item() == pytest.approx(sum(terms))
    assert formula.of_scores(positive, negative).item() == pytest.approx(sum(terms) / len(terms))
    rows = formula.of_scores(positive, negative, reduction="none")
    assert rows.sum().item() == pytest.approx(sum(terms))


OF_NEGATIVES = [it.formula for it in losses.LOSSES.values() if it.formula.over == "negatives"]
FORMULAS = pytest.mark.parametrize("formula", OF_NEGATIVES)


@FORMULAS
def test_masked_negatives_take_no_part(formula):
    positive, negative = random_scores()
    keep = [0, 2]
    mask = torch.zeros(B, K, dtype=torch.bool)
    mask[:, keep] = True
    expected = formula().of_scores(positive, negative[:, keep])
    assert formula(mask=mask).of_scores(positive, negative).item() == pytest.approx(expected.item())
    negative = negative.masked_fill(~mask, 1e3).requires_grad_()
    formula(mask=mask).of_scores(positive, negative).backward()
    assert not negative.grad[:, [1, 3]].any()
    mask[1] = False  # a row without negatives
    assert formula(mask=mask).of_scores(positive, negative).isfinite()
    negative.grad = None
    loss = formula(mask=torch.zeros_like(mask)).of_scores(positive, negative)
    loss.backward()
    assert loss.isfinite()
    assert not negative.grad.any()


@FORMULAS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_leading_axes_stay(formula, reduction):
    positive, negative = random_scores(2, 3)
    result = formula().of_scores(positive, negative, reduction=reduction)
    assert result.shape == ((2, 3, B) if reduction == "none" else (2, 3))
    for i in range(2):
        for j in range(3):
            expected = formula().of_scores(positive[i, j], negative[i, j], reduction=reduction)
            torch.testing.assert_close(result[i, j], expected)


@FORMULAS
def test_extreme_scores_stay_finite(formula):
    positive = torch.tensor([-1e4, 1e4], requires_grad=True)
    negative = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    loss = formula().of_scores(positive, negative)
    loss.backward()
    assert loss.isfinite()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()

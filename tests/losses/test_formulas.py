"""Losses of sampled negatives on scores alone: by definition, masked, stacked, extreme."""

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

    def loss(weights, reduction="mean"):
        return losses.NSSALoss(alpha=alpha, reduction=reduction).of_scores(
            positive, negative, weights
        )

    got = loss(weights)
    assert got.item() == pytest.approx(expected, rel=1e-12)
    rows, total = loss(weights, "none"), loss(weights, "sum")
    assert rows.shape == (B,)
    assert total.item() == pytest.approx(rows.sum().item())
    assert total.item() == pytest.approx(expected * weights.sum().item())
    assert loss(None).item() == pytest.approx(loss(torch.ones(B)).item())


def test_no_gradient_flows_through_the_weights_of_nssa():
    positive, negative = (it.requires_grad_() for it in random_scores())
    losses.NSSALoss(alpha=2.0, reduction="sum").of_scores(positive, negative).backward()
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
        got = losses.MarginLoss(margin=1.5, reduction=reduction).of_scores(positive, negative)
        assert got.item() == pytest.approx(expected.item())
    rows = losses.MarginLoss(margin=1.5, reduction="none").of_scores(positive, negative)
    assert rows.sum().item() == pytest.approx(expected.item())


def test_logistic_is_the_softplus_form():
    positive, negative = random_scores()
    terms = [math.log1p(math.exp(-s)) for s in positive.tolist()]
    terms += [math.log1p(math.exp(s)) for s in negative.flatten().tolist()]
    for reduction, count in (("mean", len(terms)), ("sum", 1), ("none", 1)):
        got = losses.LogisticLoss(reduction=reduction).of_scores(positive, negative)
        assert got.sum().item() == pytest.approx(sum(terms) / count)


OF_NEGATIVES = [it for it in losses.LOSSES.values() if it.over == "negatives"]
EACH_LOSS = pytest.mark.parametrize("loss", OF_NEGATIVES)


@EACH_LOSS
def test_masked_negatives_take_no_part(loss):
    positive, negative = random_scores()
    keep = [0, 2]
    mask = torch.zeros(B, K, dtype=torch.bool)
    mask[:, keep] = True
    expected = loss().of_scores(positive, negative[:, keep])
    got = loss().of_scores(positive, negative, mask=mask)
    assert got.item() == pytest.approx(expected.item())
    negative = negative.masked_fill(~mask, 1e3).requires_grad_()
    loss().of_scores(positive, negative, mask=mask).backward()
    assert not negative.grad[:, [1, 3]].any()
    mask[1] = False  # a row without negatives
    assert loss().of_scores(positive, negative, mask=mask).isfinite()
    negative.grad = None
    none = loss().of_scores(positive, negative, mask=torch.zeros_like(mask))
    none.backward()
    assert none.isfinite()
    assert not negative.grad.any()


@EACH_LOSS
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_leading_axes_stay(loss, reduction):
    positive, negative = random_scores(2, 3)
    own = loss(reduction=reduction)
    result = own.of_scores(positive, negative)
    assert result.shape == ((2, 3, B) if reduction == "none" else (2, 3))
    for i in range(2):
        for j in range(3):
            expected = own.of_scores(positive[i, j], negative[i, j])
            torch.testing.assert_close(result[i, j], expected)


@EACH_LOSS
def test_extreme_scores_stay_finite(loss):
    positive = torch.tensor([-1e4, 1e4], requires_grad=True)
    negative = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    value = loss().of_scores(positive, negative)
    value.backward()
    assert value.isfinite()
    assert positive.grad.isfinite().all()
    assert negative.grad.isfinite().all()

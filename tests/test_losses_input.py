"""Bad input of kgfast.losses: what is wrong is named."""

import pytest
import torch

from kgfast import losses
from kgfast.losses import formulas
from loss_models import (
    MODELS,
    B,
    K,
    N,
    R,
    query_of,
    random_scores,
    some_negatives,
    some_triples,
)


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

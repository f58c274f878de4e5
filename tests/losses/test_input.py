"""Bad input of kgfast.losses: what is wrong is named."""

import pytest
import torch

from kgfast import MED, RotatE, losses, unchecked
from support.loss_models import MODELS, B, K, N, R, some_negatives, some_triples

SAMPLED = ("nssa", "margin", "logistic")
LOSSES = ("bce", "cross_entropy", *SAMPLED, "sampled_scores", "med")
TRIPLES, MASK = some_triples(), torch.ones(B, K, dtype=torch.bool)
COLUMNS, TARGETS = (TRIPLES[:, 0], TRIPLES[:, 1]), TRIPLES[:, 2]
PAST = torch.arange(B) + 6
EMPTY_ROW = torch.tensor([0, 1, 2, 2, 3, 4, 5]), torch.arange(5)


def call(name, model=None, triples=TRIPLES, **change):
    """Call a loss of a model, with negatives where it takes some."""
    takes_negatives = name not in ("bce", "cross_entropy")
    negatives = [change.pop("negatives", some_negatives())] if takes_negatives else []
    if model is None:
        model = MED(RotatE.init(N, R, 4, seed=0), [2, 4]) if name == "med" else MODELS["rotate"]()
    return getattr(losses, name)(model, triples, *negatives, **change)


def broken():
    model = MODELS["rotate"]().requires_grad_(False)
    model.entity[4, 1] = torch.nan
    return model


VALUES = [  # a loss, a change, the message
    ("bce", {"side": "both"}, "side must be 'head' or 'tail'"),
    ("bce", {"label_smoothing": 1.0}, r"must be in \[0, 1\); got 1.0"),
    ("bce", {"smoothing_style": "keras"}, "smoothing_style must be one"),
    ("bce", {"triples": (PAST, COLUMNS[1])}, r"anchors\[5\] .* 0 .. 10"),
    ("bce", {"triples": (COLUMNS[0], torch.full((B,), R))},
     r"relations\[0\] must be in 0 .. 2; got 3"),
    ("bce", {"triples": (COLUMNS[0], torch.zeros(2).long())}, r"relations must have shape \[6\]"),
    ("bce", {"positives": torch.arange(2)}, r"positives must have shape \[6\]"),
    ("bce", {"positives": EMPTY_ROW}, "row 2 has no positives"),
    ("bce", {"positives": PAST}, r"positive_indices\[5\] must be in 0 .. 10; got 11"),
    ("bce", {"triples": COLUMNS}, r"positives: \(anchors, relations\) have no targets; give pos"),
    ("bce", {"model": broken()}, "candidates: row 4 holds a NaN"),
    ("cross_entropy", {"model": broken()}, "candidates: row 4 holds a NaN or"),
    ("cross_entropy", {"triples": COLUMNS}, "targets: .* have no targets"),
    ("cross_entropy", {"precision": "fp8"}, "precision must be one of"),
    ("nssa", {"triples": torch.full((B, 3), 5)}, r"triples\[0\]"),
    ("nssa", {"negatives": torch.zeros(2, K).long()}, r"negatives must have shape \[6, \*\]"),
    ("nssa", {"negatives": some_negatives().to("meta")}, "negatives must be on cpu"),
    ("nssa", {"negatives": torch.full((B, K), N)}, "got 11"),
    ("nssa", {"negatives": torch.tensor([0, -3])}, r"negatives\[1\] must be in 0 .. 10; got -3"),
    ("nssa", {"alpha": -1.0}, "alpha must be finite and at least 0"),
    ("nssa", {"mask": MASK[:, :2]}, r"mask must have shape \[6, 4\]"),
    ("nssa", {"mask": MASK.to("meta")}, "mask must be on cpu"),
    ("nssa", {"triples": COLUMNS}, r"triples: .* have no targets"),
    ("nssa", {"triples": (PAST,) * 4}, r"triples must be \[B, 3\], .*; got a tuple of 4"),
    ("nssa", {"triples": (*COLUMNS, PAST[:2])}, r"targets must have shape \[6\]"),
    ("nssa", {"triples": (*COLUMNS, PAST)}, r"targets\[5\] must be in 0 .. 10; got 11"),
    ("margin", {"margin": float("nan")}, "margin must be finite"),
    ("margin", {"weights": torch.ones(B)}, "MarginLoss takes no weights"),
    ("med", {"mask": MASK[:, :2]}, r"mask must have shape \[6, 4\]"),
    ("sampled_scores", {"dims": [7]}, "dims must be in 1 .. 6; got 7"),
    *((name, {"reduction": "max"}, "^reduction must be one of mean") for name in SAMPLED),
]  # fmt: skip
TYPES = [
    ("bce", {"triples": (torch.zeros(B), COLUMNS[1])}, "anchors must be int64"),
    ("bce", {"positives": [1]}, "positives must be a tensor"),
    ("bce", {"label_smoothing": "x"}, "^label_smoothing must be a number"),
    ("nssa", {"negatives": [1, 2]}, "negatives must be a tensor; got list"),
    ("nssa", {"negatives": torch.zeros(B, K)}, "must be int64"),
    ("nssa", {"negatives": some_negatives().to_sparse()}, "^negatives must be dense"),
    ("nssa", {"triples": (*COLUMNS, [1] * B)}, "targets must be a tensor; got list"),
    ("nssa", {"alpha": "x"}, "^alpha must be a number"),
    ("margin", {"margin": [1.0]}, "^margin must be a number"),
    *((name, {"mask": MASK.float()}, "mask must be bool") for name in (*SAMPLED, "med")),
    *((name, {"mask": [True]}, "^mask must be a tensor; got list") for name in (*SAMPLED, "med")),
    *((name, {"mask": MASK.to_sparse()}, "^mask must be dense") for name in SAMPLED),
    *((name, {"model": model}, "^model must (have score|be a MED; got)")
      for name in LOSSES for model in (3, "x", object(), torch.ones(3, 3))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "name", "change", "message"),
    [(error, *case) for error, table in ((ValueError, VALUES), (TypeError, TYPES))
     for case in table],
)  # fmt: skip
def test_bad_input_is_named(error, name, change, message):
    with pytest.raises(error, match=message) as caught:
        call(name, **change)
    assert "\n" not in str(caught.value)


def test_more_than_one_candidate_is_needed_for_labels_of_pykeen():
    with pytest.raises(ValueError, match="more than 1 cand"):
        losses.smoothed_labels(0.1, "pykeen", 1)


@pytest.mark.parametrize("name", ["nssa", "cross_entropy"])
def test_weights_of_another_kind(name):
    weights, loss = torch.ones(B), losses.NSSALoss()
    for error, message, wrong in (
        (TypeError, "^weights must be a tensor; got", [1.0]),
        (TypeError, "^weights must be dense", weights.to_sparse()),
        (TypeError, "^weights must be real", weights.cfloat()),
        (ValueError, "^weights must be on cpu", weights.to("meta")),
        (ValueError, f"^weights must have shape .{B}.; got .2", weights[:2]),
    ):
        with pytest.raises(error, match=message):
            call(name, weights=wrong)
    for wrong in (-0.5, torch.nan, torch.inf, -torch.inf):
        weights[2] = wrong
        message = f"^weights.2. must be finite and at least 0; got {wrong:g}"
        with pytest.raises(ValueError, match=message):
            call(name, weights=weights)
        with pytest.raises(ValueError, match=message):
            loss.of_scores(weights.new_zeros(B), weights.new_zeros(B, K), weights)
        with unchecked():
            assert call(name, weights=weights).ndim == 0


NOTHING, POOL = torch.empty(0, 3, dtype=torch.int64), torch.tensor([0, 1])
OF_NOTHING = [
    *((name, (NOTHING, NOTHING), {}) for name in (*SAMPLED, "med")),
    *((name, (NOTHING, POOL), {}) for name in (*SAMPLED, "med")),
    *((name, (NOTHING,), {}) for name in ("bce", "cross_entropy", "n3", "l2", "dura")),
    ("nssa", (NOTHING, NOTHING), {"weights": torch.empty(0)}),
    ("nssa", (TRIPLES, some_negatives()), {"weights": torch.zeros(B)}),
    ("cross_entropy", (NOTHING,), {"weights": torch.empty(0)}),
    ("cross_entropy", (TRIPLES,), {"weights": torch.zeros(B)}),
    ("margin", (TRIPLES, some_negatives()), {"mask": ~MASK}),
]


@pytest.mark.parametrize(("name", "batch", "given"), OF_NOTHING)
@pytest.mark.usefixtures("backend")
def test_a_mean_over_nothing_is_0(name, batch, given):
    model = MED(RotatE.init(N, R, 4, seed=0), [2, 4]) if name == "med" else MODELS["distmult"]()
    holder = losses if hasattr(losses, name) else losses.regularizers
    loss = getattr(holder, name)(model, *batch, **given)
    assert loss.item() == 0
    loss.backward()
    assert all(it.grad is None or not it.grad.any() for it in model.parameters())


@pytest.mark.parametrize("name", SAMPLED)
def test_scores_of_another_kind(name):
    positive, negative = torch.ones(B), torch.ones(B, K)
    for error, message, *scores in (
        (TypeError, "^positive must be a tensor; got", None, negative),
        (TypeError, "^negative must be a tensor; got", positive, [1.0]),
        (TypeError, "^positive must be dense", positive.to_sparse(), negative),
        (TypeError, "^negative must be floating point", positive, negative.long()),
        (ValueError, "^negative must be on cpu", positive, negative.to("meta")),
        (ValueError, r"got shapes \[2\] and \[3, 4\]", torch.zeros(2), torch.zeros(3, 4)),
    ):
        with pytest.raises(error, match=message):
            losses.LOSSES[name]().of_scores(*scores)

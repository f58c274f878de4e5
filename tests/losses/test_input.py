"""Bad input of kgfast.losses: what is wrong is named."""

from functools import partial

import pytest
import torch

from kgfast import MED, RotatE, losses, unchecked
from support.loss_models import (
    MODELS,
    B,
    K,
    N,
    R,
    query_of,
    some_negatives,
    some_triples,
)
from support.mistakes import each_of


def bce_of(**change):
    anchors, relations, targets = query_of(some_triples(), "tail")
    given = {"anchors": anchors, "relations": relations, "positives": targets} | change
    queries = given.pop("anchors"), given.pop("relations")
    return losses.bce(MODELS["rotate"](), queries, **given)


def nssa_of(**change):
    given = {"triples": some_triples(), "negatives": some_negatives()} | change
    return losses.nssa(MODELS["rotate"](), **given)


def broken():
    model = MODELS["rotate"]().requires_grad_(False)
    model.entity[4, 1] = torch.nan
    return model


def with_targets(targets):
    return {"triples": (*some_triples().T[:2], targets)}


PAST = torch.arange(B) + 6
EMPTY_ROW = torch.tensor([0, 1, 2, 2, 3, 4, 5]), torch.arange(5)
OF_BCE = {
    "side must be 'head' or 'tail'": {"side": "both"},
    "reduction must be one of mean": {"reduction": "max"},
    r"must be in \[0, 1\); got 1.0": {"label_smoothing": 1.0},
    r"in \[0, 1\); got -0.1": {"label_smoothing": -0.1},
    "smoothing_style must be one": {"smoothing_style": "keras"},
    r"anchors\[5\] .* 0 .. 10": {"anchors": PAST},
    r"relations\[0\] must be in 0 .. 2; got 3": {"relations": torch.full((B,), R)},
    r"relations must have shape \[6\]": {"relations": torch.zeros(2).long()},
    r"positives must have shape \[6\]": {"positives": torch.arange(2)},
    "row 2 has no positives": {"positives": EMPTY_ROW},
    r"positive_indices\[5\] must be in 0 .. 10; got 11": {"positives": PAST},
    r"positives: \(anchors, relations\) have no targets; give pos.*, or tri": {"positives": None},
}
OF_NSSA = {
    r"triples\[0\]": {"triples": torch.full((B, 3), 5)},
    r"negatives must have shape \[6, \*\]": {"negatives": torch.zeros(2, K).long()},
    "negatives must be on cpu": {"negatives": some_negatives().to("meta")},
    "got 11": {"negatives": torch.full((B, K), N)},
    r"negatives\[1\] must be in 0 .. 10; got -3": {"negatives": torch.tensor([0, -3])},
    "alpha must be finite and at least 0": {"alpha": -1.0},
    r"mask must have shape \[6, 4\]": {"mask": torch.ones(B, 2, dtype=torch.bool)},
    r"triples: .* have no targets": {"triples": tuple(some_triples().T[:2])},
    r"triples must be \[B, 3\], .*; got a tuple of 4": {"triples": (torch.zeros(B).long(),) * 4},
    r"targets must have shape \[6\]": with_targets(torch.arange(2)),
    r"targets\[5\] must be in 0 .. 10; got 11": with_targets(PAST),
}
TYPES_OF_BCE = {
    "anchors must be int64": {"anchors": torch.zeros(B)},
    "positives must be a tensor": {"positives": [1]},
}
TYPES_OF_NSSA = {
    "negatives must be a tensor; got list": {"negatives": [1, 2]},
    "must be int64": {"negatives": torch.zeros(B, K)},
    "targets must be a tensor; got list": with_targets([1] * B),
    "mask must be bool": {"mask": torch.ones(B, K)},
}


def calls(function, changes):
    return {message: partial(function, **change) for message, change in changes.items()}


BAD = {
    ValueError: {
        **calls(bce_of, OF_BCE),
        **calls(nssa_of, OF_NSSA),
        r"must be in \[0, 1\); got 2.0": lambda: losses.BCELoss(label_smoothing=2.0),
        "candidates: row 4 holds a NaN": lambda: losses.bce(broken(), [(0, 0, 0)]),
        "candidates: row 4 holds a NaN or": lambda: losses.cross_entropy(broken(), [(0, 0, 0)]),
        "margin must be finite": lambda: losses.MarginLoss(margin=float("nan")),
        r"must be \[..., B\] and negative \[..., B, K\]; got shapes \[2\] and \[3, 4\]": lambda: (
            losses.LogisticLoss().of_scores(torch.zeros(2), torch.zeros(3, 4))
        ),
        "dims must be in 1 .. 6; got 7": lambda: losses.sampled_scores(
            MODELS["rotate"](), some_triples(), some_negatives(), dims=[7]
        ),
        "more than 1 cand": lambda: losses.smoothed_labels(0.1, "pykeen", 1),
        "alpha must be finite": lambda: losses.NSSALoss(alpha=-1.0),
        "precision must be one of": lambda: losses.CrossEntropyLoss(precision="fp8"),
        "smoothing_style mu": lambda: losses.BCELoss(smoothing_style="x"),
        "targets: .* have no targets": lambda: losses.cross_entropy(
            MODELS["rotate"](), query_of(some_triples(), "tail")[:2]
        ),
        "MarginLoss takes no weights": lambda: losses.MarginLoss().of_scores(
            torch.ones(B), torch.ones(B, K), torch.ones(B)
        ),
        "reduction must": lambda: losses.NSSALoss(reduction="max"),
    },
    TypeError: {
        **calls(bce_of, TYPES_OF_BCE),
        **calls(nssa_of, TYPES_OF_NSSA),
        "margin must be a number": lambda: losses.MarginLoss(margin="x"),
    },
}


@each_of(BAD)
def test_bad_input_is_named(error, message, call):
    with pytest.raises(error, match=message):
        call()


def call_of(name, model=None, **change):
    """Call a loss of a model, with negatives where it takes some."""
    takes_negatives = name not in ("bce", "cross_entropy")
    negatives = [change.pop("negatives", some_negatives())] if takes_negatives else []
    if model is None:
        model = MED(RotatE.init(N, R, 4, seed=0), [2, 4]) if name == "med" else MODELS["rotate"]()
    return getattr(losses, name)(model, some_triples(), *negatives, **change)


LOSSES = "bce", "cross_entropy", "nssa", "margin", "logistic", "sampled_scores", "med"
CALLS = {name: partial(call_of, name) for name in LOSSES}
SAMPLED = ("nssa", "margin", "logistic")


def refused(error, message, call, *args, **given):
    with pytest.raises(error, match=message) as caught:
        call(*args, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("model", [3, "x", object(), torch.ones(3, 3)])
def test_what_is_no_model(name, model):
    refused(TypeError, "^model must (have score|be a MED; got)", CALLS[name], model)


@pytest.mark.parametrize("name", [*SAMPLED, "med"])
def test_masks_of_another_kind(name):
    for value in ([True], "x", 3):
        kind = type(value).__name__
        refused(TypeError, f"^mask must be a tensor; got {kind}", CALLS[name], mask=value)
    mask = torch.ones(B, K, dtype=torch.bool)
    refused(TypeError, "^mask must be dense", CALLS[name], mask=mask.to_sparse())
    refused(ValueError, "^mask must be on cpu", CALLS[name], mask=mask.to("meta"))
    sparse = some_negatives().to_sparse()
    refused(TypeError, "^negatives must be dense", CALLS[name], negatives=sparse)


@pytest.mark.parametrize("name", ["nssa", "cross_entropy"])
def test_weights_of_another_kind(name):
    call, weights = CALLS[name], torch.ones(B)
    for value in ([1.0], "x", 3):
        refused(TypeError, "^weights must be a tensor; got", call, weights=value)
    refused(TypeError, "^weights must be dense", call, weights=weights.to_sparse())
    refused(ValueError, "^weights must be on cpu", call, weights=weights.to("meta"))
    refused(TypeError, "^weights must be real", call, weights=weights.cfloat())
    refused(ValueError, f"^weights must have shape .{B}.; got .2", call, weights=weights[:2])
    for wrong in (-0.5, torch.nan, torch.inf, -torch.inf):
        weights[2] = wrong
        message = f"^weights.2. must be finite and at least 0; got {wrong:g}"
        refused(ValueError, message, call, weights=weights)
        scores = weights.new_zeros(B), weights.new_zeros(B, K)
        refused(ValueError, message, losses.NSSALoss().of_scores, *scores, weights)
        with unchecked():
            assert call(weights=weights).ndim == 0


NOTHING, POOL, ALL = torch.empty(0, 3, dtype=torch.int64), torch.tensor([0, 1]), some_triples()
OF_NOTHING = {
    **{name: ((NOTHING, NOTHING), {}) for name in (*SAMPLED, "med")},
    **{f"{name} pool": ((NOTHING, POOL), {}) for name in (*SAMPLED, "med")},
    **{name: ((NOTHING,), {}) for name in ("bce", "cross_entropy")},
    **{name: ((NOTHING,), {}) for name in ("n3", "l2", "dura")},
    "nssa weights": ((NOTHING, NOTHING), {"weights": torch.empty(0)}),
    "nssa zeros": ((ALL, some_negatives()), {"weights": torch.zeros(B)}),
    "cross_entropy weights": ((NOTHING,), {"weights": torch.empty(0)}),
    "cross_entropy zeros": ((ALL,), {"weights": torch.zeros(B)}),
    "margin masked": ((ALL, some_negatives()), {"mask": torch.zeros(B, K, dtype=torch.bool)}),
}


@pytest.mark.parametrize("name", OF_NOTHING)
@pytest.mark.usefixtures("backend")
def test_a_mean_over_nothing_is_0(name):
    is_med = name.startswith("med")
    model = MED(RotatE.init(N, R, 4, seed=0), [2, 4]) if is_med else MODELS["distmult"]()
    (batch, given), function = OF_NOTHING[name], name.split()[0]
    holder = losses if hasattr(losses, function) else losses.regularizers
    loss = getattr(holder, function)(model, *batch, **given)
    assert loss.item() == 0
    loss.backward()
    assert all(it.grad is None or not it.grad.any() for it in model.parameters())


@pytest.mark.parametrize("name", SAMPLED)
def test_scores_of_another_kind(name):
    loss = losses.LOSSES[name]().of_scores
    positive, negative = torch.ones(B), torch.ones(B, K)
    for value in ("x", 3, None, [1.0]):
        refused(TypeError, "^positive must be a tensor; got", loss, value, negative)
        refused(TypeError, "^negative must be a tensor; got", loss, positive, value)
    refused(TypeError, "^positive must be dense", loss, positive.to_sparse(), negative)
    refused(TypeError, "^negative must be floating point", loss, positive, negative.long())
    refused(ValueError, "^negative must be on cpu", loss, positive, negative.to("meta"))


def test_numbers_are_named_before_anything_is_computed():
    class Never(Exception):
        pass

    model = MODELS["rotate"]()
    model.queries = lambda *_: (_ for _ in ()).throw(Never)
    for value in ("x", None, [1.0]):
        refused(TypeError, "^alpha must be a number", CALLS["nssa"], model, alpha=value)
        refused(TypeError, "^margin must be a number", CALLS["margin"], model, margin=value)
    for name in SAMPLED:
        refused(ValueError, "^reduction must be one", CALLS[name], model, reduction="max")
    refused(TypeError, "^label_smoothing must be a number", bce_of, label_smoothing="x")
    refused(ValueError, "^smoothing_style must be one of", bce_of, smoothing_style=[])

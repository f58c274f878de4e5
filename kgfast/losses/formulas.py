"""Losses of scores that are already there, and the labels and weights of the field.

``positive`` is ``[..., B]``, ``negative`` ``[..., B, K]``; leading axes (crops of croppable
embeddings) stay in the result. Models enter in :mod:`kgfast.losses.functional`.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kgfast import ops
from kgfast.graph import as_triples_tensor
from kgfast.kernels.negatives import NegativeLoss
from kgfast.ops.checks import check_bounded, check_device, check_tensor
from kgfast.ops.losses import check_smoothing

Reduction = Literal["mean", "sum", "none"]
SmoothingStyle = Literal["torch", "conve", "pykeen"]

_REDUCTIONS = ("mean", "sum", "none")
_FIRST_COUNT = 3  # the official code starts at 4 when it first meets a pair


def nssa(
    positive: Tensor,
    negative: Tensor,
    *,
    alpha: float = 1.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Self-adversarial negative sampling of scores (Sun et al. 2019, eq. 5-6; official code).

    With ``p_i = softmax_i(alpha * negative_i)``, through which no gradient flows::

        row = -1/2 (log sigmoid(positive) + sum_i p_i log sigmoid(-negative_i))

    and the mean weighted by ``weights``.

    Parameters
    ----------
    positive, negative : Tensor
        ``[..., B]`` and ``[..., B, K]``, gamma included.
    alpha : float
        Temperature, at least 0; 0 weighs all negatives alike.
    weights : Tensor, optional
        ``[B]``, as of :func:`subsampling_weights`.
    mask : Tensor, optional
        bool ``[B, K]``: False where a negative takes no part.
    reduction : {"mean", "sum", "none"}
        Weighted mean, weighted sum, or weighted rows.

    Returns
    -------
    Tensor
        ``[...]``, or ``[..., B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit each other, a negative alpha, an unknown reduction.

    Examples
    --------
    >>> nssa(torch.tensor([1.0]), torch.tensor([[0.0, 2.0]]), alpha=0.5)
    tensor(1.0273)
    """
    _check_scores(positive, negative, mask)
    check_bounded("alpha", alpha, 0)
    check_reduction(reduction)
    if weights is not None:
        check_weights(weights, positive)
    loss = NegativeLoss("nssa", alpha, mask)
    return reduced(loss, negatives_of(loss, positive, negative), weights, reduction)


def margin(
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 1.0,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Margin ranking loss of scores (Bordes et al. 2013, eq. 1).

    ``max(0, margin - positive_b + negative_bi)`` for every pair of a positive and one of its
    negatives.

    Parameters
    ----------
    positive, negative, mask
        As in :func:`nssa`. Gamma cancels.
    margin : float
        Finite.
    reduction : {"mean", "sum", "none"}
        Mean or sum over pairs, or the rows' sums; 0 where no pair takes part.

    Returns
    -------
    Tensor
        ``[...]``, or ``[..., B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit each other, or an unknown reduction.

    Examples
    --------
    >>> margin(torch.tensor([1.0]), torch.tensor([[0.5, -3.0]]), margin=1.0)
    tensor(0.2500)
    """
    _check_scores(positive, negative, mask)
    check_bounded("margin", margin)
    check_reduction(reduction)
    loss = NegativeLoss("margin", margin, mask)
    return reduced(loss, negatives_of(loss, positive, negative), None, reduction)


def logistic(
    positive: Tensor,
    negative: Tensor,
    *,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Logistic loss of scores (Trouillon et al. 2016, eq. 10, without its regulariser).

    ``log(1 + exp(-y s))`` for every positive (y = 1) and negative (y = -1).

    Parameters
    ----------
    positive, negative, mask
        As in :func:`nssa`.
    reduction : {"mean", "sum", "none"}
        Mean or sum over positives and negatives together, or the rows' sums.

    Returns
    -------
    Tensor
        ``[...]``, or ``[..., B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit each other, or an unknown reduction.

    Examples
    --------
    >>> import math
    >>> logistic(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]), reduction="sum") / math.log(2)
    tensor(3.)
    """
    _check_scores(positive, negative, mask)
    check_reduction(reduction)
    loss = NegativeLoss("logistic", mask=mask)
    return reduced(loss, negatives_of(loss, positive, negative), None, reduction)


class NegativeTerms(NamedTuple):
    """Scores of positives, and what the negatives of each add to its loss, ``[..., B]``.

    Attributes
    ----------
    positive, rows : Tensor
    num_negatives : Tensor or int
        Negatives that take part, over the rows.
    """

    positive: Tensor
    rows: Tensor
    num_negatives: Tensor | int


def negatives_of(loss: NegativeLoss, positive: Tensor, negative: Tensor) -> NegativeTerms:
    """What scores ``negative [..., B, K]`` add, by operators of torch where nothing fuses them."""
    mask = loss.mask
    if loss.formula == "nssa":
        rows = _adversarial(negative, loss.parameter, mask)
    elif loss.formula == "margin":
        terms = (loss.parameter - positive[..., None] + negative).relu()
        rows = _masked(terms, mask).sum(-1)
    else:
        rows = -_masked(functional.logsigmoid(-negative), mask).sum(-1)
    return NegativeTerms(positive, rows, _count(negative, mask))


def reduced(
    loss: NegativeLoss, made: NegativeTerms, weights: Tensor | None, reduction: Reduction
) -> Tensor:
    """The loss of rows whose negatives were reduced."""
    positive, rows, count = made
    if loss.formula == "nssa":
        return _weighted((rows - functional.logsigmoid(positive)) / 2, weights, reduction)
    if loss.formula == "margin":
        # Of no pair at all the mean is 0, not 0 / 0.
        least = count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)
        return _summed(rows, least, reduction)
    rows = rows - functional.logsigmoid(positive)
    return _summed(rows, count + positive.shape[-1], reduction)


def smoothed_labels(
    label_smoothing: float, style: SmoothingStyle, num_candidates: int
) -> tuple[float, float]:
    """Labels of binary cross entropy as ``a y + c``, in the conventions of the field.

    ========== ====================== =============
    style      a                      c
    ========== ====================== =============
    ``torch``  1 - eps                eps / N
    ``conve``  1 - eps                1 / N
    ``pykeen`` 1 - eps - eps/(N - 1)  eps / (N - 1)
    ========== ====================== =============

    ``conve`` (Dettmers et al. 2018, official code; LibKGE) adds 1/N whatever eps is above 0;
    without smoothing every style has labels 0 and 1.

    Parameters
    ----------
    label_smoothing : float
        eps, in ``[0, 1)``.
    style : {"torch", "conve", "pykeen"}
        The convention.
    num_candidates : int
        N.

    Returns
    -------
    a, c : float

    Raises
    ------
    ValueError, TypeError
        For a smoothing that is no number or outside ``[0, 1)`` or an unknown style.

    Examples
    --------
    >>> smoothed_labels(0.1, "conve", 4)
    (0.9, 0.25)
    """
    check_smoothing(label_smoothing)
    styles = {
        "torch": (label_smoothing, num_candidates),
        "conve": (1.0, num_candidates),
        "pykeen": (label_smoothing, num_candidates - 1),
    }
    if style not in list(styles):
        raise ValueError(f"smoothing_style must be one of {', '.join(styles)}; got {style!r}")
    if not label_smoothing:
        return 1.0, 0.0
    mass, shares = styles[style]
    if shares < 1:
        raise ValueError(f"smoothing_style {style!r} needs more than {num_candidates} candidates")
    c = mass / shares
    return 1 - label_smoothing - (c if style == "pykeen" else 0.0), c


def subsampling_weights(triples: Any) -> Tensor:
    """Weights of training triples by how rare their pairs are (Sun et al. 2019, official code).

    ``sqrt(1 / (count(h, r) + count(r, t)))``, counts over the given triples that begin at 4 with
    the first occurrence; the idea is word2vec's (Mikolov et al. 2013).

    Parameters
    ----------
    triples : Triples, Tensor or array
        int64 ``[T, 3]``.

    Returns
    -------
    Tensor
        float32 ``[T]``.

    Examples
    --------
    >>> subsampling_weights([(0, 0, 1), (0, 0, 2)])
    tensor([0.3333, 0.3333])
    """
    hrt = as_triples_tensor(triples)
    counts = _pair_counts(hrt[:, :2]) + _pair_counts(hrt[:, 1:])
    return counts.double().rsqrt().float()


def _pair_counts(pairs: Tensor) -> Tensor:
    _, group, counts = pairs.unique(dim=0, return_inverse=True, return_counts=True)
    occurrences: Tensor = counts[group]
    return occurrences + _FIRST_COUNT


def _check_scores(positive: Tensor, negative: Tensor, mask: Tensor | None) -> None:
    for name, scores in (("positive", positive), ("negative", negative)):
        check_tensor(name, scores)
        if not scores.is_floating_point():
            raise TypeError(f"{name} must be floating point; got {scores.dtype}")
    if negative.ndim < 2 or positive.shape != negative.shape[:-1]:
        raise ValueError(
            "positive must be [..., B] and negative [..., B, K]; got shapes "
            f"{list(positive.shape)} and {list(negative.shape)}"
        )
    check_device("negative", negative, positive, "positive scores")
    if mask is not None:
        check_taking_part(mask, negative)


def check_taking_part(mask: Tensor, negative: Tensor, shape: Sequence[int] | None = None) -> None:
    """That a mask says of every negative ``[..., B, K]`` whether it takes part.

    ``shape``: ``[B, K]``, where ``negative`` has another and says the device alone.
    """
    check_tensor("mask", mask)
    wanted = list(negative.shape[-2:] if shape is None else shape)
    if mask.dtype != torch.bool or list(mask.shape) != wanted:
        raise ValueError(f"mask must be bool {wanted}; got {mask.dtype} {list(mask.shape)}")
    check_device("mask", mask, negative, "scores")


def check_weights(weights: Tensor, positive: Tensor) -> None:
    """That they are one for each positive."""
    check_tensor("weights", weights)
    if weights.is_complex():
        raise TypeError(f"weights must be real; got {weights.dtype}")
    if weights.shape != positive.shape[-1:]:
        count = positive.shape[-1]
        raise ValueError(f"weights must have shape [{count}]; got {list(weights.shape)}")
    check_device("weights", weights, positive, "scores")


def _adversarial(negative: Tensor, alpha: float, mask: Tensor | None) -> Tensor:
    """``sum_i p_i softplus(negative_i)`` of each row, ``[..., B]``."""
    if mask is None and ops.serves_adversarial(negative):
        return ops.adversarial_rows(negative.flatten(0, -2), alpha).view(negative.shape[:-1])
    logits = alpha * negative.detach()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    probability = logits.softmax(-1)
    if mask is not None:  # a row without negatives has no softmax
        probability = probability.masked_fill(~mask, 0.0)
    return -(probability * functional.logsigmoid(-negative)).sum(-1)


def _masked(terms: Tensor, mask: Tensor | None) -> Tensor:
    return terms if mask is None else terms.masked_fill(~mask, 0.0)


def _count(negative: Tensor, mask: Tensor | None) -> Tensor | int:
    """Negatives that take part, over the rows."""
    return negative.shape[-2] * negative.shape[-1] if mask is None else mask.sum()


def _weighted(rows: Tensor, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """Rows ``[..., B]`` reduced with weights ``[B]``."""
    if weights is None:
        return _summed(rows, rows.shape[-1], reduction)
    return _summed(rows * weights, weights.sum(), reduction)


def _summed(rows: Tensor, count: Tensor | float, reduction: Reduction) -> Tensor:
    """Rows ``[..., B]`` as they are, their sum, or that divided by what they count for."""
    if reduction == "none":
        return rows
    total = rows.sum(-1)
    return total if reduction == "sum" else total / count


def check_reduction(reduction: str) -> None:
    """Check the name of a reduction."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}; got {reduction!r}")

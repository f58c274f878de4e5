"""Formulas of losses: hyperparameters, terms of scores, and the mean.

Every loss follows one rule. A mean divides by the number of terms, or by the sum of weights, which
are finite and at least 0. A mean over nothing is 0, with zeros for gradients: over no row, over no
pair that takes part, and over weights that are all 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.kernels.checks import checks_values
from kgfast.kernels.negatives import NegativeLoss
from kgfast.kernels.negatives import Reduction as Reduction
from kgfast.ops.checks import check_device, check_precision, check_tensor
from kgfast.ops.losses import check_smoothing

Precision = Literal["float32", "bf16"]

_REDUCTIONS = ("mean", "sum", "none")
_OF_A_BATCH = ("mask",)  # fields that are no hyperparameters


@dataclass(frozen=True, kw_only=True)
class LossFormula:
    """Base of hyperparameters of a loss, which are checked when given."""

    # The loss compares a target with all entities, with sampled negatives, or with both for the
    # sub-models of croppable embeddings.
    over: ClassVar[Literal["entities", "negatives", "crops"]]

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check the hyperparameters."""

    @classmethod
    def hyperparameters(cls) -> tuple[str, ...]:
        """Return the names of the hyperparameters."""
        return tuple(it.name for it in fields(cls) if it.name not in _OF_A_BATCH)


class Reducing(NamedTuple):
    """Reduction of the losses of rows, with weights ``[B]``."""

    reduction: Reduction = "mean"
    weights: Tensor | None = None


class NegativeTerms(NamedTuple):
    """Scores of positives, and the terms that negatives add to the loss of each positive."""

    positive: Tensor
    rows: Tensor
    num_negatives: Tensor | int  # negatives that take part, over all rows


@dataclass(frozen=True, kw_only=True)
class NegativesFormula(LossFormula, ABC):
    """Base of losses of positives and of negatives sampled for them.

    Attributes
    ----------
    mask : Tensor, optional
        bool ``[B, K]`` for a batch: False where a negative takes no part.
    mean_over : {"rows", "pairs", "scores"}
        Divisor of a mean: the number of positives (default), of pairs of a positive and a negative,
        or of positives and negatives together.
    takes_weights : bool
        True if positives may have weights.
    """

    over = "negatives"
    mean_over: ClassVar[Literal["rows", "pairs", "scores"]] = "rows"
    takes_weights: ClassVar[bool] = False
    # True if the class itself defines fused(), not only a base
    defines_fused: ClassVar[bool] = False
    mask: Tensor | None = None

    def __init_subclass__(cls) -> None:
        cls.defines_fused = "fused" in vars(cls)

    @abstractmethod
    def of_negatives(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the sum of negatives ``[..., B, K]`` in the loss of each positive ``[..., B]``."""

    @abstractmethod
    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        """Return the loss of each positive, ``[..., B]``, given the sum that negatives add."""

    def fused(self) -> NegativeLoss | None:
        """Return the form that backends fuse; None if there is none.

        A subclass has none unless the subclass defines this method: the equation may differ.
        """
        return None

    def of_scores(
        self,
        positive: Tensor,
        negative: Tensor,
        weights: Tensor | None = None,
        reduction: Reduction = "mean",
    ) -> Tensor:
        """Return the loss of given scores.

        Parameters
        ----------
        positive, negative : Tensor
            ``[..., B]`` and ``[..., B, K]``, gamma included. Leading axes (crops of croppable
            embeddings) stay in the result.
        weights : Tensor, optional
            ``[B]``, finite and at least 0, for losses that take weights; see
            :func:`kgfast.losses.subsampling_weights`.
        reduction : {"mean", "sum", "none"}
            As in the function of the loss.

        Returns
        -------
        Tensor
            ``[...]``, or ``[..., B]`` for ``none``.

        Raises
        ------
        ValueError, TypeError
            For shapes that do not fit each other, an unknown reduction, and weights for a loss that
            takes none.
        """
        _check_scores(positive, negative, self.mask)
        check_reduction(reduction)
        if weights is not None:
            if not self.takes_weights:
                raise ValueError(f"{type(self).__name__} takes no weights")
            check_weights(weights, positive)
        return self.reduced(self.terms(positive, negative), Reducing(reduction, weights))

    def terms(self, positive: Tensor, negative: Tensor) -> NegativeTerms:
        """Return the sum that negatives ``[..., B, K]`` add, by operators of torch."""
        count: Tensor | int = negative.shape[-2] * negative.shape[-1]
        if self.mask is not None:
            count = self.mask.sum()
        rows = self.of_negatives(positive, negative)
        if rows.shape != positive.shape:
            raise ValueError(
                f"of_negatives() of {type(self).__module__}:{type(self).__name__} must return "
                f"{list(positive.shape)}, a number for each positive; got {list(rows.shape)}"
            )
        return NegativeTerms(positive, rows, count)

    def reduced(self, made: NegativeTerms, how: Reducing) -> Tensor:
        """Return the loss of a batch, given the sums that negatives add."""
        rows, (reduction, weights) = self.of_rows(made.positive, made.rows), how
        if weights is not None:
            return reduced(rows * weights, weights.sum(), reduction)
        return reduced(rows, self.divisor(rows.shape[-1], made.num_negatives), reduction)

    def divisor(self, num_positives: int, num_negatives: Tensor | int) -> Tensor | int:
        """Return the divisor of the sum of rows for a mean."""
        if self.mean_over == "rows":
            return num_positives
        return num_negatives + (num_positives if self.mean_over == "scores" else 0)

    def masked(self, terms: Tensor) -> Tensor:
        """Return terms ``[..., B, K]`` that are 0 where a negative takes no part."""
        return terms if self.mask is None else terms.masked_fill(~self.mask, 0.0)


@dataclass(frozen=True, kw_only=True)
class EntitiesFormula(LossFormula, ABC):
    """Base of losses of the scores of a query with all entities, and of labels ``a y + c``.

    Attributes
    ----------
    label_smoothing : float
        Smoothing eps, in ``[0, 1)``.
    precision : {"float32", "bf16"}
        Precision of the factors of products; see :func:`kgfast.ops.bce`.
    takes_several : bool
        True if a query may have several targets.
    is_softmax : bool
        True if scores are normalised over the entities; False if each entity has its own
        probability.
    """

    over = "entities"
    takes_several: ClassVar[bool]
    is_softmax: ClassVar[bool]
    label_smoothing: float = 0.0
    precision: Precision = "float32"

    def check(self) -> None:
        check_smoothing(self.label_smoothing)
        check_precision(self.precision)

    @abstractmethod
    def labels(self, num_entities: int) -> tuple[float, float]:
        """Return ``a`` and ``c``."""


def reduced(rows: Tensor, count: Tensor | float, reduction: Reduction) -> Tensor:
    """Return rows ``[..., B]``, the sum of rows, or that sum divided by ``count``, if not 0."""
    if reduction == "none":
        return rows
    total = rows.sum(-1)
    return total if reduction == "sum" else total / (count + (count == 0))


def check_reduction(reduction: str) -> None:
    """Check the name of a reduction."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}; got {reduction!r}")


def check_taking_part(mask: Tensor, negative: Tensor, shape: Sequence[int] | None = None) -> None:
    """Check a mask ``[B, K]`` of negatives; ``shape`` is the shape in the message."""
    check_tensor("mask", mask)
    wanted = list(negative.shape[-2:] if shape is None else shape)
    if mask.dtype != torch.bool or list(mask.shape) != wanted:
        raise ValueError(f"mask must be bool {wanted}; got {mask.dtype} {list(mask.shape)}")
    check_device("mask", mask, negative, "scores")


def check_weights(weights: Tensor, positive: Tensor) -> None:
    """Check that each positive ``[..., B]`` has a weight, finite and at least 0."""
    check_tensor("weights", weights)
    if weights.is_complex():
        raise TypeError(f"weights must be real; got {weights.dtype}")
    if weights.shape != positive.shape[-1:]:
        count = positive.shape[-1]
        raise ValueError(f"weights must have shape [{count}]; got {list(weights.shape)}")
    check_device("weights", weights, positive, "scores")
    if not len(weights) or not checks_values() or torch.compiler.is_compiling():
        return
    low, high = torch.aminmax(weights.detach())
    if not (low >= 0 and high < torch.inf):  # a NaN is neither
        row = int((~((weights >= 0) & (weights < torch.inf))).nonzero()[0])
        raise ValueError(
            f"weights[{row}] must be finite and at least 0; got {float(weights[row]):g}"
        )


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

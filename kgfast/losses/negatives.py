"""Losses of positives and of negatives sampled for them, on a model or on given scores."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from kgfast.kernels.sampled import Formula, NegativeLoss
from kgfast.losses.batches import Batch
from kgfast.losses.loss import Loss, Reduction, check_mask, check_weights, reduced
from kgfast.losses.sampled import loss_of, read
from kgfast.models import RankableModel
from kgfast.models.base import Side
from kgfast.ops.checks import check_device, check_tensor


@dataclass(frozen=True, kw_only=True)
class NegativesLoss(Loss):
    """Base of losses of positives and of negatives sampled for them.

    Attributes
    ----------
    mean_over : {"rows", "pairs", "scores"}
        Divisor of a mean: the number of positives (default), of pairs of a positive and a negative,
        or of positives and negatives together.
    takes_weights : bool
        True if positives may have weights.
    kernel : {"nssa", "margin", "logistic"}, optional
        The equation, if backends fuse it. A subclass has none unless it names one itself.
    reduction : {"mean", "sum", "none"}
        The mean, the sum, or the loss of each positive ``[B]``; weighted, if weights are given.
    """

    over = "negatives"
    mean_over: ClassVar[Literal["rows", "pairs", "scores"]] = "rows"
    takes_weights: ClassVar[bool] = False
    kernel: ClassVar[Formula | None] = None
    reduction: Reduction = "mean"

    def __init_subclass__(cls) -> None:
        cls.kernel = vars(cls).get("kernel")

    @abstractmethod
    def of_negatives(self, positive: Tensor, negative: Tensor, mask: Tensor | None) -> Tensor:
        """Return the sum of negatives ``[..., B, K]`` in the loss of each positive ``[..., B]``.

        ``mask``, bool ``[B, K]``, is False where a negative takes no part.
        """

    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        """Return the loss of each positive, ``[..., B]``, given the sum that negatives add."""
        return of_negatives

    def parameter(self) -> float:
        """Return the number in the equation of the kernel."""
        return 0.0

    def __call__(
        self,
        model: RankableModel,
        triples: Batch,
        negatives: Tensor,
        *,
        side: Side = "tail",
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar or ``[B]``; the scores need not be stored.

        Parameters
        ----------
        model, triples, negatives, side
            As in :func:`kgfast.losses.sampled_scores`.
        weights : Tensor, optional
            ``[B]``, finite and at least 0, for losses that take weights; see
            :func:`kgfast.losses.subsampling_weights`.
        mask : Tensor, optional
            bool ``[B, K]``: False where a negative takes no part.
        """
        sample = read(model, triples, negatives, side, None, sparse=self.sparse, mask=mask)
        self._check_weights(weights, sample.targets)
        fused = None
        if self.kernel is not None:
            fused = NegativeLoss(self.kernel, self.parameter(), mask, self.reduction, weights)
        return loss_of(sample, fused, partial(self._of, weights=weights, mask=mask))

    def of_scores(
        self,
        positive: Tensor,
        negative: Tensor,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of given scores, ``[...]``, or ``[..., B]`` for the reduction ``none``.

        Parameters
        ----------
        positive, negative : Tensor
            ``[..., B]`` and ``[..., B, K]``, gamma included. Leading axes (crops of croppable
            embeddings) stay in the result.
        weights, mask : Tensor, optional
            As in a call with a model.
            A ValueError or TypeError names shapes that do not fit, and weights that have no use.
        """
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
            check_mask(mask, negative, negative.shape[-2:])
        self._check_weights(weights, positive)
        return self._of(positive, negative, weights, mask)

    def _check_weights(self, weights: Tensor | None, positive: Tensor) -> None:
        if weights is not None:
            if not self.takes_weights:
                raise ValueError(f"{type(self).__name__} takes no weights")
            check_weights(weights, positive)

    def _of(
        self, positive: Tensor, negative: Tensor, weights: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        sums = self.of_negatives(positive, negative, mask)
        if sums.shape != positive.shape:
            raise ValueError(
                f"of_negatives() of {type(self).__module__}:{type(self).__name__} must return "
                f"{list(positive.shape)}, a number for each positive; got {list(sums.shape)}"
            )
        rows = self.of_rows(positive, sums)
        if weights is not None:
            return reduced(rows * weights, weights.double().sum(), self.reduction)
        pairs = negative.shape[-2:].numel() if mask is None else mask.sum()
        return reduced(rows, self.divisor(rows.shape[-1], pairs), self.reduction)

    def divisor(self, num_positives: int, num_negatives: Tensor | int) -> Tensor | int:
        """Return the divisor of the sum of rows for a mean."""
        both = num_negatives + num_positives
        return {"rows": num_positives, "pairs": num_negatives, "scores": both}[self.mean_over]


def masked(terms: Tensor, mask: Tensor | None) -> Tensor:
    """Return terms ``[..., B, K]`` that are 0 where a negative takes no part."""
    return terms if mask is None else terms.masked_fill(~mask, 0.0)

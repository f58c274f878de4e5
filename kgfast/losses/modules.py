"""The losses as modules that hold their hyperparameters."""

from typing import Any

from torch import Tensor, nn

from kgfast.losses import functional
from kgfast.losses.formulas import Reduction, SmoothingStyle, check_reduction, smoothed_labels
from kgfast.losses.functional import Positives, Precision
from kgfast.models.base import Side
from kgfast.ops.checks import check_precision


class _Loss(nn.Module):
    """Hyperparameters are the public attributes, and keyword arguments of the function."""

    def _hyperparameters(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if not name.startswith("_") and name != "training"
        }

    def extra_repr(self) -> str:
        """The hyperparameters, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self._hyperparameters().items())


class BCELoss(_Loss):
    """:func:`kgfast.losses.bce` with fixed hyperparameters.

    Parameters
    ----------
    label_smoothing : float
        In ``[0, 1)``.
    smoothing_style : {"torch", "conve", "pykeen"}
        See :func:`kgfast.losses.smoothed_labels`.
    reduction : {"mean", "sum", "none"}
        See :func:`kgfast.losses.bce`.
    precision : {"float32", "bf16"}
        See :func:`kgfast.losses.bce`.

    Examples
    --------
    >>> BCELoss(label_smoothing=0.1, smoothing_style="conve", reduction="sum")
    BCELoss(label_smoothing=0.1, smoothing_style='conve', reduction='sum', precision='float32')
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        smoothing_style: SmoothingStyle = "torch",
        reduction: Reduction = "mean",
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        smoothed_labels(label_smoothing, smoothing_style, 2)
        check_reduction(reduction)
        check_precision(precision)
        self.label_smoothing = label_smoothing
        self.smoothing_style = smoothing_style
        self.reduction = reduction
        self.precision = precision

    def forward(
        self,
        model: Any,
        anchors: Tensor,
        relations: Tensor,
        positives: Positives,
        *,
        side: Side = "tail",
    ) -> Tensor:
        """The loss; see :func:`kgfast.losses.bce`."""
        return functional.bce(
            model, anchors, relations, positives, side=side, **self._hyperparameters()
        )


class CrossEntropyLoss(_Loss):
    """:func:`kgfast.losses.cross_entropy` with fixed hyperparameters.

    Parameters
    ----------
    label_smoothing : float
        In ``[0, 1)``.
    reduction : {"mean", "sum", "none"}
        See :func:`kgfast.losses.cross_entropy`.
    precision : {"float32", "bf16"}
        See :func:`kgfast.losses.bce`.

    Examples
    --------
    >>> CrossEntropyLoss(label_smoothing=0.1)
    CrossEntropyLoss(label_smoothing=0.1, reduction='mean', precision='float32')
    """

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        precision: Precision = "float32",
    ) -> None:
        super().__init__()
        smoothed_labels(label_smoothing, "torch", 2)
        check_reduction(reduction)
        check_precision(precision)
        self.label_smoothing = label_smoothing
        self.reduction = reduction
        self.precision = precision

    def forward(
        self,
        model: Any,
        anchors: Tensor,
        relations: Tensor,
        targets: Tensor,
        *,
        side: Side = "tail",
    ) -> Tensor:
        """The loss; see :func:`kgfast.losses.cross_entropy`."""
        return functional.cross_entropy(
            model, anchors, relations, targets, side=side, **self._hyperparameters()
        )


class NSSALoss(_Loss):
    """:func:`kgfast.losses.nssa` with fixed hyperparameters.

    Parameters
    ----------
    alpha : float
        Temperature, at least 0.
    reduction : {"mean", "sum", "none"}
        See :func:`kgfast.losses.nssa`.
    sparse : bool
        See :func:`kgfast.losses.sampled_scores`.

    Examples
    --------
    >>> NSSALoss(alpha=0.5)
    NSSALoss(alpha=0.5, reduction='mean', sparse=False)
    """

    def __init__(
        self, *, alpha: float = 1.0, reduction: Reduction = "mean", sparse: bool = False
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.alpha, self.reduction, self.sparse = alpha, reduction, sparse

    def forward(
        self,
        model: Any,
        triples: Any,
        negatives: Tensor,
        *,
        side: Side = "tail",
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The loss; see :func:`kgfast.losses.nssa`."""
        return functional.nssa(
            model,
            triples,
            negatives,
            side=side,
            weights=weights,
            mask=mask,
            **self._hyperparameters(),
        )


class MarginLoss(_Loss):
    """:func:`kgfast.losses.margin` with fixed hyperparameters.

    Parameters
    ----------
    margin : float
        Finite.
    reduction : {"mean", "sum", "none"}
        See :func:`kgfast.losses.margin`.
    sparse : bool
        See :func:`kgfast.losses.sampled_scores`.

    Examples
    --------
    >>> MarginLoss(margin=2.0)
    MarginLoss(margin=2.0, reduction='mean', sparse=False)
    """

    def __init__(
        self, *, margin: float = 1.0, reduction: Reduction = "mean", sparse: bool = False
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.margin, self.reduction, self.sparse = margin, reduction, sparse

    def forward(
        self,
        model: Any,
        triples: Any,
        negatives: Tensor,
        *,
        side: Side = "tail",
        mask: Tensor | None = None,
    ) -> Tensor:
        """The loss; see :func:`kgfast.losses.margin`."""
        return functional.margin(
            model, triples, negatives, side=side, mask=mask, **self._hyperparameters()
        )


class LogisticLoss(_Loss):
    """:func:`kgfast.losses.logistic` with fixed hyperparameters.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        See :func:`kgfast.losses.logistic`.
    sparse : bool
        See :func:`kgfast.losses.sampled_scores`.

    Examples
    --------
    >>> LogisticLoss()
    LogisticLoss(reduction='mean', sparse=False)
    """

    def __init__(self, *, reduction: Reduction = "mean", sparse: bool = False) -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction, self.sparse = reduction, sparse

    def forward(
        self,
        model: Any,
        triples: Any,
        negatives: Tensor,
        *,
        side: Side = "tail",
        mask: Tensor | None = None,
    ) -> Tensor:
        """The loss; see :func:`kgfast.losses.logistic`."""
        return functional.logistic(
            model, triples, negatives, side=side, mask=mask, **self._hyperparameters()
        )

"""Margin ranking loss over all (positive, negative) pairs (Bordes et al. 2013, eq. 1)."""

from dataclasses import dataclass

from torch import Tensor

from kgfast.losses.negatives import NegativesLoss, masked
from kgfast.ops.checks import check_bounded


@dataclass(frozen=True, kw_only=True)
class MarginLoss(NegativesLoss):
    """Margin ranking loss ``max(0, margin - s_pos + s_neg)`` (Bordes et al. 2013, eq. 1).

    Gamma cancels.

    Parameters
    ----------
    margin : float
        Difference of a positive and a negative from which on the loss is 0; finite.
    reduction : {"mean", "sum", "none"}
        Mean or sum over pairs, or the sum of each row. The mean over no pair is 0.
    sparse : bool
        As in :func:`sampled_scores`.

    Examples
    --------
    >>> import torch
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]))
    >>> margin(model, torch.tensor([[0, 0, 1]]), torch.tensor([2, 0]), margin=2.0)
    tensor(0.5000)
    """

    mean_over = "pairs"
    kernel = "margin"
    margin: float = 1.0

    def check(self) -> None:
        check_bounded("margin", self.margin)

    def parameter(self) -> float:
        return self.margin

    def of_negatives(self, positive: Tensor, negative: Tensor, mask: Tensor | None) -> Tensor:
        """Return ``sum_i max(0, margin - s + x_i)``."""
        return masked((self.margin - positive[..., None] + negative).relu(), mask).sum(-1)


margin = MarginLoss.function("margin")

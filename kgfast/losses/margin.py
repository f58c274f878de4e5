"""Margin ranking loss over all (positive, negative) pairs (Bordes et al. 2013, eq. 1).

For a positive ``s`` and its negatives ``x_i``::

    row = sum_i max(0, margin - s + x_i)

The mean is over pairs, and 0 if no pair takes part. Gamma cancels. Backends fuse the loss with the
scores of negatives (:mod:`kgfast.ops.negatives`).
"""

from dataclasses import dataclass

from torch import Tensor

from kgfast.kernels.negatives import NegativeLoss
from kgfast.losses.batches import Batch
from kgfast.losses.formula import NegativesFormula, Reducing, Reduction, check_reduction
from kgfast.losses.module import LossModule
from kgfast.losses.sampled import sampled_loss
from kgfast.models import RankableModel
from kgfast.models.base import Side
from kgfast.ops.checks import check_bounded


@dataclass(frozen=True, kw_only=True)
class MarginFormula(NegativesFormula):
    """Margin ranking loss.

    Attributes
    ----------
    margin : float
        Difference of a positive and a negative from which on the loss is 0; finite.

    Examples
    --------
    >>> import torch
    >>> loss = MarginFormula(margin=1.0)
    >>> loss.of_scores(torch.tensor([1.0]), torch.tensor([[0.5, -3.0]]))
    tensor(0.2500)
    """

    mean_over = "pairs"
    margin: float = 1.0

    def check(self) -> None:
        check_bounded("margin", self.margin)

    def fused(self) -> NegativeLoss:
        return NegativeLoss("margin", self.margin, self.mask)

    def of_negatives(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return ``sum_i max(0, margin - s + x_i)``."""
        return self.masked((self.margin - positive[..., None] + negative).relu()).sum(-1)

    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        return of_negatives


def margin(
    model: RankableModel,
    triples: Batch,
    negatives: Tensor,
    *,
    side: Side = "tail",
    margin: float = 1.0,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Compute the margin ranking loss over all pairs of a positive and a negative.

    ``max(0, margin - s_pos + s_neg)`` (Bordes et al. 2013, eq. 1).

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    margin : float
        Difference from which on the loss is 0; finite.
    mask : Tensor, optional
        bool ``[B, K]``: False where a negative takes no part.
    reduction : {"mean", "sum", "none"}
        Mean or sum over pairs, or the sum of each row. The mean over no pair is 0.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Examples
    --------
    >>> import torch
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]))
    >>> margin(model, torch.tensor([[0, 0, 1]]), torch.tensor([2, 0]), margin=2.0)
    tensor(0.5000)
    """
    check_reduction(reduction)
    loss = MarginFormula(margin=margin, mask=mask)
    how = Reducing(reduction)
    return sampled_loss(model, triples, negatives, side, loss, how, sparse=sparse)


class MarginLoss(LossModule, function=margin, formula=MarginFormula):
    """Module of :func:`kgfast.losses.margin` with fixed hyperparameters.

    Examples
    --------
    >>> MarginLoss(margin=2.0)
    MarginLoss(margin=2.0, reduction='mean', sparse=False)
    """

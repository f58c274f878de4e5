"""Logistic loss of positives and negatives (Trouillon et al. 2016, eq. 10, without its penalty).

For a positive ``s`` and its negatives ``x_i``::

    row = -log sigmoid(s) - sum_i log sigmoid(-x_i)

The mean is over positives and negatives together. Backends fuse the loss with the scores of
negatives (:mod:`kgfast.ops.negatives`).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from kgfast.kernels.negatives import NegativeLoss
from kgfast.losses.batches import Batch
from kgfast.losses.formula import NegativesFormula, Reducing, Reduction, check_reduction
from kgfast.losses.module import LossModule
from kgfast.losses.sampled import sampled_loss
from kgfast.models import RankableModel
from kgfast.models.base import Side


@dataclass(frozen=True, kw_only=True)
class LogisticFormula(NegativesFormula):
    """Logistic loss ``log(1 + exp(-y s))`` of positives (y = 1) and negatives (y = -1).

    Examples
    --------
    >>> import math, torch
    >>> zeros = torch.tensor([0.0]), torch.tensor([[0.0, 0.0]])
    >>> LogisticFormula().of_scores(*zeros, reduction="sum") / math.log(2)
    tensor(3.)
    """

    mean_over = "scores"

    def fused(self) -> NegativeLoss:
        return NegativeLoss("logistic", mask=self.mask)

    def of_negatives(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return ``sum_i softplus(x_i)``."""
        return -self.masked(logsigmoid(-negative)).sum(-1)

    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        return of_negatives - logsigmoid(positive)


def logistic(
    model: RankableModel,
    triples: Batch,
    negatives: Tensor,
    *,
    side: Side = "tail",
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Compute the logistic loss of positives and negatives (Trouillon et al. 2016, eq. 10).

    ``log(1 + exp(-y s))`` with ``y`` 1 for positives and -1 for negatives.

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    mask : Tensor, optional
        bool ``[B, K]``: False where a negative takes no part.
    reduction : {"mean", "sum", "none"}
        Mean or sum over positives and negatives together, or the sum of each row. The mean over
        none is 0.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Examples
    --------
    >>> import torch
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> logistic(model, torch.tensor([[1, 0, 1]]), torch.tensor([0]), reduction="sum")
    tensor(1.0064)
    """
    check_reduction(reduction)
    loss = LogisticFormula(mask=mask)
    how = Reducing(reduction)
    return sampled_loss(model, triples, negatives, side, loss, how, sparse=sparse)


class LogisticLoss(LossModule, function=logistic, formula=LogisticFormula):
    """Module of :func:`kgfast.losses.logistic` with fixed hyperparameters.

    Examples
    --------
    >>> LogisticLoss()
    LogisticLoss(reduction='mean', sparse=False)
    """

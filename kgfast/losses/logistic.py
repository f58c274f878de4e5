"""Logistic loss of positives and negatives (Trouillon et al. 2016, eq. 10, without its penalty)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import logsigmoid

from kgfast.losses.negatives import NegativesLoss, masked


@dataclass(frozen=True, kw_only=True)
class LogisticLoss(NegativesLoss):
    """Logistic loss ``log(1 + exp(-y s))`` of positives (y = 1) and negatives (y = -1).

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        Mean or sum over positives and negatives together, or the sum of each row. The mean over
        none is 0.
    sparse : bool
        As in :func:`sampled_scores`.

    Examples
    --------
    >>> import torch
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> logistic(model, torch.tensor([[1, 0, 1]]), torch.tensor([0]), reduction="sum")
    tensor(1.0064)
    """

    mean_over = "scores"
    kernel = "logistic"

    def of_negatives(self, positive: Tensor, negative: Tensor, mask: Tensor | None) -> Tensor:
        """Return ``sum_i softplus(x_i)``."""
        return -masked(logsigmoid(-negative), mask).sum(-1)

    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        return of_negatives - logsigmoid(positive)


logistic = LogisticLoss.function("logistic")

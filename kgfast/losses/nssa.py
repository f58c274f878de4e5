"""Self-adversarial negative sampling loss (Sun et al. 2019, eq. 5-6; official code).

For a positive ``s`` with negatives ``x_i``, and ``p = softmax(alpha x)`` without gradient::

    row = -1/2 (log sigmoid(s) + sum_i p_i log sigmoid(-x_i))

The mean is over positives, which may have weights. Backends fuse the sum over negatives with the
scores (:mod:`kgfast.ops.negatives`), or take given scores (:mod:`kgfast.ops.adversarial`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kgfast import ops
from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.kernels.negatives import NegativeLoss
from kgfast.losses.batches import Batch
from kgfast.losses.formula import NegativesFormula, Reducing, Reduction, check_reduction
from kgfast.losses.module import LossModule
from kgfast.losses.sampled import sampled_loss
from kgfast.models import RankableModel
from kgfast.models.base import Side
from kgfast.ops.checks import check_bounded

_FIRST_COUNT = 3  # the official code counts from 4 when a pair is met for the first time


@dataclass(frozen=True, kw_only=True)
class NSSAFormula(NegativesFormula):
    """Self-adversarial negative sampling loss.

    Attributes
    ----------
    alpha : float
        Temperature, at least 0; 0 weighs all negatives alike.

    Examples
    --------
    >>> loss = NSSAFormula(alpha=0.5)
    >>> loss.of_scores(torch.tensor([1.0]), torch.tensor([[0.0, 2.0]]))
    tensor(1.0273)
    """

    mean_over = "rows"
    takes_weights = True
    alpha: float = 1.0

    def check(self) -> None:
        check_bounded("alpha", self.alpha, 0)

    def fused(self) -> NegativeLoss:
        return NegativeLoss("nssa", self.alpha, self.mask)

    def of_negatives(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return ``sum_i p_i softplus(x_i)``."""
        mask = self.mask
        if mask is None and ops.serves_adversarial(negative):
            rows = ops.adversarial_rows(negative.flatten(0, -2), self.alpha)
            return rows.view(negative.shape[:-1])
        logits = self.alpha * negative.detach()
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        probability = self.masked(logits.softmax(-1))  # a row without negatives has no softmax
        return -(probability * logsigmoid(-negative)).sum(-1)

    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        return (of_negatives - logsigmoid(positive)) / 2


def nssa(
    model: RankableModel,
    triples: Batch,
    negatives: Tensor,
    *,
    side: Side = "tail",
    alpha: float = 1.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Compute the self-adversarial negative sampling loss (Sun et al. 2019, eq. 5-6).

    With ``p = softmax(alpha s_neg)`` without gradient,
    ``-1/2 (log sigmoid(s_pos) + sum_i p_i log sigmoid(-s_neg_i))``, as the official code.

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    alpha : float
        Temperature, at least 0.
    weights : Tensor, optional
        ``[B]``, finite and at least 0, such as :func:`kgfast.losses.subsampling_weights` returns.
    mask : Tensor, optional
        bool ``[B, K]``: False where a negative takes no part.
    reduction : {"mean", "sum", "none"}
        Weighted mean, weighted sum, or weighted rows. The mean over no row, or over weights that
        are all 0, is 0.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]), gamma=2.0)
    >>> nssa(model, torch.tensor([[0, 0, 1]]), torch.tensor([[2, 0]]))
    tensor(0.6920)
    """
    check_reduction(reduction)
    loss = NSSAFormula(alpha=alpha, mask=mask)
    how = Reducing(reduction, weights)
    return sampled_loss(model, triples, negatives, side, loss, how, sparse=sparse)


class NSSALoss(LossModule, function=nssa, formula=NSSAFormula):
    """Module of :func:`kgfast.losses.nssa` with fixed hyperparameters.

    Examples
    --------
    >>> NSSALoss(alpha=0.5)
    NSSALoss(alpha=0.5, reduction='mean', sparse=False)
    """


def subsampling_weights(triples: TriplesLike) -> Tensor:
    """Return weights of triples by the rarity of their pairs (Sun et al. 2019, official code).

    Weights are ``sqrt(1 / (count(h, r) + count(r, t)))``. Counts are over the given triples and
    begin at 4 with the first occurrence. The idea is word2vec's (Mikolov et al. 2013).

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

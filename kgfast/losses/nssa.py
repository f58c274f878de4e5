"""Self-adversarial negative sampling loss (Sun et al. 2019, eq. 5-6; official code)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.losses.negatives import NegativesLoss
from kgfast.ops.checks import check_bounded

_FIRST_COUNT = 3  # the official code counts from 4 when a pair is met for the first time


@dataclass(frozen=True, kw_only=True)
class NSSALoss(NegativesLoss):
    """Self-adversarial negative sampling loss (Sun et al. 2019, eq. 5-6).

    With ``p = softmax(alpha s_neg)`` without gradient,
    ``-1/2 (log sigmoid(s_pos) + sum_i p_i log sigmoid(-s_neg_i))``, as the official code.

    Parameters
    ----------
    alpha : float
        Temperature, at least 0; 0 weighs all negatives alike.
    reduction : {"mean", "sum", "none"}
        Weighted mean, weighted sum, or weighted rows. The mean over no row, or over weights that
        are all 0, is 0.
    sparse : bool
        As in :func:`sampled_scores`.

    Examples
    --------
    >>> import torch
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]), gamma=2.0)
    >>> nssa(model, torch.tensor([[0, 0, 1]]), torch.tensor([[2, 0]]))
    tensor(0.6920)
    >>> NSSALoss(alpha=0.5).of_scores(torch.tensor([1.0]), torch.tensor([[0.0, 2.0]]))
    tensor(1.0273)
    """

    takes_weights = True
    kernel = "nssa"
    alpha: float = 1.0

    def check(self) -> None:
        check_bounded("alpha", self.alpha, 0)

    def parameter(self) -> float:
        return self.alpha

    def of_negatives(self, positive: Tensor, negative: Tensor, mask: Tensor | None) -> Tensor:
        """Return ``sum_i p_i softplus(x_i)``; negatives of -inf, as of a bias, are none."""
        is_none = negative.detach().isneginf()
        if mask is not None:
            is_none |= ~mask
        logits = (self.alpha * negative.detach()).masked_fill_(is_none, -torch.inf)
        probability = logits.softmax(-1).masked_fill(is_none, 0.0)
        return -(probability * logsigmoid(-negative)).sum(-1)

    def of_rows(self, positive: Tensor, of_negatives: Tensor) -> Tensor:
        return (of_negatives - logsigmoid(positive)) / 2


nssa = NSSALoss.function("nssa")


def subsampling_weights(triples: TriplesLike) -> Tensor:
    """Return weights of triples by the rarity of their pairs (Sun et al. 2019, official code).

    Weights, float32 ``[T]``, are ``sqrt(1 / (count(h, r) + count(r, t)))``. Counts are over the
    given ``triples``, int64 ``[T, 3]``, and begin at 4 with the first occurrence. The idea is
    word2vec's (Mikolov et al. 2013).

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

"""Loss of croppable embeddings: MED (Zhu et al. 2025, ACL long.579, section 3)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kgfast.kernels.spares import constant
from kgfast.losses.batches import Batch
from kgfast.losses.loss import Loss, check_mask
from kgfast.losses.sampled import sampled_scores
from kgfast.models.base import Side
from kgfast.models.med import MED, LossWeight, check_increasing
from kgfast.ops.differentiable import no_autocast


@dataclass(frozen=True, kw_only=True)
class MEDLoss(Loss):
    """Loss of croppable embeddings (Zhu et al. 2025, section 3).

    With ``s_i`` the :func:`sampled_scores` of sub-model ``i``, ``H`` the Huber loss with threshold
    1 and ``f_i = d_i / d_n``::

        mutual_i    = mean H(s_{i-1} - s_i) over positives + the same over negatives
        improving_i = - sum_+ p_i log sigmoid(s_i) - sum_- q_i log sigmoid(-s_i)
        loss        = sum_{i>1} mutual_i + sum_i a(f_i) improving_i

    where the next smaller sub-model weighs hard examples. The weights are ``p_i = softmax(-w1
    s_{i-1})`` over the batch and ``q_i = softmax(w2 s_{i-1})`` over all negatives of the batch. No
    gradient flows through ``s_{i-1}`` in weights. For the smallest sub-model both weights are
    uniform. ``a(f)`` is ``exp(w3 f)`` or ``sigmoid(w3 (f - 1/2))``. A mean over nothing is 0. The
    model holds the hyperparameters. All scores come from one pass, unless operands depend on the
    crop.

    ``sparse`` is that of :func:`sampled_scores`.

    Examples
    --------
    >>> from kgfast import RotatE
    >>> model = MED(RotatE.init(9, 2, dim=4, seed=0), dims=[2, 4])
    >>> med(model, [(0, 1, 2)], torch.tensor([[3, 4]])).ndim
    0
    """

    over = "crops"

    def __call__(
        self,
        model: MED,
        triples: Batch,
        negatives: Tensor,
        *,
        side: Side = "tail",
        dims: Sequence[int] | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar.

        Parameters
        ----------
        model : MED
        triples, negatives, side
            As in :func:`sampled_scores`.
        dims : sequence of int, optional
            Increasing widths of the sub-models that take part, such as :meth:`MED.draw` returns;
            all by default.
        mask : Tensor, optional
            bool ``[B, K]``: False where a negative takes no part.
        """
        if not isinstance(model, MED):
            raise TypeError(f"model must be a MED; got {type(model).__name__}")
        widths = model.dims if dims is None else dims
        check_increasing(widths)
        scores = sampled_scores(model, triples, negatives, side, widths, sparse=self.sparse)
        if mask is not None:
            check_mask(mask, scores[1], scores[1].shape[1:])
        fractions = [width / model.dims[-1] for width in widths]
        scales = model.w1, model.w2, model.w3
        return med_of_scores(*scores, fractions, scales, model.loss_weight, mask)


med = MEDLoss.function("med")


def med_of_scores(
    positive: Tensor,
    negative: Tensor,
    fractions: Sequence[float],
    scales: tuple[Tensor, Tensor, Tensor],
    loss_weight: LossWeight,
    mask: Tensor | None,
) -> Tensor:
    """Return the loss of scores ``[C, B]`` and ``[C, B, K]``, by increasing width."""
    w1, w2, w3 = (scale.to(positive.dtype) for scale in scales)
    of_positives = w1 * -positive[:-1].detach()
    of_negatives = w2 * negative[:-1].detach()
    improving = _expected(of_negatives, functional.softplus(negative), mask)
    improving = improving - _expected(of_positives, functional.logsigmoid(positive))
    kind = (), positive.dtype, positive.device
    shares = w3 * torch.stack([constant(float(fraction), *kind) for fraction in fractions])
    weights = shares.exp() if loss_weight == "exp" else (shares - 0.5 * w3).sigmoid()
    total = torch.dot(weights, improving)
    if len(positive) > 1:
        distance = _distance(positive) + _distance(negative, mask)
        total = torch.add(total, distance, alpha=len(positive) - 1)
    return total


def _distance(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean Huber loss of a sub-model in ``[C, *]`` and the next smaller one."""
    smaller, larger = scores[:-1], scores[1:]
    if mask is None and larger.numel():
        return functional.huber_loss(smaller, larger)
    each = functional.huber_loss(smaller, larger, reduction="none")
    if mask is None:
        return each.sum()
    return torch.where(mask, each, 0.0).sum() / (mask.sum().clamp_min(1) * len(larger))


def _expected(hardness: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return ``sum q values [C]`` of each sub-model, ``q = softmax(hardness)`` over the batch.

    The smallest sub-model has no hardness: its weights are uniform.
    """
    hardness = functional.pad(hardness.flatten(1), (0, 0, 1, 0))
    if mask is not None:
        hardness = hardness.masked_fill(~mask.flatten(), -torch.inf)
    chances = hardness.softmax(1)
    if mask is not None:  # no softmax over an empty mask
        chances = torch.where(mask.flatten(), chances, 0.0)
    with no_autocast(values.device):
        expected: Tensor = torch.linalg.vecdot(chances, values.flatten(1))
    return expected

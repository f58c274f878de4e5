"""The loss ``nssa`` on the CPU: one walk over scores forward, and one walk backward.

Cost model: scores are stored for the backward, ``[B, K]``; each walk is one of passes.py. Other
losses of sampled negatives, and those with a mask, are operators of torch on scores.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..checks import inside_of
from ..operands import Gradients, NamedRows, Need, Operands
from ..sampled import Formula, NegativeGradients, NegativeLoss, NegativeRows, Sampled
from .passes import adversarial_slopes, adversarial_sums


class AdversarialLosses:
    """Losses of sampled negatives by the scores and the gradients of a backend."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def fuses(self, formula: Formula, *, has_mask: bool) -> bool:
        """Return whether this class takes a loss."""
        return formula == "nssa" and not has_mask

    def value(
        self,
        operands: Operands,
        sampled: Sampled,
        loss: NegativeLoss,
        *,
        check: Callable[[], None] | None,
    ) -> NegativeRows:
        """Return the loss of every row, or the sum or mean of rows.

        Operands are neither empty nor cropped; for a pool, the rows are the negatives. Ids may be
        out of range: reads are clamped to the table. ``check`` is called if an id was clamped, or
        if a score or a bias is not finite (a bias may be -inf). Without ``check`` the host waits
        for nothing.
        """
        if sampled.negatives is None:
            assert sampled.positive is not None
            ids = torch.empty(0, dtype=torch.int64, device=operands.queries.device)
            raw = negative = self._backend.scores(operands)
            positive = sampled.positive
        else:
            assert sampled.targets is not None
            index = torch.cat([sampled.targets[:, None], sampled.negatives], 1)
            ids = inside_of(index, operands.candidates.num_rows)
            if check is not None and not torch.equal(ids, index):
                check()
            raw = self._backend.scores(operands, ids)
            positive, negative = raw[:, 0].clone(), raw[:, 1:]
        if check is not None and not bool(raw.sum().isfinite()):
            check()
        sums, peaks, masses = adversarial_sums(negative, loss.parameter)
        rows = (sums - logsigmoid(positive)) / 2
        scale = rows.new_empty(0)
        if loss.weights is not None:
            rows = rows * loss.weights
        if loss.reduction != "none":
            divisor = torch.ones((), dtype=torch.float64, device=rows.device)
            if loss.reduction == "mean":
                divisor *= len(rows) if loss.weights is None else loss.weights.double().sum()
                divisor += divisor == 0
            scale = (1.0 / divisor).to(rows.dtype).reshape(1)
            rows = (rows.sum() / divisor).to(rows.dtype)
        return NegativeRows(rows, positive, masses, peaks, scale, raw, ids)

    def gradients(
        self,
        operands: Operands,
        loss: NegativeLoss,
        forward: NegativeRows,
        grad: Tensor,
        need: Need,
        *,
        bias: bool = False,
        rows: NamedRows | None = None,
    ) -> NegativeGradients:
        """Return the gradients of :meth:`value`, given that of the loss.

        With ``bias``, the gradient of a pool's biases is needed. ``rows`` are those of
        :meth:`kgfast.kernels.backend.Backend.backward`.
        """
        is_listed, count = bool(forward.ids.numel()), len(forward.raw)
        half = (grad * forward.scale if len(forward.scale) else grad).expand(count) / 2
        if loss.weights is not None:
            half = half * loss.weights
        negative = forward.raw[:, 1:] if is_listed else forward.raw
        slopes = adversarial_slopes(half, negative, forward.peaks, forward.masses, loss.parameter)
        of_positive, index = -(-forward.positive).sigmoid_() * half, None
        if is_listed:
            slopes, index = torch.cat([of_positive[:, None], slopes], 1), forward.ids
            of_positive = of_positive[:0]
        of_bias = slopes.sum(0) if bias else None
        pulled = Gradients()
        if any(need):
            pulled = self._backend.backward(operands, slopes, index, need=need, rows=rows)
        return NegativeGradients(pulled, of_bias, of_positive)

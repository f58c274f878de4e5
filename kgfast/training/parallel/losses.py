"""Means and expectations over a batch of which this process has a part."""

import torch
from torch import Tensor
from torch.nn import functional

from kgfast.losses.croppable import WholeBatch
from kgfast.training.parallel.crew import Crew
from kgfast.training.share import Share


class PartOfBatch(WholeBatch):
    """What this process adds to the means of a whole batch; the gradients add up likewise.

    Parameters
    ----------
    crew : Crew
    share : Share
        Its rows.
    pairs : int or Tensor
        Negatives of the whole batch that take part.
    """

    def __init__(self, crew: Crew, share: Share, pairs: int | Tensor) -> None:
        self._crew, self._rows = crew, share.count
        self._pairs = pairs.clamp_min(1) if isinstance(pairs, Tensor) else pairs

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """As :meth:`WholeBatch.mean`."""
        if mask is not None:
            values = torch.where(mask, values, 0.0)
        return values.sum() / (self._rows if values.ndim == 1 else self._pairs)

    def distance(self, less: Tensor, own: Tensor, mask: Tensor | None = None) -> Tensor:
        """As :meth:`WholeBatch.distance`."""
        return self.mean(functional.huber_loss(less, own, reduction="none"), mask)

    def expected(self, hardness: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """As :meth:`WholeBatch.expected`; the normaliser is that of all processes.

        With ``q = exp(hardness - normaliser)`` the expectation ``E`` has the derivative
        ``sum q (value - E) d hardness``: the second term is where the normaliser depends on it.
        """
        if mask is not None:
            hardness = hardness.masked_fill(~mask, -torch.inf)
        hardness, values = hardness.flatten(), values.flatten()
        whole, expectation = self._of_all(hardness.detach(), values.detach())
        if whole == -torch.inf:  # nobody has one that takes part
            return (values * 0.0).sum()
        chances = (hardness - whole).exp()
        total = chances.sum()
        return torch.dot(chances, values) - expectation * (total - total.detach())

    def _of_all(self, hardness: Tensor, values: Tensor) -> tuple[float, float]:
        """The logarithm of the normaliser of the whole batch, and the expectation over it."""
        own = hardness.double().logsumexp(0)
        mean = torch.dot((hardness.double() - own).exp().nan_to_num(0.0), values.double())
        logs, means = self._crew.gather(torch.stack([own, mean])).unbind(1)
        whole = logs.logsumexp(0)
        return float(whole), float(((logs - whole).exp().nan_to_num(0.0) * means).sum())

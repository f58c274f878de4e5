"""Penalties on the embeddings that a batch uses."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.models.base import Model


class Regularizer:
    """``weight`` times the mean over the batch of the summed powers of its factors.

    ``n3``: cubes of absolute values, moduli for complex rows (Lacroix et al. 2018, eq. 4, as in
    their code). ``l2``: squares.

    Parameters
    ----------
    name : {"n3", "l2"}
    weight : float

    Examples
    --------
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.ones(1, 2), torch.ones(1, 2))
    >>> Regularizer("n3", 0.1)(model, [torch.tensor([[1.0, -2.0]])])
    tensor(0.9000)
    """

    def __init__(self, name: str, weight: float) -> None:
        if name not in ("n3", "l2"):
            raise ValueError(f"regularizer must be 'n3' or 'l2'; got {name!r}")
        self._power, self._weight = (3 if name == "n3" else 2), weight

    def __call__(self, model: Model, factors: Sequence[Tensor]) -> Tensor:
        """The penalty of the rows of a batch, each ``[B, *]``."""
        total = torch.stack([self._of(model, rows) for rows in factors]).sum()
        return total * (self._weight / len(factors[0]))

    def _of(self, model: Any, rows: Tensor) -> Tensor:
        if self._power == 2:
            return rows.square().sum()
        if not _is_complex(model, rows):
            return rows.abs().pow(3).sum()
        interleaved = model.layout == "interleaved"
        re, im = (rows[:, 0::2], rows[:, 1::2]) if interleaved else rows.chunk(2, 1)
        return (re.square() + im.square()).pow(1.5).sum()


def _is_complex(model: Any, rows: Tensor) -> bool:
    """Whether rows hold pairs (re, im): entities of complex models, but not RotatE's phases."""
    return hasattr(model, "layout") and rows.shape[1] == 2 * model.dim

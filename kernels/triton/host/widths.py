"""Crops: their order, and the gradient of each range of features."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def crop_order(crops: Sequence[int], out: Tensor) -> Tensor:
    """Return the widths and the start of each in ``out [C, ...]``, ``[C, 2]``, without waits."""
    order = torch.empty(len(crops), 2, dtype=torch.int64, device=out.device)
    for place, row in enumerate(order):
        row[0].fill_(crops[place])
        row[1].fill_(place * out.stride(0))
    return order


def segments(grad: Tensor, dims: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ranges of features, the last first, with ``grad [C, ...]`` summed over the crops there.

    A crop adds to its own features, so the sum grows towards the first range.
    """
    coefficient = grad[-1]
    for crop in reversed(range(len(dims))):
        if crop + 1 < len(dims):
            coefficient = coefficient + grad[crop]
        yield dims[crop - 1] if crop else 0, dims[crop], coefficient


def over_norms(values: Tensor, norms: Tensor) -> Tensor:
    """Return ``values / norms``, in the memory of ``norms``; 0 for a norm of 0."""
    is_zero = norms == 0
    return torch.div(values, norms, out=norms).masked_fill_(is_zero, 0.0)

"""Crops: their order, and the gradient of each range of features."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def crop_order(crops: Sequence[int], out: Tensor) -> Tensor:
    """Return rising widths and the start of each in ``out [C, ...]``, ``[C, 2]``, without waits."""
    order = torch.empty(len(crops), 2, dtype=torch.int64, device=out.device)
    places = sorted(range(len(crops)), key=crops.__getitem__)
    for row, place in zip(order, places, strict=True):
        row[0].fill_(crops[place])
        row[1].fill_(place * out.stride(0))
    return order


def filled(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Make an int64 vector on the device, without waiting for a copy."""
    vector = torch.empty(len(numbers), dtype=torch.int64, device=device)
    for place, number in zip(vector, numbers, strict=True):
        place.fill_(number)
    return vector


def segments(grad: Tensor, dims: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
    """Yield ranges of features, the last first, with ``grad [C, ...]`` summed over the crops there.

    A crop adds to its own features, so the sum grows towards the first range.
    """
    order = sorted(range(len(dims)), key=dims.__getitem__, reverse=True)
    coefficient = grad[order[0]]
    for i, crop in enumerate(order):
        if i:
            coefficient = coefficient + grad[crop]
        low = dims[order[i + 1]] if i + 1 < len(order) else 0
        if dims[crop] > low:
            yield low, dims[crop], coefficient


def over_norms(values: Tensor, norms: Tensor) -> Tensor:
    """Return ``values / norms``, in the memory of ``norms``; 0 for a norm of 0."""
    is_zero = norms == 0
    return torch.div(values, norms, out=norms).masked_fill_(is_zero, 0.0)

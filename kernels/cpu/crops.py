"""Crop widths in the extension's form: ascending, each once."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..operands import Operands


class Crops(NamedTuple):
    """Crop widths of one call."""

    widths: list[int]  # widths in the caller's order, [C]
    distinct: list[int]  # ascending, each once
    slots: list[int]  # first place of each distinct width in the caller's order
    covers_rows: bool  # the widest crop is the whole row
    has_axis: bool  # results have a leading axis of crops

    @classmethod
    def of(cls, operands: Operands) -> "Crops":
        """Read the crops of operands."""
        widths = operands.crops
        if len(widths) == 1:
            is_whole = widths[0] == operands.num_features
            return cls(widths, widths, [0], is_whole, operands.dims is not None)
        distinct = sorted(set(widths))
        slots = [widths.index(dim) for dim in distinct]
        covers_rows = distinct[-1] == operands.num_features
        return cls(widths, distinct, slots, covers_rows, operands.dims is not None)

    def finish(self, scores: Tensor) -> Tensor:
        """Fill the places of repeated widths in ``[C, B, K]``; drop the axis without crops."""
        if not self.has_axis:
            return scores[0]
        for place, dim in enumerate(self.widths):
            first = self.widths.index(dim)
            if first != place:
                scores[place] = scores[first]
        return scores

    def arrange(self, counts: Tensor) -> list[Tensor]:
        """Return the tensors ``[C, B]`` or ``[B]`` of counts ``[distinct, kinds, B]``, by kind."""
        if not self.has_axis:
            return [*map(torch.clone, counts[0])]
        places = [self.distinct.index(dim) for dim in self.widths]
        return [*map(torch.clone, counts[places].transpose(0, 1))]

    def with_axis(self, grad: Tensor) -> Tensor:
        """Return a gradient of scores as float32 ``[C, B, K]``."""
        return (grad if self.has_axis else grad[None]).float()

    def gradient_like(self, rows: Tensor, count: int | None = None) -> Tensor:
        """Make memory for the gradient of ``count`` rows, zero beyond the widest crop."""
        shape = (len(rows) if count is None else count, rows.shape[1])
        return rows.new_empty(shape) if self.covers_rows else rows.new_zeros(shape)

"""Crop widths in the extension's form: ascending, each once."""

from dataclasses import dataclass

from torch import Tensor

from ..operands import Operands


@dataclass(frozen=True)
class Crops:
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
        distinct = sorted(set(widths))
        slots = [widths.index(dim) for dim in distinct]
        covers_rows = distinct[-1] == operands.num_features
        return cls(widths, distinct, slots, covers_rows, operands.dims is not None)

    def finish(self, scores: Tensor) -> Tensor:
        """Fill the places of repeated widths in ``[C, B, K]``; drop the axis without crops."""
        for place, dim in enumerate(self.widths):
            first = self.widths.index(dim)
            if first != place:
                scores[place] = scores[first]
        return scores if self.has_axis else scores[0]

    def arrange(self, counts: Tensor) -> list[Tensor]:
        """Return the tensors ``[C, B]`` or ``[B]`` of counts ``[distinct, kinds, B]``, by kind."""
        places = [self.distinct.index(dim) for dim in self.widths]
        columns = counts[places].transpose(0, 1)
        return [column.clone() if self.has_axis else column[0].clone() for column in columns]

    def with_axis(self, grad: Tensor) -> Tensor:
        """Return a gradient of scores as float32 ``[C, B, K]``."""
        return (grad if self.has_axis else grad[None]).float()

    def gradient_like(self, rows: Tensor, count: int | None = None) -> Tensor:
        """Make memory for the gradient of ``count`` rows, zero beyond the widest crop."""
        shape = (len(rows) if count is None else count, rows.shape[1])
        return rows.new_empty(shape) if self.covers_rows else rows.new_zeros(shape)

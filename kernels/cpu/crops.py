"""Crop widths as the extension takes them: ascending, each once."""

from dataclasses import dataclass

from torch import Tensor

from ..operands import Operands


@dataclass(frozen=True)
class Crops:
    """The widths of one call.

    Attributes
    ----------
    widths : list of int
        As the caller ordered them, ``[C]``.
    distinct : list of int
        Ascending, each once.
    slots : list of int
        For each distinct width the first place that asks for it.
    covers_rows : bool
        Whether the widest crop is the whole row.
    has_axis : bool
        Whether results have a leading axis of crops.
    """

    widths: list[int]
    distinct: list[int]
    slots: list[int]
    covers_rows: bool
    has_axis: bool

    @classmethod
    def of(cls, operands: Operands) -> "Crops":
        """The crops that operands ask for."""
        widths = operands.crops
        distinct = sorted(set(widths))
        slots = [widths.index(dim) for dim in distinct]
        covers_rows = distinct[-1] == operands.num_features
        return cls(widths, distinct, slots, covers_rows, operands.dims is not None)

    def finish(self, scores: Tensor) -> Tensor:
        """Fill the places of repeated widths in ``[C, B, K]``; drop an axis nobody asked for."""
        for place, dim in enumerate(self.widths):
            first = self.widths.index(dim)
            if first != place:
                scores[place] = scores[first]
        return scores if self.has_axis else scores[0]

    def arrange(self, counts: Tensor) -> list[Tensor]:
        """Counts ``[distinct, kinds, B]`` as a tensor of each kind, ``[C, B]`` or ``[B]``."""
        places = [self.distinct.index(dim) for dim in self.widths]
        columns = counts[places].transpose(0, 1)
        return [column.clone() if self.has_axis else column[0].clone() for column in columns]

    def with_axis(self, grad: Tensor) -> Tensor:
        """A gradient of scores as float32 ``[C, B, K]``."""
        return (grad if self.has_axis else grad[None]).float()

    def gradient_like(self, rows: Tensor, count: int | None = None) -> Tensor:
        """Room for the gradient of ``count`` rows, zero where no crop reaches."""
        shape = (len(rows) if count is None else count, rows.shape[1])
        return rows.new_empty(shape) if self.covers_rows else rows.new_zeros(shape)

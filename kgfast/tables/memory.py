"""A tensor as a table: one shard of several may lie in memory."""

import torch
from torch import Tensor

from kgfast.tables.protocol import Rows, checked_range, checked_row_ids, checked_update


class TensorTable(Rows):
    """The rows of a tensor, read in place.

    Parameters
    ----------
    values : Tensor
        ``[N, G]`` floating point.

    Raises
    ------
    TypeError, ValueError
        For another tensor.
    """

    def __init__(self, values: Tensor) -> None:
        if values.ndim != 2:
            raise ValueError(f"rows must have two axes; got shape {list(values.shape)}")
        if not values.dtype.is_floating_point:
            raise TypeError(f"rows must be floating point; got {values.dtype}")
        if values.is_neg():
            raise ValueError(
                "rows must hold their numbers as they are; got a tensor that is negated lazily, by "
                "a bit beside numbers that are not: pass its .resolve_neg()"
            )
        self.values = values.detach()
        self.shape, self.dtype = (len(values), int(values.shape[1])), values.dtype

    @property
    def device(self) -> torch.device:
        """Where the tensor lies."""
        return self.values.device

    def block(self, start: int, stop: int) -> Tensor:
        """Rows ``start .. stop - 1``, in place."""
        checked_range(start, stop, len(self))
        return self.values[start:stop]

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of ids ``[B]``, in any order."""
        return self.values[checked_row_ids(ids, 0, len(self)).to(self.device)]

    def update(self, ids: Tensor, rows: Tensor) -> None:
        """Write rows into the tensor."""
        ids = checked_update(ids, rows, self, 0, len(self))
        self.values.index_copy_(0, ids.to(self.device), rows.detach().to(self.device))

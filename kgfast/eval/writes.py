"""Writes to a table since a moment, by torch's version counter and by some numbers.

Fused optimizers write without raising the counter, so a hook raises the counter after each step of
any optimizer. Writes through ``.data``, numpy or a compiled step leave the counter alone, so some
numbers are also compared, in a microsecond.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

_COMPARED = 4096  # rows that are compared, spread evenly from the first to the last
_WATCHED = 256  # rows with a number that every call compares, spread evenly
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class TableState:
    """State of a table ``[N, G]`` on the CPU at one moment."""

    def __init__(self, table: Tensor) -> None:
        self._version, self._rows = _version_of(table), _some_rows(table)
        # A weak reference would keep torch.utils.swap_tensors from moving the table.
        self._source = _source_of(table)
        self._watched = _watched_of(table)
        self._numbers = self._watched.clone()

    def is_of(self, table: Tensor) -> bool:
        """Return True if counter and numbers of this very tensor show that nothing was written."""
        is_own = self._source is table and self._version is not None
        is_unwritten = is_own and not table.is_inference() and table._version == self._version
        return is_unwritten and torch.equal(self._watched, self._numbers)

    def is_changed(self, table: Tensor) -> bool:
        """Return True if the memory was written to since, as far as ``table`` tells.

        Rows are compared where the counter proves nothing: an inference tensor has none, and
        another tensor object may count on its own.
        """
        version = _version_of(table)
        if version != self._version or not torch.equal(self._watched, self._numbers):
            return True
        if version is not None and self._source is _source_of(table):
            return False
        return not torch.equal(_some_rows(table), self._rows)


def _version_of(table: Tensor) -> int | None:
    return None if table.is_inference() else table._version


def _source_of(table: Tensor) -> Tensor:
    return table if table._base is None else table._base


def _watched_of(table: Tensor) -> Tensor:
    numbers = table.detach()[:: max(1, -(-len(table) // _WATCHED)), :1]
    return numbers if numbers.is_neg() else numbers.view(_BITS[numbers.element_size()])


def _some_rows(table: Tensor) -> Tensor:
    """Return the bytes of some rows; as bytes, a NaN equals itself."""
    count = min(len(table), _COMPARED)
    ids = torch.arange(count, dtype=torch.int64, device="cpu")
    ids = ids * (len(table) - 1) // max(1, count - 1)
    return table.detach().index_select(0, ids).view(torch.uint8)


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameters = (it for group in optimizer.param_groups for it in group["params"])
    torch.autograd.graph.increment_version([it for it in parameters if it.grad is not None])


register_optimizer_step_post_hook(_count_step)

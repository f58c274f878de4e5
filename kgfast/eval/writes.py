"""Writes to a table since a moment, by torch's version counter and by some rows.

Fused optimizers write without raising the counter, so a hook raises the counter after each step of
any optimizer.
"""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

_COMPARED = 4096  # rows that are compared, spread evenly from the first to the last


class TableState:
    """State of a table ``[N, G]`` on the CPU at one moment."""

    def __init__(self, table: Tensor) -> None:
        self._version, self._rows = _version_of(table), _some_rows(table)
        self._source = weakref.ref(_source_of(table))

    def is_of(self, table: Tensor) -> bool:
        """Return True if the counter of this very tensor shows that nothing was written."""
        is_own = self._source() is table and self._version is not None
        return is_own and not table.is_inference() and table._version == self._version

    def is_changed(self, table: Tensor) -> bool:
        """Return True if the memory was written to since, as far as ``table`` tells.

        Rows are compared where the counter proves nothing: an inference tensor has none, and
        another tensor object may count on its own.
        """
        version = _version_of(table)
        if version != self._version:
            return True
        if version is not None and self._source() is _source_of(table):
            return False
        return not torch.equal(_some_rows(table), self._rows)


def _version_of(table: Tensor) -> int | None:
    return None if table.is_inference() else table._version


def _source_of(table: Tensor) -> Tensor:
    """Return the base of a view, or the tensor itself."""
    return table if table._base is None else table._base


def _some_rows(table: Tensor) -> Tensor:
    """Return the bytes of some rows; as bytes, a NaN equals itself."""
    count = min(len(table), _COMPARED)
    ids = torch.arange(count, dtype=torch.int64, device="cpu")
    ids = ids * (len(table) - 1) // max(1, count - 1)
    return table.detach().index_select(0, ids).view(torch.uint8)


def _count_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raise the version of the tensors that a step wrote."""
    parameters = (it for group in optimizer.param_groups for it in group["params"])
    torch.autograd.graph.increment_version([it for it in parameters if it.grad is not None])


register_optimizer_step_post_hook(_count_step)

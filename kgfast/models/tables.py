"""Users' tables as the parameters of a model, without copies."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast import tables
from kgfast.ops import TABLE_DTYPES

Table = Tensor | npt.NDArray[Any] | tables.Table


def held_table(name: str, table: Any, takes_complex: bool) -> Any:
    """Return a table's storage as a parameter, which trains only if the given table did.

    Tables are floating point ``[R, *]``; or complex ``[R, D]``, which become rows ``[R, 2D]``,
    ``re0 im0 re1 ...``. A tensor that requires a gradient and is no parameter stays unchanged, so
    that gradients reach the computation of the tensor. A :class:`kgfast.tables.Table` stays a
    table. A TypeError or ValueError names any other kind, and complex numbers whose parts cannot be
    read in place.
    """
    if tables.is_table(table):
        return _checked_rows(name, tables.as_rows(table), takes_complex)
    values = from_array(name, table)
    if values.is_complex():
        if not takes_complex:
            raise TypeError(
                f"{name} must be floating point, since rows are real; got {values.dtype}"
            )
        values = _parts(name, values)
    if values.dtype not in TABLE_DTYPES:
        raise TypeError(f"{name} must be floating point; got {values.dtype}")
    if values.ndim != 2:
        raise ValueError(f"{name} must have two axes; got shape {list(values.shape)}")
    if isinstance(values, nn.Parameter) or is_computed(table):
        return values
    trains = isinstance(table, nn.Parameter) and table.requires_grad
    return nn.Parameter(values.detach(), requires_grad=trains)


def is_computed(table: Any) -> bool:
    """Return whether a table is a tensor that requires a gradient and is no parameter."""
    return isinstance(table, Tensor) and table.requires_grad and not isinstance(table, nn.Parameter)


def from_array(name: str, table: object) -> Tensor:
    """Return a tensor unchanged, or a tensor on the memory of an array."""
    if isinstance(table, Tensor):
        return table
    if not isinstance(table, np.ndarray):
        raise TypeError(f"{name} must be a tensor or an array; got {type(table).__name__}")
    if any(step < 0 for step in table.strides):
        raise ValueError(f"{name} must have no negative strides, as torch has none: pass a copy")
    with warnings.catch_warnings():  # an array that cannot be written to is only read
        warnings.filterwarnings("ignore", message=".*not writable.*")
        try:
            return torch.from_numpy(table)
        except (TypeError, ValueError) as error:  # torch lacks this byte order or type
            raise TypeError(f"{name}: torch cannot read this array: {error!s:.120}") from None


def is_complex(table: Any) -> bool:
    """Return whether a tensor or an array holds complex numbers."""
    if isinstance(table, np.ndarray):
        return bool(np.iscomplexobj(table))
    if isinstance(table, Tensor):
        return table.is_complex()
    return tables.is_table(table) and bool(getattr(table, "is_complex", False))


def gathered(table: Tensor | tables.Rows, ids: Tensor) -> Tensor:
    """Return rows of a table; the gradient of a tensor has a fixed order on every device."""
    return table.rows(ids) if isinstance(table, tables.Rows) else functional.embedding(ids, table)


def _checked_rows(name: str, table: tables.Rows, takes_complex: bool) -> tables.Rows:
    """Check a table that is no tensor."""
    if table.is_complex and not takes_complex:
        raise TypeError(f"{name} must be floating point, since rows are real; got complex numbers")
    if table.dtype not in TABLE_DTYPES:
        raise TypeError(f"{name} must be floating point; got {table.dtype}")
    return table


def _parts(name: str, table: Tensor) -> Tensor:
    """Return complex rows ``[R, D]`` as real rows ``[R, 2D]``, interleaved, on the same memory."""
    if table.ndim != 2:
        raise ValueError(f"{name} must have two axes; got shape {list(table.shape)}")
    try:
        parts = torch.view_as_real(table if is_computed(table) else table.detach())
        return parts.view(len(table), 2 * table.shape[1])
    except RuntimeError:
        raise ValueError(
            f"{name}: real and imaginary parts cannot be read in place (strides "
            f"{list(table.stride())}{', conjugated' if table.is_conj() else ''}): pass "
            f"{name}.resolve_conj().contiguous()"
        ) from None

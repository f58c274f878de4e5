"""Users' tables as the parameters of a model, without copies; fresh tables."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from kgfast import tables
from kgfast.ops import TABLE_DTYPES

Table = Tensor | npt.NDArray[Any] | tables.Table


def fresh_table(shape: Sequence[int]) -> Tensor:
    """Make an empty fresh table: float32 on the CPU, so that a seed draws the same everywhere."""
    return torch.empty(tuple(shape), dtype=torch.float32, device="cpu")


def held_table(name: str, table: Any) -> Any:
    """Return a table ``[R, *]`` as a parameter on its storage, which trains only if the table did.

    A tensor that requires a gradient and is no parameter stays unchanged, so that gradients reach
    the computation of the tensor. A :class:`kgfast.tables.Table` stays a table. A TypeError or
    ValueError names any other kind.
    """
    values = tables.as_rows(table) if tables.is_table(table) else from_array(name, table)
    if values.dtype not in TABLE_DTYPES:
        advice = ": pass torch.view_as_real(table).flatten(1)" if values.dtype.is_complex else ""
        raise TypeError(f"{name} must be floating point; got {values.dtype}{advice}")
    if values.ndim != 2:
        raise ValueError(f"{name} must have two axes; got shape {list(values.shape)}")
    if not isinstance(values, Tensor) or isinstance(values, nn.Parameter) or is_computed(table):
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
    with warnings.catch_warnings():  # an array that cannot be written to is only read
        warnings.filterwarnings("ignore", message=".*not writable.*")
        try:
            return torch.from_numpy(table)
        except (TypeError, ValueError) as error:  # torch lacks this byte order, type or stride
            raise TypeError(f"{name}: torch cannot read this array: {error!s:.120}") from None

"""Ids from any container, as int64 tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.text import shown

INT64_MAX = 2**63 - 1
IdsLike = int | str | Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[str]
"""Values that callers may pass as ids, of one axis or none; names, too, with a vocabulary."""

_MOST_DIGITS = 19  # digits of the largest id that fits 64 bits


def as_integers(name: str, values: object) -> Tensor:
    """Return integers of any dtype and container as int64, on their device.

    Parameters
    ----------
    name : str
        The name of the argument in errors.
    values : Tensor, array, sequence of int or int
        An int64 tensor or array is not copied.

    Raises
    ------
    TypeError
        For values that are not integers; names need a vocabulary.
    ValueError
        For rows of unequal length, or an id beyond 2**63 - 1.

    Examples
    --------
    >>> as_integers("heads", range(3))
    tensor([0, 1, 2])
    """
    if isinstance(values, Tensor):
        if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            raise TypeError(f"{name} must be integers, got dtype {values.dtype}")
        if values.layout != torch.strided:
            raise TypeError(f"{name} must be dense, got {values.layout}")
        return values.to(torch.int64)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have one shape, got rows of unequal length") from None
    if array.size == 0 and array.dtype.kind == "f":  # dtype that numpy gives an empty sequence
        array = array.astype(np.int64)
    if array.dtype.kind in "US" or _holds_names(array):
        raise TypeError(f"{name} must be integers, got names: names need vocabulary=")
    if array.dtype.kind not in "iu":
        said = "None" if values is None else f"dtype {array.dtype}"
        raise TypeError(f"{name} must be integers, got {said}")
    if array.dtype.kind == "u" and array.size and array.max() > INT64_MAX:
        raise ValueError(f"{name} hold an id beyond 2**63 - 1")
    if any(step < 0 for step in array.strides):  # torch has no negative strides
        array = array.copy()
    return torch.from_numpy(np.require(array.astype(np.int64, copy=False), requirements="W"))


def as_columns(columns: Mapping[str, Any]) -> list[Tensor]:
    """Return columns of ids, int64 ``[T]`` each, by argument names for errors.

    Raises
    ------
    TypeError, ValueError
        For values that :func:`as_integers` refuses, None, another number of axes, and columns of
        unequal length.

    Examples
    --------
    >>> as_columns({"head": [0, 1], "tail": range(2)})
    [tensor([0, 1]), tensor([0, 1])]
    """
    found: list[Tensor] = []
    for name, values in columns.items():
        if values is None:
            raise ValueError(f"{name} must be ids of one axis; got None")
        ids = as_integers(name, values)
        if ids.ndim != 1:
            raise ValueError(f"{name} must have one axis; got shape {list(ids.shape)}")
        if found and len(ids) != len(found[0]):
            raise ValueError(
                f"{name} must have one id for each of {len(found[0])} triples, as "
                f"{next(iter(columns))} has; got {len(ids)}"
            )
        found.append(ids)
    return found


def read_id(field: str, size: int | None = None) -> int:
    """Return the id in a field; a ValueError says what is wrong with the field."""
    digits = field[1:] if field[:1] in ("+", "-") else field
    if not (field.isascii() and digits.isdigit()):
        raise ValueError(f"{shown(field)} is not an integer")
    significant = digits.lstrip("0") or "0"  # Python reads no more than 4,300 digits
    if len(significant) <= _MOST_DIGITS:
        id = -int(significant) if field[0] == "-" else int(significant)
        if id >= 0 and (size is None or id < size):
            return id
    said = field if len(field) <= 24 else f"of {len(digits):,} digits"
    raise ValueError(f"id {said} is outside 0..{'' if size is None else size - 1}")


def _holds_names(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind == "O" and any(isinstance(value, str) for value in array.flat)

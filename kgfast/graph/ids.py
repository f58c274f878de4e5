"""Ids from any container and from lines of text, as int64."""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.text import bad_line, shown

INT64_MAX = 2**63 - 1
IdsLike = int | str | Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[str]
"""Values that callers may pass as ids, of one axis or none; names, too, with a vocabulary."""

_MOST_DIGITS = 19  # digits of the largest id that fits 64 bits


def as_integers(name: str, values: object) -> Tensor:
    """Return integers of any dtype and container as int64, on their device, by a name for errors.

    An int64 tensor or array is not copied. Raises TypeError for values that are not integers, and
    ValueError for rows of unequal length and for ids beyond 2**63 - 1.
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
    kind = array.dtype.kind
    if kind in "US" or (kind == "O" and any(isinstance(value, str) for value in array.flat)):
        raise TypeError(f"{name} must be integers, got names: names need vocabulary=")
    if kind not in "iu":
        said = "None" if values is None else f"dtype {array.dtype}"
        raise TypeError(f"{name} must be integers, got {said}")
    if kind == "u" and array.size and array.max() > INT64_MAX:
        raise ValueError(f"{name} hold an id beyond 2**63 - 1")
    array = array.astype(np.int64, copy=False)
    if not array.flags.writeable or min(array.strides, default=0) < 0:  # torch has neither
        array = array.copy()
    return torch.from_numpy(array)


def as_columns(columns: Mapping[str, Any]) -> list[Tensor]:
    """Return columns of ids, int64 ``[T]`` each, by argument names for errors."""
    lists: list[Tensor] = []
    for name, values in columns.items():
        if values is None:
            raise ValueError(f"{name} must be ids of one axis; got None")
        ids = as_integers(name, values)
        if ids.ndim != 1:
            raise ValueError(f"{name} must have one axis; got shape {list(ids.shape)}")
        if lists and len(ids) != len(lists[0]):
            raise ValueError(
                f"{name} must have one id for each of {len(lists[0])} triples, as "
                f"{next(iter(columns))} has; got {len(ids)}"
            )
        lists.append(ids)
    return lists


def read_id(field: str, size: int | None = None) -> int:
    """Return the id in a field; a ValueError says what is wrong with the field."""
    digits = field[1:] if field[:1] in ("+", "-") else field
    if not (field.isascii() and digits.isdigit()):
        raise ValueError(f"{shown(field)} is not an integer")
    significant = digits.lstrip("0") or "0"  # Python reads no more than 4,300 digits
    if len(significant) <= _MOST_DIGITS:
        id = -int(significant) if field[0] == "-" else int(significant)
        if 0 <= id < (INT64_MAX + 1 if size is None else size):
            return id
    said = field if len(field) <= 24 else f"of {len(digits):,} digits"
    raise ValueError(f"id {said} is outside 0..{'' if size is None else size - 1}")


def places_among(ids: Tensor, ascending: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of ids among ascending ids, and a mask of the ids that are there."""
    if not len(ascending):
        return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    places = torch.searchsorted(ascending, ids).clamp_(max=len(ascending) - 1)
    return places, ascending[places] == ids


def id_rows(
    path: Path, text: bytes, first: int, columns: Mapping[str, int | None]
) -> npt.NDArray[np.int64]:
    """Return the ids of lines of three ids, int64 ``[T, 3]``; the first line is number `first`.

    `columns` maps the name of each column to the number of its ids, or to None for any ids. Blank
    lines are left out. A ValueError names the first wrong line.

    Cost model: numpy reads the text. Text that numpy refuses, and ids out of range, are read line
    by line, to find the wrong line.
    """
    text = text.removeprefix(b"\xef\xbb\xbf") if first == 1 else text
    limits = [INT64_MAX if size is None else size - 1 for size in columns.values()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # for no ids, and for 1.0
            rows = np.loadtxt(BytesIO(text), np.int64, comments=None, ndmin=2, encoding="utf-8")
        if rows.shape[1] == 3 and ((rows >= 0) & (rows <= limits)).all():
            return rows
    except (ValueError, Warning):
        pass
    numbers, lines = [], text.decode(errors="replace").replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, first):
        fields = line.split()
        if fields and len(fields) != 3:
            said = f"expected 3 fields ({' '.join(columns)}), found {len(fields)}"
            raise bad_line(path, number, said, line)
        for field, (column, size) in zip(fields, columns.items(), strict=False):
            try:
                numbers.append(read_id(field, size))
            except ValueError as error:
                raise bad_line(path, number, f"{column} {error}", line) from None
    return np.array(numbers, np.int64).reshape(-1, 3)

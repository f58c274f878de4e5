"""Ids from any container and from lines of text, as int64."""

from collections.abc import Mapping, Sequence
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


def id_rows(
    path: Path, text: bytes, first: int, columns: Mapping[str, int | None]
) -> npt.NDArray[np.int64]:
    """Return the ids of lines of three ids, int64 ``[T, 3]``; the first line is number `first`.

    `columns` maps the name of each column to the number of its ids, or to None for any ids. Blank
    lines are left out. A ValueError names the first wrong line.

    Cost model: a few operations of numpy on each byte and on each digit, 0.2 s for a million lines
    of 20 characters. Text with anything but digits between tabs or spaces is read line by line.
    This takes ten times as long and finds the wrong line.
    """
    if first == 1:
        text = text.removeprefix(b"\xef\xbb\xbf")
    text = text.replace(b"\r\n", b"\n") if b"\r" in text else text
    rows = _digits(text if text.endswith(b"\n") or not text else text + b"\n")
    if rows is not None and not any(
        size is not None and (ids >= size).any()
        for ids, size in zip(rows.T, columns.values(), strict=True)
    ):
        return rows
    numbers = []
    for number, line in enumerate(text.decode(errors="replace").split("\n"), first):
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


def _digits(text: bytes) -> npt.NDArray[np.int64] | None:
    """Return rows of three numbers, int64 ``[n, 3]``; None if other characters occur."""
    characters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(characters < ord("0"))
    if len(ends) % 3 or (characters > ord("9")).any():
        return None
    between = characters[ends].reshape(-1, 3)
    is_tab_or_space = (between[:, :2] == ord("\t")) | (between[:, :2] == ord(" "))
    if not (is_tab_or_space.all() and (between[:, 2] == ord("\n")).all()):
        return None
    sizes = np.diff(ends, prepend=-1) - 1
    if len(sizes) and not (sizes.min() > 0 and sizes.max() < _MOST_DIGITS):
        return None
    values = np.zeros(len(ends), np.int64)
    for place in range(int(sizes.max(initial=0))):
        # shorter numbers read any character here
        digits = characters[ends - 1 - place].astype(np.int64)
        digits -= ord("0")
        digits *= sizes > place
        digits *= 10**place
        values += digits
    return values.reshape(-1, 3)

"""Checks of values that every backend makes, and the errors.

``kgfast.ops`` checks shapes, dtypes and ids before it calls a backend; finite numbers are checked
only where kernels read them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class Values(Enum):
    """Treatment of the values of a call."""

    CHECKED = "checked"
    FORCED = "ids are clamped to rows; nothing else is checked"
    TRUSTED = "ids were checked before; nothing is checked again"


_VALUES: ContextVar[Values] = ContextVar("kgfast_values", default=Values.CHECKED)


def decided_once(function: F) -> F:
    """Let ``torch.compile`` call a function while tracing, and store the result.

    The effect is that of ``torch.compiler.assume_constant_result``, which imports the compiler.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


@decided_once
def checks_values() -> bool:
    """Return whether values are checked here: not within :func:`without_values`."""
    return _VALUES.get() is Values.CHECKED


@contextmanager
def without_values(values: Values = Values.FORCED) -> Iterator[None]:
    """Skip checks of values, in this thread and context; see ``kgfast.unchecked``."""
    token = _VALUES.set(values)
    try:
        yield
    finally:
        _VALUES.reset(token)


class NonFiniteError(ValueError):
    """NaN or infinity in a row of an argument."""

    name: str | None = None
    row: int | None = None


class OutOfRangeError(ValueError):
    """Finite numbers for which a score or a loss is not defined, or not served."""


def nonfinite_error(name: str, row: int) -> NonFiniteError:
    """Make the error for a NaN or an infinity in a row of an argument."""
    error = NonFiniteError(
        f"{name}: row {row} holds a NaN or an infinity; every number that takes part must be "
        f'finite (pass nan="worst" to rank such scores last instead)'
    )
    error.name, error.row = name, row
    return error


def check_finite(name: str, values: Tensor, rows: Tensor | None = None) -> None:
    """Raise for the first row of values ``[R, *]`` that is not finite; ``rows`` are its names."""
    finite = values.isfinite()
    finite = finite.flatten(1).all(1) if values.ndim > 1 else finite
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        raise nonfinite_error(name, first if rows is None else int(rows[first]))


def inside_of(ids: Tensor, count: int) -> Tensor:
    """Clamp ids to ``0 .. count - 1``, unless ids are trusted."""
    return ids if _trusts_ids() else ids.clamp(0, max(0, count - 1))


@decided_once
def _trusts_ids() -> bool:
    return _VALUES.get() is Values.TRUSTED


def rising_of(indptr: Tensor, nnz: int) -> tuple[Tensor, Tensor]:
    """Return whether row pointers rise from 0 to ``nnz`` (bool scalar), and rising pointers.

    If the given pointers do not rise, the first row gets all entries.
    """
    rises = (indptr[0] == 0) & (indptr[-1] == nnz) & (indptr.diff() >= 0).all()
    all_in_the_first = torch.full_like(indptr, nnz)
    all_in_the_first[:1].zero_()
    return rises, torch.where(rises, indptr, all_in_the_first)


class Checks:
    """Checks of one call: made at once, or deferred until the host waits for the device.

    If values are not checked, checks are deferred and then dropped. A backend that takes deferred
    checks calls :meth:`read` before the return. Until then kernels may run on wrong arguments: code
    that defers a check makes sure that nothing is read out of bounds. With ``allows_nan``, NaN and
    infinities rank last instead of raising.
    """

    def __init__(self, *, deferred: bool, allows_nan: bool = False) -> None:
        self.deferred, self.allows_nan = deferred or not checks_values(), allows_nan
        self._kept: list[tuple[Tensor, Callable[[], object]]] = []

    def require(self, holds: Callable[[], Tensor], check: Callable[[], object]) -> None:
        """Do ``check`` at once, or defer it."""
        if self.deferred:
            self.keep(holds(), check)
        else:
            check()

    def keep(self, holds: Tensor, check: Callable[[], object]) -> None:
        """Defer ``check``, which waits for the device and raises unless ``holds`` (bool scalar)."""
        if checks_values():
            self._kept.append((holds, check))

    def read(self, words: Tensor | None = None) -> list[int]:
        """Wait for the device once, raise for the first failing check, and return ``words [W]``."""
        kept, self._kept = self._kept, []
        parts = [holds.reshape(1).long() for holds, _ in kept]
        parts += [] if words is None else [words]
        values: list[int] = torch.cat(parts).cpu().tolist() if parts else []
        for (_, check), holds in zip(kept, values, strict=False):
            if not holds:
                check()
        return values[len(kept) :]

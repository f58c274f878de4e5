"""A case of the fuzz: a number of a kind under a seed, from which everything in it is drawn."""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class Wrong(AssertionError):
    """A result that differs from what is promised."""


class Case:
    """One case: its random numbers, and notes of what was drawn that a failure shows."""

    def __init__(self, kind: str, seed: int, number: int) -> None:
        self.kind, self.seed, self.number = kind, seed, number
        self.pick = random.Random(f"{seed}/{kind}/{number}")
        self.generator = torch.Generator().manual_seed(
            zlib.crc32(f"{seed}/{kind}/{number}".encode())
        )
        self.notes: list[str] = []

    def choice(self, values: Sequence[T]) -> T:
        return self.pick.choice(values)

    def chance(self, probability: float) -> bool:
        return self.pick.random() < probability

    def note(self, **drawn: Any) -> None:
        self.notes += [f"{name}={value}" for name, value in drawn.items()]

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def ids(self, count: int, *shape: int) -> torch.Tensor:
        return torch.randint(max(1, count), shape, generator=self.generator, dtype=torch.int64)


@dataclass(frozen=True)
class Kind:
    """A kind of case; ``run`` raises :class:`Wrong` where a promise is broken."""

    name: str
    run: Callable[[Case], None]
    group: str
    share: float  # cases in 1,000
    seconds: float = 60.0  # until a case is a hang, sanitizers off
    sanitized: Sequence[str] = field(default=("address", "thread"))
    lacks: Callable[[], str] = str  # why it cannot run here; nothing where it can


def expect(holds: bool, message: str) -> None:
    """Raise :class:`Wrong` unless a promise holds."""
    if not holds:
        raise Wrong(message)


def refused(call: Callable[[], Any], *, errors: tuple[type[Exception], ...]) -> str:
    """Return the message of the error that a call must raise, one line of at most 2,000 letters."""
    try:
        result = call()
    except errors as error:
        message = str(error)
    except Exception as error:
        raise Wrong(
            f"raised {type(error).__name__} ({str(error)[:300]!r}), not {errors}"
        ) from error
    else:
        raise Wrong(f"returned {str(result)[:200]!r} where it must raise {errors}")
    expect(bool(message), "the error says nothing")
    expect("\n" not in message, f"the error has several lines: {message[:300]!r}")
    expect(len(message) <= 2000, f"the error has {len(message)} characters: {message[:100]!r}")
    return message

"""A drawn call: a number of a kind, from which everything in it is drawn, and where it runs."""

import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from kgfast import use_backend
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.problems import table_of
from support.sampled import threads
from support.tiers import FORCED

T = TypeVar("T")


class Wrong(AssertionError):
    """A result that differs from what is promised."""


class Case:
    """One case: its random numbers, and notes of what was drawn that a failure shows."""

    def __init__(self, kind: str, number: int) -> None:
        self.pick = random.Random(f"{kind}/{number}")
        self.generator = torch.Generator().manual_seed(zlib.crc32(f"{kind}/{number}".encode()))
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

    def triples(self, count: int, entities: int, relations: int) -> torch.Tensor:
        columns = [self.ids(size, count) for size in (entities, relations, entities)]
        return torch.stack(columns, 1)


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


@contextmanager
def anywhere(case: Case, reference: float = 0.1) -> Iterator[str]:
    """Draw a backend, instruction set, tiers and number of threads; yield the backend."""
    backend = "reference" if case.chance(reference) or not cpu.is_available() else "cpu"
    count = case.choice((1, 1, 2, 3, 4))
    case.note(backend=backend, threads=count)
    with ExitStack() as stack:
        stack.enter_context(use_backend(backend))
        if backend == "cpu":
            isa = case.choice(cpu.available_isas())
            names = [name for name in tiers.TIERS if case.chance(0.7)]
            forced = case.chance(0.4)
            case.note(isa=isa, tiers=",".join(names), forced=forced)
            stack.enter_context(variable("KGFAST_CPU_ISA", isa))
            mask = sum(1 << tiers.TIERS.index(name) for name in names)
            stack.enter_context(tiers.serving(mask | FORCED * forced))
        stack.enter_context(threads(count))
        yield backend


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def matrix(case: Case, kind: str, rows: int, width: int) -> Tensor:
    """Draw float64 values ``[rows, width]`` of a kind that is hard in its own way."""
    if kind == "close":
        return case.normal(1, width) + 10.0 ** case.pick.randint(-12, -4) * case.normal(rows, width)
    if kind == "subnormal":  # subnormal in float64, or in float32
        step = case.choice((1e-310, 5e-324, 1e-308, 1e-42, 1e-45))
        return case.ids(50, rows, width).double() * step
    values = table_of(kind, rows, width, case.generator)
    return values.clamp(-1e12, 1e12) if kind == "cauchy" else values

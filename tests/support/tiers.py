"""The CPU backend with tiers that a test names, held against what it computes without."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers

from . import flat
from .problems import Problem

FP16, BF16, INT8, LINEAR = (1 << bit for bit in range(len(tiers.TIERS)))
Results = Sequence[Tensor]
FORCED = 256  # csrc/host/tiers.h: serve whatever it costs


def needs_tier(name: str) -> pytest.MarkDecorator:
    """Skips where this machine or build lacks a tier."""
    has = cpu.is_available() and name in tiers.available(cpu.isa())
    return pytest.mark.skipif(not has, reason=f"this machine or build has no tier {name}")


@contextmanager
def serving(mask: int) -> Iterator[None]:
    """Only these tiers serve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "mask", lambda: mask)
        yield


def pairs_of(call: Callable[[], Results], counter: str = "tier_pairs") -> tuple[list[int], Results]:
    """What a call adds to what the extension counts of pairs, and what it returns."""
    count = getattr(cpu.extension, counter)
    before = count()
    result = call()
    return [b - a for a, b in zip(before, count(), strict=True)], result


def assert_same(call: Callable[[], Results], *masks: int, counter: str = "tier_pairs") -> list[int]:
    """Hold what a call returns by tiers against what it returns without any.

    Returns
    -------
    list of int
        What the extension counts of the pairs of the last of ``masks``: ``tier_pairs`` are those
        that were swept, gathered and left to canonical scores.
    """
    with serving(0):
        pairs, expected = pairs_of(call, counter)
    assert not any(pairs)
    for mask in masks:
        with serving(mask):
            pairs, found = pairs_of(call, counter)
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b), mask
    return pairs


def assert_same_counts(problem: Problem, *masks: int, counter: str = "tier_pairs") -> list[int]:
    """:func:`assert_same` of the counts of a ranking."""
    return assert_same(
        lambda: flat.cpu.rank_counts(*problem.args, **problem.kwargs), *masks, counter=counter
    )

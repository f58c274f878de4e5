"""Random streams: their names, and the hash that makes seeds and noise from numbers.

Every random number is a function of the run's seed, a stream and a number, so a resumed run needs
no saved state. The hash is splitmix64 (Steele et al. 2014).
"""

from enum import IntEnum

from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15  # the step of a counter: 2**64 over the golden ratio, odd
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


class Stream(IntEnum):
    """Streams of a run; streams of steps are not negative."""

    HEAD_BATCHES = 0
    TAIL_BATCHES = 1
    NEGATIVES = 2
    DROPOUT = 3
    SUBMODELS = 4
    INFLUENCE = 5
    MODEL = -1
    START = -2
    FILTERS = -3


class DrawStream(IntEnum):
    """Streams of noise that an output layer draws: of blocks of outputs, and within one block."""

    BLOCKS = 1
    WITHIN = 2


def mix(*values: int) -> int:
    """Return a seed in ``0 .. 2**63 - 1`` that depends on all values: splitmix64, chained.

    Examples
    --------
    >>> mix(0, 1) != mix(1, 0)
    True
    """
    state = 0
    for value in values:
        state = (state + value + GOLDEN) & _WORD
        state = ((state ^ (state >> 30)) * _FIRST) & _WORD
        state = ((state ^ (state >> 27)) * _SECOND) & _WORD
        state ^= state >> 31
    return state >> 1


def scrambled(words: Tensor) -> Tensor:
    """Return the finalizer of splitmix64 of 64-bit words, stored as int64."""
    words = (words ^ shifted(words, 30)) * signed(_FIRST)
    words = (words ^ shifted(words, 27)) * signed(_SECOND)
    return words ^ shifted(words, 31)


def shifted(words: Tensor, count: int) -> Tensor:
    """Return int64 words shifted to the right with zeros, as unsigned numbers are."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def signed(word: int) -> int:
    """Return the int64 of the bits of a word."""
    return word - (1 << 64) if word >> 63 else word

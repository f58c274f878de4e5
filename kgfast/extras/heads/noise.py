"""Gumbel noise that is a function of seed, row and output: no state, no order, no memory of it.

A stream of splitmix64 (Steele et al. 2014) for each row, whose counter is the id of the output: two
calls agree on the noise of a pair however rows and outputs are cut, on any device.
"""

from torch import Tensor

from kgfast.training import mix

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as int64, whose products wrap around
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def gumbel(seed: int, rows: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise of pairs.

    Parameters
    ----------
    seed : int
        Any.
    rows, ids : Tensor
        int64, of shapes that broadcast.

    Returns
    -------
    Tensor
        float64, of the shape of both: ``-log(-log u)`` with ``u`` uniform in the middles of
        ``2**53`` intervals of ``(0, 1)``, so always finite.

    Examples
    --------
    >>> import torch
    >>> rows, ids = torch.arange(2)[:, None], torch.arange(3)
    >>> noise = gumbel(0, rows, ids)
    >>> noise.shape, bool((noise[1:, 2:] == gumbel(0, rows[1:], ids[2:])).all())
    (torch.Size([2, 3]), True)
    """
    keys = _finished(rows * _GOLDEN + _signed(mix(seed)))
    bits = _finished((ids + 1) * _GOLDEN + keys)
    uniform = _shifted(bits, 11).double().add_(0.5).mul_(2.0**-53)
    return uniform.log_().neg_().log_().neg_()


def _finished(state: Tensor) -> Tensor:
    """The finalizer of splitmix64."""
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, count: int) -> Tensor:
    """Shifted to the right with zeros, as of unsigned numbers."""
    return (state >> count) & ((1 << (64 - count)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word

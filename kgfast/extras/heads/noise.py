"""Gumbel noise that is a function of seed, row and output: no state, no order, no memory of it.

A stream of splitmix64 (Steele et al. 2014) for each row, whose counter is the id of the output: two
calls agree on the noise of a pair however rows and outputs are cut, on any device.
"""

from torch import Tensor

from kgfast.rng import GOLDEN, mix, scrambled, shifted, signed

_STEP = signed(GOLDEN)


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
    keys = scrambled(rows * _STEP + mix(seed))
    bits = scrambled((ids + 1) * _STEP + keys)
    uniform = shifted(bits, 11).double().add_(0.5).mul_(2.0**-53)
    return uniform.log_().neg_().log_().neg_()

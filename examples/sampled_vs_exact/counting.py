"""Counts of drawn negatives that beat the targets: by ranking among them, or from bits.

To rank among lists reads scattered rows of the table, and again in each draw. Bits say once for
each query which entities score higher than the target; a draw then costs a look-up each. Pairs
whose float32 scores are too close to call are decided by :func:`kgfast.rank`, as all others are
there, and the sums of the bits must be the exact counts.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import kgfast
from kgfast import Ranks
from kgfast.models import Model

from .negatives import SIDES

_BLOCK = 64  # queries whose scores of all entities are held
_CLOSE = 1e-5  # share of a query's largest score: differences that float32 may have wrong

Counts = tuple[Tensor, Tensor]  # numbers of greater and of equal candidates, int64 [T, 2]
_Bytes = npt.NDArray[np.uint8]


class Bits(NamedTuple):
    """Entities that score higher than the targets, and as high, a bit each: ``[T, N / 8]``."""

    greater: dict[str, _Bytes]
    equal: dict[str, _Bytes]


class Draw:
    """Negatives of a draw, and where their bits are.

    Parameters
    ----------
    ids : dict of str to Tensor
        For "head" and "tail" int64 ``[T, K]``, -1 where a query has fewer.
    """

    def __init__(self, ids: dict[str, Tensor]) -> None:
        self.ids = ids
        numbers = {side: own.clamp(min=0).numpy() for side, own in ids.items()}
        self._bytes = {side: own >> 3 for side, own in numbers.items()}
        self._shifts = {side: (own & 7).astype(np.uint8) for side, own in numbers.items()}
        self._there = {side: (own >= 0).numpy() for side, own in ids.items()}

    def ranked(self, model: Model, hrt: Tensor, first: int, last: int) -> Counts:
        """Count by ranking among the negatives of some columns."""
        part = {side: self.ids[side][:, first:last].contiguous() for side in SIDES}
        ranks = kgfast.rank(model, hrt, known=None, candidate_ids=part)
        return ranks.greater, ranks.equal

    def counted(self, bits: Bits, first: int, last: int) -> Counts:
        """Count from bits."""
        greater, equal = (
            torch.stack([self._sums(own[side], side, first, last) for side in SIDES], 1)
            for own in bits
        )
        return greater, equal

    def _sums(self, packed: _Bytes, side: str, first: int, last: int) -> Tensor:
        columns = np.s_[:, first:last]
        if not packed.size:  # no bit is set
            return torch.zeros(len(packed), dtype=torch.int64, device="cpu")
        found = np.take_along_axis(packed, self._bytes[side][columns], axis=1)
        found >>= self._shifts[side][columns]
        found &= self._there[side][columns]
        return torch.from_numpy(found.sum(axis=1, dtype=np.int64))


@torch.no_grad()
def bits_of(model: Model, hrt: Tensor, exact: Ranks) -> Bits | None:
    """Find the entities that score higher than each target, and as high.

    Parameters
    ----------
    model : Model
        In eval mode.
    hrt : Tensor
        int64 ``[T, 3]``.
    exact : Ranks
        Unfiltered ranks of the triples among all entities.

    Returns
    -------
    Bits, optional
        None if the bits of a query do not add up to its exact counts.
    """
    found = Bits({}, {})
    for column, side in enumerate(SIDES):
        anchors, targets = (hrt[:, 2], hrt[:, 0]) if side == "head" else (hrt[:, 0], hrt[:, 2])
        parts = [
            _beating(model, hrt[rows], anchors[rows], targets[rows], side)
            for rows in torch.arange(len(hrt), dtype=torch.int64, device="cpu").split(_BLOCK)
        ]
        own = [exact.greater[:, column], exact.equal[:, column]]
        for kind, blocks, count in zip(found, zip(*parts, strict=True), own, strict=True):
            if not torch.equal(torch.cat([sums for _, sums in blocks]), count):
                return None
            packed = np.concatenate([bits for bits, _ in blocks])
            kind[side] = packed if int(count.sum()) else packed[:, :0]
    return found


_Packed = tuple[_Bytes, Tensor]  # bits, and their sums for each query


def _beating(
    model: Model, hrt: Tensor, anchors: Tensor, targets: Tensor, side: str
) -> tuple[_Packed, _Packed]:
    """Return the entities that score higher than the targets of a block, and as high."""
    candidates = model.candidates(side)
    queries = model.queries(anchors, hrt[:, 1], side).float()
    scores = kgfast.ops.pairwise_scores(queries, score=model.score, **candidates.operands())
    largest = scores.abs().amax(1, keepdim=True)
    scores -= scores.gather(1, targets[:, None])
    greater, equal = scores > 0, torch.zeros_like(scores, dtype=torch.bool)
    close = scores.abs_() <= _CLOSE * largest
    close[torch.arange(len(hrt), dtype=torch.int64, device="cpu"), targets] = False
    rows, ids = close.nonzero().unbind(1)
    if len(rows):
        own = kgfast.rank(
            model, hrt[rows], known=None, sides=(side,), candidate_ids={side: ids[:, None]}
        )
        greater[rows, ids], equal[rows, ids] = own.greater[:, 0] > 0, own.equal[:, 0] > 0
    return _packed(greater), _packed(equal)


def _packed(given: Tensor) -> _Packed:
    return np.packbits(given.numpy(), axis=1, bitorder="little"), given.sum(1)

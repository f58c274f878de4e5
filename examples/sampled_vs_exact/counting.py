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
from kgfast.models import Candidates, Model

from .negatives import SIDES

_BLOCK = 64  # queries whose scores of all entities are held
_CLOSE = 1e-5  # of the largest score of a query: differences that float32 may have wrong

Counts = tuple[Tensor, Tensor]  # of greater and of equal candidates, int64 [T, 2]
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
        parts: tuple[list[_Bytes], list[_Bytes]] = [], []
        sums = []
        for rows in torch.arange(len(hrt), dtype=torch.int64, device="cpu").split(_BLOCK):
            signs = _signs(model, hrt[rows], anchors[rows], targets[rows], side)
            for own, sign in zip(parts, (1, 0), strict=True):
                own.append(np.packbits(signs == sign, axis=1, bitorder="little"))
            sums.append(np.stack([(signs == sign).sum(1) for sign in (1, 0)], 1))
        counts = torch.from_numpy(np.concatenate(sums))
        if not torch.equal(counts, torch.stack([exact.greater, exact.equal], 2)[:, column]):
            return None
        for kind, own, total in zip(found, parts, counts.sum(0).tolist(), strict=True):
            packed = np.concatenate(own)
            kind[side] = packed if total else packed[:, :0]
    return found


def _signs(
    model: Model, hrt: Tensor, anchors: Tensor, targets: Tensor, side: str
) -> npt.NDArray[np.int8]:
    """Return for ``[B, N]`` 1: higher than the target, 0: as high, -1: lower, or the target."""
    candidates = model.candidates(side)
    if not isinstance(candidates, Candidates):
        candidates = Candidates(candidates)
    queries = model.queries(anchors, hrt[:, 1], side).float()
    scores = kgfast.ops.pairwise_scores(queries, score=model.score, **candidates.operands())
    distance = scores - scores.gather(1, targets[:, None])
    close = distance.abs() <= _CLOSE * scores.abs().amax(1, keepdim=True)
    rows = torch.arange(len(hrt), dtype=torch.int64, device="cpu")
    close[rows, targets] = False
    distance[rows, targets] = -1.0
    signs = distance.sign().to(torch.int8)
    rows, ids = close.nonzero().unbind(1)
    if len(rows):
        own = kgfast.rank(
            model, hrt[rows], known=None, sides=(side,), candidate_ids={side: ids[:, None]}
        )
        decided = torch.where(own.greater > 0, 1, torch.where(own.equal > 0, 0, -1))
        signs[rows, ids] = decided[:, 0].to(torch.int8)
    return signs.numpy()

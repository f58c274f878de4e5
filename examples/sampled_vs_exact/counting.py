"""Counts of drawn negatives that beat the targets: by ranking among them, or from bits.

Ranking among lists reads scattered rows of the entity table in every draw. Bits say, once for each
query, which entities score higher than the target; a draw then is a mask of these bits.
:func:`kgfast.rank` decides pairs whose float32 scores are too close to call. The sums of the bits
must equal the exact counts.

Cost model of a draw, for each query and side: N / 64 words, ANDed and counted, against K scattered
reads of D numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import kgfast
from kgfast import Ranks
from kgfast.models import Model

from .negatives import SIDES

_BLOCK = 256  # queries of a block: scores of all entities exist for one block
_CLOSE = 1e-5  # share of a query's largest score: differences that float32 may have wrong

Counts = tuple[Tensor, Tensor]  # numbers of greater and of equal candidates, int64 [T, 2]
_Words = npt.NDArray[np.uint64]


class Bits(NamedTuple):
    """Entities that score higher than the targets, and as high: uint64 ``[T, N / 64]``.

    The second dimension is 0 where no bit is set.
    """

    greater: dict[str, _Words]
    equal: dict[str, _Words]


class Draw:
    """Negatives of a draw.

    Parameters
    ----------
    ids : dict of str to Tensor
        For "head" and "tail" int64 ``[T, K]``, distinct in a row, -1 where a query has fewer.
    num_entities : int
        Number of entities.
    counts : sequence of int
        Numbers of first columns, each a list of negatives.

    Attributes
    ----------
    sizes : dict of int to Tensor
        For each of ``counts`` the candidates of a query, its target included: int64 ``[T, 2]``.
    """

    def __init__(self, ids: dict[str, Tensor], num_entities: int, counts: Sequence[int]) -> None:
        self.ids = ids
        self.sizes = {
            count: 1 + torch.stack([(ids[side][:, :count] >= 0).sum(1) for side in SIDES], 1)
            for count in counts
        }
        self._num_entities = num_entities
        self._masks: dict[tuple[str, int, int], _Words] = {}

    def ranked(self, model: Model, hrt: Tensor, first: int, last: int) -> Counts:
        """Count by ranking among the negatives of some columns."""
        part = {side: self.ids[side][:, first:last].contiguous() for side in SIDES}
        ranks = kgfast.rank(model, hrt, known=None, candidate_ids=part)
        return ranks.greater, ranks.equal

    def counted(self, bits: Bits, first: int, last: int) -> Counts:
        """Count from bits."""
        greater, equal = (
            torch.stack([_common(own[side], self._mask(side, first, last)) for side in SIDES], 1)
            for own in bits
        )
        return greater, equal

    def _mask(self, side: str, first: int, last: int) -> _Words:
        """Return the bits of the negatives of some columns, which all models share."""
        key = side, first, last
        if key not in self._masks:
            parts = self.ids[side][:, first:last].split(_BLOCK)
            self._masks[key] = np.concatenate([_mask_of(it, self._num_entities) for it in parts])
        return self._masks[key]


def _mask_of(ids: Tensor, num_entities: int) -> _Words:
    found = torch.zeros(len(ids), num_entities + 1, dtype=torch.bool, device="cpu")
    found.scatter_(1, ids.where(ids >= 0, num_entities), True)
    return _packed(found[:, :num_entities])


def _common(one: _Words, other: _Words) -> Tensor:
    """Count the bits of each row that are set in both."""
    if not one.size:
        return torch.zeros(len(one), dtype=torch.int64, device="cpu")
    starts = range(0, len(one), _BLOCK)
    return torch.cat([_sums(one[it : it + _BLOCK] & other[it : it + _BLOCK]) for it in starts])


def _sums(words: _Words) -> Tensor:
    """Count the bits of each row."""
    return torch.from_numpy(np.bitwise_count(words).sum(axis=1, dtype=np.int64))


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
            packed = np.concatenate(blocks)
            if not torch.equal(_sums(packed), count):
                return None
            kind[side] = packed if int(count.sum()) else packed[:, :0]
    return found


def _beating(
    model: Model, hrt: Tensor, anchors: Tensor, targets: Tensor, side: str
) -> tuple[_Words, _Words]:
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


def _packed(given: Tensor) -> _Words:
    """Pack bits ``[B, N]`` into words ``[B, N / 64]``; the last one is filled up with zeros."""
    packed = np.packbits(given.numpy(), axis=1, bitorder="little")
    filled = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 8)))
    return filled.view(np.uint64)

"""Ranks by definition: canonical float64 scores of all pairs, compared and counted.

Cost model: D passes of a few elementwise float64 operations over ``[b, n]`` tiles of at most
``TILE`` pairs; about 1 GB/s of candidates, for any score. Memory: six such tiles.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..ieee import ieee_arithmetic
from ..operands import Counts, Known, Operands
from .tiles import TILE, Tiles


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
) -> Counts:
    """Count; the specification of :func:`kgfast.ops.rank_counts`."""
    pairs = _excluded_pairs(targets, known, operands.candidates.ids)
    with ieee_arithmetic():
        results = []
        for crop, dim in enumerate(operands.crops):
            tiles = Tiles(operands, dim, checks)
            if target_scores is None:
                threshold = tiles.pairs(_places(targets), targets)
            else:
                threshold = target_scores[crop]
            raw = _count_candidates(tiles, threshold, targets)
            results.append(torch.stack((*raw, *_count_pairs(tiles, threshold, *pairs))))
    return Counts.of(torch.stack(results), operands)


def target_scores(operands: Operands, targets: Tensor, checks: Checks) -> Tensor:
    """Return canonical scores of the targets at every crop, float64 ``[C, B]``."""
    with ieee_arithmetic():
        scores = [
            Tiles(operands, dim, checks).pairs(_places(targets), targets) for dim in operands.crops
        ]
    return torch.stack(scores)


def _count_candidates(
    tiles: Tiles, target_scores: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Count the candidates other than the target that score above the target, or equal."""
    pool = tiles.candidates
    candidate_ids = _places(pool.table) if pool.ids is None else pool.ids
    greater, equal = torch.zeros_like(targets), torch.zeros_like(targets)
    columns = max(1, min(len(candidate_ids), TILE // max(1, pool.table.shape[1])))
    rows = max(1, TILE // columns)
    for i in range(0, len(targets), rows):
        block = slice(i, i + rows)
        threshold = target_scores[block, None]
        for j in range(0, len(candidate_ids), columns):
            ids = candidate_ids[j : j + columns]
            scores = tiles.tile(block, ids)  # [b, n]
            other = ids != targets[block, None]
            greater[block] += (_beats(scores, threshold) & other).sum(1)
            equal[block] += ((scores == threshold) & other).sum(1)
    return greater, equal


def _beats(scores: Tensor, threshold: Tensor) -> Tensor:
    """Return a mask of candidates above the target; all are above a target that scores NaN."""
    return (scores > threshold) | threshold.isnan()


def _count_pairs(
    tiles: Tiles, target_scores: Tensor, rows: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Do :func:`_count_candidates` over explicit (query, candidate) pairs."""
    scores, threshold = tiles.pairs(rows, ids), target_scores[rows]
    zeros = rows.new_zeros(len(target_scores))
    greater = zeros.index_add(0, rows, _beats(scores, threshold).long())
    equal = zeros.index_add(0, rows, (scores == threshold).long())
    return greater, equal


def _excluded_pairs(
    targets: Tensor, known: Known, candidate_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return distinct (query, known id) pairs of candidates other than the target."""
    indptr, indices = known
    rows = torch.repeat_interleave(_places(targets), indptr[1:] - indptr[:-1])
    pairs = torch.stack([rows, indices[int(indptr[0]) : int(indptr[-1])]], 1).unique(dim=0)
    rows, ids = pairs[:, 0], pairs[:, 1]
    keep = ids != targets[rows]
    if candidate_ids is not None:
        keep &= torch.isin(ids, candidate_ids)
    return rows[keep], ids[keep]


def _places(rows: Tensor) -> Tensor:
    """Return the place of each row, ``[R]``, on the device of the rows."""
    return torch.arange(len(rows), dtype=torch.int64, device=rows.device)

"""Ranks by definition: canonical float64 scores of all pairs, compared and counted.

Cost model: D passes of a few elementwise float64 operations over ``[b, n]`` tiles of at most
``TILE`` pairs; about 1 GB/s of candidates, for any score. Memory: six such tiles.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..ieee import ieee_arithmetic
from ..lists import contains, excluded_keys, keys_of, list_counts
from ..operands import Counts, Known, Lists, Operands
from .tiles import TILE, Tiles, scoring


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
    lists: Lists | None = None,
) -> Counts:
    """Count; the specification of :func:`kgfast.ops.rank_counts`."""
    if lists is not None:
        return list_counts(scoring(operands, checks), operands, lists, targets, known)
    excluded = excluded_keys(known, operands)
    with ieee_arithmetic():
        results = []
        for crop, dim in enumerate(operands.crops):
            tiles = Tiles(operands, dim, checks)
            if target_scores is None:
                threshold = tiles.pairs(places_of(targets), targets)
            else:
                threshold = target_scores[crop]
            results.append(_count(tiles, operands, threshold, targets, excluded))
    return Counts.of(torch.stack(results), operands)


def target_scores(operands: Operands, targets: Tensor, checks: Checks) -> Tensor:
    """Return canonical scores of the targets at every crop, float64 ``[C, B]``."""
    with ieee_arithmetic():
        scores = [
            Tiles(operands, dim, checks).pairs(places_of(targets), targets)
            for dim in operands.crops
        ]
    return torch.stack(scores)


def _count(
    tiles: Tiles, operands: Operands, target_scores: Tensor, targets: Tensor, excluded: Tensor
) -> Tensor:
    """Count the candidates other than the target, ``[4, B]``, as :class:`Counts` has them."""
    candidates, rows_of = operands.candidates, places_of(targets)
    candidate_ids = places_of(candidates.table) if candidates.ids is None else candidates.ids
    counts = targets.new_zeros(4, len(targets))
    columns = max(1, min(len(candidate_ids), TILE // max(1, candidates.table.shape[1])))
    rows = max(1, TILE // columns)
    for i in range(0, len(targets), rows):
        block = slice(i, i + rows)
        threshold = target_scores[block, None]
        for j in range(0, len(candidate_ids), columns):
            ids = candidate_ids[j : j + columns]
            scores = tiles.tile(block, ids)  # [b, n]
            other = ids != targets[block, None]
            # all are above a target that scores NaN
            greater = ((scores > threshold) | threshold.isnan()) & other
            equal = (scores == threshold) & other
            is_known = contains(excluded, keys_of(rows_of[block, None], ids, operands))
            kinds = greater, equal, greater & is_known, equal & is_known
            counts[:, block] += torch.stack([kind.sum(1) for kind in kinds])
    return counts


def places_of(rows: Tensor) -> Tensor:
    """Return the place of each row, ``[R]``, on the device of the rows."""
    return torch.arange(len(rows), dtype=torch.int64, device=rows.device)

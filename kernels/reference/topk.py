"""Best k candidates by definition: canonical float64 scores of every pair, sorted.

The cost model is that of :mod:`.rank` for the scores, and a stable sort of k + n numbers per query
and tile of n candidates. Memory: a few ``[b, k + n]`` tiles.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..ieee import ieee_arithmetic
from ..lists import contains, excluded_keys, keys_of, list_topk
from ..operands import Known, Lists, Operands
from .tiles import TILE, Tiles, scoring

_NUMBER, _NAN, _MISSING = 0, 1, 2  # numbers come before NaN, places without a candidate last


def topk(
    operands: Operands, k: int, known: Known | None, checks: Checks, lists: Lists | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best; the specification of :func:`kgfast.ops.topk`.

    Places beyond the last candidate of a query hold id -1 and score -inf.
    """
    if lists is not None:
        return list_topk(scoring(operands, checks), operands, lists, k, known)
    table, ids = operands.table, operands.candidates.sorted_ids
    if ids is None:
        ids = torch.arange(len(table), dtype=torch.int64, device=table.device)
    excluded = excluded_keys(known, operands)
    with ieee_arithmetic():
        results = [
            _topk_crop(Tiles(operands, dim, checks), operands, k, ids, excluded)
            for dim in operands.crops
        ]
    scores, best = (torch.stack(column) for column in zip(*results, strict=True))
    return (scores[0], best[0]) if operands.dims is None else (scores, best)


def _topk_crop(
    tiles: Tiles, operands: Operands, k: int, ids: Tensor, excluded: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scores and ids of one crop, ``[B, k]``; ``ids`` ascend."""
    queries = tiles.queries
    scores = queries.new_full((len(queries), k), -torch.inf)
    best = ids.new_full((len(queries), k), -1)
    columns = max(1, min(len(ids), TILE // tiles.candidates.table.shape[1]))
    rows = max(1, TILE // (columns + k))
    every = torch.arange(len(queries), dtype=torch.int64, device=ids.device)
    for i in range(0, len(queries), rows):
        block = slice(i, i + rows)
        values, kept = scores[block].double(), best[block]
        for j in range(0, len(ids), columns):
            here = ids[j : j + columns]
            known_here = contains(excluded, keys_of(every[block, None], here, operands))
            values = torch.cat([values, tiles.tile(block, here)], 1)
            kept = torch.cat([kept, torch.where(known_here, -1, here)], 1)
            order = best_first(values, kept)[:, :k]
            values, kept = values.gather(1, order), kept.gather(1, order)
        scores[block] = torch.where(kept < 0, -torch.inf, values)  # rounds once
        best[block] = kept
    return scores, best


def best_first(scores: Tensor, ids: Tensor) -> Tensor:
    """Order places from best to worst: by score, and among equals by ascending id."""
    kind = torch.where(scores.isnan(), _NAN, _NUMBER).where(ids >= 0, _MISSING)
    by_score = scores.nan_to_num(0.0, torch.inf, -torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    return by_score.gather(1, kind.gather(1, by_score).argsort(dim=1, stable=True))

"""Candidates with scores that reach a threshold, by definition: canonical scores of all pairs.

The cost model is that of :mod:`.rank`. Memory: a few ``[b, n]`` tiles, and the results.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..ieee import ieee_arithmetic
from ..operands import Above, Known, Operands
from .tiles import TILE, Tiles
from .topk import excluded_pairs, removed


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | int:
    """Find all candidates; the specification of :func:`kgfast.ops.above`."""
    table, ids = operands.table, operands.candidates.sorted_ids
    if ids is None:
        ids = torch.arange(len(table), dtype=torch.int64, device=table.device)
    excluded = excluded_pairs(known, ids)
    columns = max(1, min(len(ids), TILE // table.shape[1]))
    rows, count = max(1, TILE // columns), 0
    none = ids[:0], ids[:0], operands.queries.new_empty(0)
    parts = [none]
    with ieee_arithmetic(operands.num_queries * table.numel()):
        tiles = Tiles(operands, operands.crops[0], checks)
        for i in range(0, len(lowest), rows):
            block, found = slice(i, i + rows), [none]
            for j in range(0, len(ids), columns):
                scores = tiles.tile(block, ids[j : j + columns])
                reaches = scores >= lowest[block, None]
                reaches &= ~removed(excluded, block, j, reaches)
                count += int(reaches.sum())
                if count <= most:
                    row, place = reaches.nonzero(as_tuple=True)
                    found.append((row + i, ids[j + place], scores[reaches].to(none[2].dtype)))
            row, own, values = (torch.cat(column) for column in zip(*found, strict=True))
            order = row.argsort(stable=True)
            parts.append((row[order], own[order], values[order]))
    if count > most:
        return count
    row, own, values = (torch.cat(column) for column in zip(*parts, strict=True))
    return Above.of(row, own, values, len(lowest))

"""Candidates above a threshold by definition: canonical float64 scores of every pair, compared.

Cost model and memory are those of :mod:`.rank`, and the results in pieces.
"""

import torch
from torch import Tensor

from ..above import merged
from ..checks import Checks
from ..ieee import ieee_arithmetic
from ..lists import contains, excluded_keys, keys_of
from ..operands import Above, Known, Operands
from .rank import places_of
from .tiles import TILE, Tiles


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | None:
    """Find all candidates; the specification of ``Backend.above``."""
    candidates, excluded = operands.candidates, excluded_keys(known, operands)
    ids = places_of(candidates.table) if candidates.ids is None else candidates.sorted_ids
    assert ids is not None
    columns = max(1, min(len(ids), TILE // operands.table.shape[1]))
    pieces: list[tuple[Tensor, Above]] = []
    with ieee_arithmetic():
        tiles = Tiles(operands, operands.crops[0], checks)
        for rows in places_of(lowest).split(max(1, TILE // columns)):
            for here in ids.split(columns):
                scores, keys = tiles.tile(rows, here), keys_of(rows[:, None], here, operands)
                reaches = (scores >= lowest[rows, None]) & ~contains(excluded, keys)
                indptr = torch.nn.functional.pad(reaches.sum(1).cumsum(0), (1, 0))
                results = here.expand_as(reaches)[reaches], scores[reaches]
                most -= len(results[0])
                if most < 0:
                    return None
                rounded = results[1].to(operands.queries.dtype)
                pieces.append((rows, Above(indptr, results[0], rounded)))
    return merged(pieces, len(lowest), operands.queries)

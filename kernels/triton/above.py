"""Candidates with scores that reach a threshold, on a GPU: the top-k sweep, fixed limits.

A pair survives unless the sweep proves that the score is below the threshold. Canonical scores
decide the survivors.

Cost model: the sweep of ranks, a canonical score per result, and a sort of the results. Memory: 40
MiB of packed rows, of which 16 MiB of queries stay while a band of 4 MiB is sorted and scored in 24
MiB, and the results in pieces, which are freed after the copy. The host waits twice for a piece: a
pass of queries and all candidates, if the band holds their survivors, or else some candidates.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..above import merged
from ..checks import Checks
from ..operands import Above, Known, Operands
from .device.best import NO_LANE
from .device.canonical import Pairs
from .device.sweep import Tally
from .host import configs
from .host import launch as launcher
from .host.scan import Scan, excluded_keys, score_pairs, spans
from .host.status import Status


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | None:
    """Find all candidates; the contract is that of ``Backend.above``."""
    pieces: list[tuple[Tensor, Above]] = []
    with launcher.serving(operands.table.device) as arch:
        for piece in _find(operands, arch, lowest, known, checks):
            pieces.append(piece)
            most -= len(piece[1].ids)
            if most < 0:
                return None
    checks.read()
    return merged(pieces, operands.num_queries, operands.queries)


def _find(
    operands: Operands, arch: int, lowest: Tensor, known: Known | None, checks: Checks
) -> Iterator[tuple[Tensor, Above]]:
    """Yield queries and their results among some candidates; for one query, ids ascend."""
    excluded = excluded_keys(operands.candidates, known)
    scan, status = Scan(operands, operands.crops[0], arch), Status(1, lowest.device)
    ids, scan.status = scan.ids, None if checks.allows_nan else status.rows
    band = torch.empty(configs.BAND_PAIRS, dtype=torch.int64, device=lowest.device)
    start = torch.zeros_like(status.unsorted)
    tally = Tally(None, band, start.clone(), len(band))
    every = torch.arange(len(lowest), dtype=torch.int64, device=lowest.device)
    for first, stop in spans(len(every), min(scan.height, len(band) // scan.tile.lanes)):
        scan.take((first, stop))
        scan.limit(lowest)
        for size in scan.pieces(tally, start, status, checks):
            pairs = band[:size].sort().values
            scores = torch.empty_like(pairs, dtype=torch.float64)
            score_pairs(operands, scan.dim, Pairs(pairs, None, ids, lowest, scores, excluded))
            rows, lanes = pairs >> 32, pairs & NO_LANE
            reaches = (scores >= lowest[rows]) & (lanes != NO_LANE)
            places = reaches.nonzero()[:, 0]
            counts = (rows[places] - first).bincount(minlength=stop - first)
            indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
            lanes, scores = lanes[places], scores[places].to(operands.queries.dtype)
            found = Above(indptr, lanes if ids is None else ids[lanes], scores)
            yield every[first:stop], found

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

from ..above import counts_above, merged
from ..checks import Checks
from ..operands import Above, Known, Operands
from . import rank
from .device.best import NO_LANE
from .device.canonical import Pairs
from .host import configs
from .host import launch as launcher
from .host.scan import Crop, excluded_keys, scan_of
from .host.status import Status


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | int:
    """Find all candidates; the contract is :func:`kgfast.kernels.above.above`."""
    pieces: list[tuple[Tensor, Above]] = []
    total = 0
    with launcher.serving(operands.table.device) as arch:
        crop = Crop(operands, operands.crops[0], arch, allows_nan=checks.allows_nan)
        for piece in _find(crop, lowest, known, checks):
            pieces.append(piece)
            total += len(piece[1].ids)
            if total > most:
                return int(counts_above(rank, operands, lowest, known, checks).sum())
    checks.read()
    return merged(pieces, operands.num_queries, operands.queries)


def _find(
    crop: Crop, lowest: Tensor, known: Known | None, checks: Checks
) -> Iterator[tuple[Tensor, Above]]:
    """Yield queries and their results among some candidates; for one query, ids ascend."""
    candidates, ids = crop.operands.candidates, crop.operands.candidates.sorted_ids
    plan, excluded = crop.plan(), excluded_keys(candidates, known)
    scan, status = scan_of(crop, plan, ids), Status(1, crop.device)
    band = torch.empty(configs.BAND_PAIRS, dtype=torch.int64, device=crop.device)
    height = min(plan.queries_per_pass, len(band) // plan.tile.candidates)
    every = torch.arange(len(lowest), dtype=torch.int64, device=crop.device)
    for first in range(0, len(every), height):
        queries, limits = every[first : first + height], lowest[first : first + height]
        scan.take(queries, None if crop.allows_nan else status.rows)
        scan.limit(limits)
        for size in scan.pieces(band, status, checks):
            pairs = band[:size].sort().values
            scores = torch.empty_like(pairs, dtype=torch.float64)
            crop.decide(Pairs(pairs, None, queries, ids, limits, scores, excluded))
            positions, lanes = pairs >> 32, pairs & NO_LANE
            reaches = (scores >= limits[positions]) & (lanes != NO_LANE)
            places = reaches.nonzero()[:, 0]
            counts = positions[places].bincount(minlength=len(queries))
            indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
            lanes, scores = lanes[places], scores[places].to(crop.operands.queries.dtype)
            yield queries, Above(indptr, lanes if ids is None else ids[lanes], scores)

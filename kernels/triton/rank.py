"""Ranks on a GPU: a float32 sweep with a proven error bound, canonical scores for open pairs.

Cost model: device/sweep.py (per element), canonical.py (per undecided pair), known.py (per known
answer). Memory: 24 MiB of panels, 16 MiB of packed queries, 4 MiB of band, O(B) words per crop, and
a sorted copy of an index with unsorted rows. The host waits once, for the checks of the input and
the sizes of all bands. Pairs that a band could not hold are then swept again in smaller pieces.
Crops are swept together (host/nest.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

from ..checks import Checks
from ..operands import Counts, Known, Operands
from .host import configs
from .host import launch as launcher
from .host.batch import SharedOperands, sorted_rows
from .host.crop import Crop, PairBlock, Scratch
from .host.few import Few, FewCrop, few_plan
from .host.nest import Nest, band_of_each
from .host.split_crop import crop_of
from .host.status import Report, Status

_BANDS = 8  # bands of a crop are a multiple of this: cursors then lie a constant alignment apart
_PAIRS_PER_OPEN = 256  # for random tables at d = 512 one pair in 400 is open


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
) -> Counts:
    """Count; the contract is that of ``Backend.rank_counts``."""
    crops, count = operands.crops, len(targets)
    padded = count + count % 2  # so that every row lies on a boundary of 16 bytes
    counts = targets.new_zeros(len(crops), 4, padded)[:, :, :count]
    with launcher.serving(operands.table.device) as arch:
        if count:
            batch = SharedOperands.of(operands, targets, arch, allows_nan=checks.allows_nan)
            batch = replace(batch, target_scores=target_scores)
            contiguous = Known(*(part.contiguous() for part in known))
            _count(batch, contiguous, crops, counts, checks)
        else:
            checks.read()
    columns = counts[0] if operands.dims is None else counts.transpose(0, 1)
    return Counts(*(column.clone() for column in columns))  # columns of [4, B] or [4, C, B]


@dataclass(frozen=True)
class _RankJob:
    """Crop, with the places of its bands' sizes: passes, then pieces, then everything."""

    crop: Crop
    passes: list[list[PairBlock]]  # passes with open pairs that fit a band, as a rule
    first_band: int
    capacity: int  # capacity of the band of a pass


def _count(
    batch: SharedOperands, known: Known, dims: Sequence[int], counts: Tensor, checks: Checks
) -> None:
    """Count all crops: enqueue everything, wait once, then raise or repair."""
    dims, order = zip(*sorted(zip(dims, range(len(dims)), strict=True)), strict=True)
    few = few_plan(batch, len(dims))
    shared = few or _nested_plan(batch, dims)
    plans = [shared or _plan(batch, dim) for dim in dims]
    capacity = band_of_each(shared, len(dims)) if shared else configs.BAND_PAIRS
    passes = [[] if plan is None else list(_passes(batch, plan, capacity)) for plan in plans]
    pieces = list(_pieces(len(known.indices)))
    bands = (-(-(len(some) + len(pieces) + 1) // _BANDS) * _BANDS for some in passes)
    starts = [0, *accumulate(bands)]
    status = Status(starts.pop(), batch.device)
    scratch = Scratch(batch, [None] * len(dims) if few else plans, dims, status)
    make, ends = (FewCrop, ()) if few else (crop_of, dims if shared else ())
    crops = [
        make(batch, dim, counts[place], plan, scratch, ends)
        for dim, place, plan in zip(dims, order, plans, strict=True)
    ]
    jobs = [_RankJob(*parts, capacity) for parts in zip(crops, passes, starts, strict=True)]
    if shared:
        _enqueue_together((Few if few else Nest)(crops, shared, capacity), jobs, status)
    for job in jobs:
        _enqueue(job, known, pieces, status, is_swept=shared is not None)
    report = status.read(checks)
    report.raise_if_bad()
    if report.is_unsorted:
        known = sorted_rows(known)
    for job in jobs:
        _repair(job, known, pieces, status, report)


def _nested_plan(batch: SharedOperands, dims: Sequence[int]) -> configs.CropPlan | None:
    """Plan one sweep for crops of rising widths; None if each crop has its own.

    Operands of rscf scores differ between crops, and so do bounds of tensor cores: these crops
    share no sweep.
    """
    score = batch.operands.score
    is_split = configs.splits(score, batch.num_queries, batch.arch)
    if len(dims) == 1 or score.is_rscf or is_split:
        return None
    return _plan(batch, dims[-1], len(dims))


def _plan(batch: SharedOperands, dim: int, num_crops: int = 1) -> configs.CropPlan | None:
    shape = batch.num_queries, batch.num_candidates, dim
    facts, has_factor = batch.operands.score, batch.operands.has_factor
    return configs.plan(facts, *shape, batch.arch, num_crops, has_factor)


def _enqueue_together(together: Nest, jobs: list[_RankJob], status: Status) -> None:
    together.score_targets()
    for number, blocks in enumerate(jobs[0].passes):
        cursors = [status.cursor(job.first_band + number) for job in jobs]
        together.count_pass(blocks, cursors)


def _enqueue(
    job: _RankJob, known: Known, pieces: list[tuple[int, int]], status: Status, *, is_swept: bool
) -> None:
    """Enqueue all work of a crop, unless a band overflows or the index is unsorted."""
    crop, band = job.crop, job.first_band
    if not is_swept:
        crop.score_targets()
        for number, blocks in enumerate(job.passes):
            crop.count_pass(blocks, status.cursor(band + number))
    band += len(job.passes)
    for start, stop in pieces:
        crop.count_known(known, start, stop, status.cursor(band))
        band += 1
    if crop.plan is None:
        _rescore_everything(crop, status.cursor(band))


def _repair(
    job: _RankJob, known: Known, pieces: list[tuple[int, int]], status: Status, report: Report
) -> None:
    """Do the work that the report calls for; ``known`` is sorted by now."""
    crop, cursor = job.crop, status.cursor(0)
    crop.forget_packed()
    for band, blocks in enumerate(job.passes, job.first_band):
        if report.sizes[band] > job.capacity:
            for block in blocks:
                _sweep_in_pieces(crop, block, cursor)
    if report.is_unsorted:
        crop.counts[2:].zero_()
        for start, stop in pieces:
            crop.count_known(known, start, stop, cursor.zero_())
    crop.place_unscored()


def _passes(
    batch: SharedOperands, plan: configs.CropPlan, capacity: int
) -> Iterator[list[PairBlock]]:
    """Yield the score matrix in blocks that the scratch holds; queries stay packed longest.

    Blocks of one pass share queries, and a band for a share of the pairs.
    """
    for q in range(0, batch.num_queries, plan.queries_per_pass):
        num_queries = min(plan.queries_per_pass, batch.num_queries - q)
        blocks: list[PairBlock] = []
        pairs = 0
        for c in range(0, batch.num_candidates, plan.candidates_per_chunk):
            num_candidates = min(plan.candidates_per_chunk, batch.num_candidates - c)
            pairs += num_queries * num_candidates
            if blocks and pairs > _PAIRS_PER_OPEN * capacity:
                yield blocks
                blocks, pairs = [], num_queries * num_candidates
            blocks.append(PairBlock(q, num_queries, c, num_candidates))
        if blocks:
            yield blocks


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Yield ``0 .. count - 1`` in ranges with pairs that all fit a band."""
    for start in range(0, count, configs.BAND_PAIRS):
        yield start, min(start + configs.BAND_PAIRS, count)


def _sweep_in_pieces(crop: Crop, block: PairBlock, cursor: Tensor) -> None:
    """Decide the open pairs of a block with an overflowed band; certain pairs are counted."""
    assert crop.plan is not None
    tile, (first_q, num_q, first_c, num_c) = crop.plan.tile, block
    width = crop.capacity // tile.queries // tile.candidates * tile.candidates
    for c in range(first_c, first_c + num_c, width):
        for q in range(first_q, first_q + num_q, tile.queries):
            piece = PairBlock(
                q,
                min(tile.queries, first_q + num_q - q),
                c,
                min(width, first_c + num_c - c),
            )
            crop.sweep(piece, cursor.zero_(), crop.positions(piece))  # counted before
            crop.rescore(piece, cursor)


def _rescore_everything(crop: Crop, cursor: Tensor) -> None:
    """Decide every pair canonically, if no tile fits the scratch (very many features)."""
    pairs = crop.batch.num_queries * crop.batch.num_candidates
    for first in range(0, pairs, crop.capacity):
        crop.rescore_all(first, min(crop.capacity, pairs - first), cursor)

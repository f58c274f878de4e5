"""Ranks on a GPU: a float32 sweep with a proven error bound, canonical scores where it is open.

Cost model: sweep.py (per element), canonical.py (per undecided pair), pairs.py (per known answer).
Memory: 24 MiB of panels, 16 MiB of packed queries, 4 MiB of band, O(B) words; the sorted copy of
an index whose rows do not rise. The host waits once per crop, for the sizes of the bands and the
checks of the input; what a band could not hold is then swept again in pieces that it can.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from ..scores import get_score
from . import configs
from .batch import Batch, Known
from .crop import Block, Crop
from .launch import architecture, on_device
from .status import Status


def rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    nan_worst: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The contract of :func:`kgfast.ops.rank_counts`; see there.

    Raises
    ------
    ValueError
        Besides, if the tensors are on a device that the kernels do not serve.
    """
    facts = get_score(score)
    arch = architecture(candidates.device)
    crops = [facts.num_features(candidates.shape[1])] if dims is None else list(dims)
    padded = len(targets) + len(targets) % 2  # every row on a boundary of 16 bytes
    counts = targets.new_zeros(len(crops), 4, padded)[:, :, : len(targets)]
    with on_device(candidates.device):
        batch = Batch.of(facts, queries, candidates, targets, bias, candidate_ids, nan_worst, arch)
        known = Known(exclude_indptr.contiguous(), exclude_indices.contiguous())
        for dim, crop_counts in zip(crops, counts, strict=True):
            if len(targets):
                _count(batch, known, dim, crop_counts)
    columns = counts[0] if dims is None else counts.transpose(0, 1)  # [4, B] or [4, C, B]
    greater, equal, greater_excluded, equal_excluded = (column.clone() for column in columns)
    return greater, equal, greater_excluded, equal_excluded


def _count(batch: Batch, known: Known, dim: int, counts: Tensor) -> None:
    """One crop: enqueue everything, wait once, raise or repair what did not fit."""
    plan = configs.plan(batch.facts, batch.num_queries, batch.num_candidates, dim, batch.arch)
    blocks = [] if plan is None else list(_blocks(batch, plan))
    pieces = list(_pieces(len(known.indices)))
    status = Status(len(blocks) + len(pieces) + 1, batch.candidates.device)
    crop = Crop(batch, dim, counts, plan, status)
    crop.score_targets()
    for i, block in enumerate(blocks):
        crop.sweep(block, status.cursor(i))
        crop.decide(block, status.cursor(i))
    if plan is None:
        _decide_everything(crop, batch, status.cursor(len(blocks)))
    for i, (start, stop) in enumerate(pieces, len(blocks) + 1):
        crop.count_known(known, start, stop, status.cursor(i))
    report = status.read()
    report.raise_if_bad()
    for block, size in zip(blocks, report.sizes, strict=False):
        if size > crop.capacity:
            _sweep_in_pieces(crop, block, status.cursor(0))
    if report.is_unsorted:
        counts[2:].zero_()
        known = known.sorted_rows()
        for start, stop in pieces:
            crop.count_known(known, start, stop, status.cursor(0).zero_())
    crop.place_unscored()


def _blocks(batch: Batch, plan: configs.Plan) -> Iterator[Block]:
    """The score matrix in blocks that the scratch holds; queries stay packed the longest."""
    for q in range(0, batch.num_queries, plan.queries_per_pass):
        num_queries = min(plan.queries_per_pass, batch.num_queries - q)
        for c in range(0, batch.num_candidates, plan.candidates_per_chunk):
            num_candidates = min(plan.candidates_per_chunk, batch.num_candidates - c)
            yield Block(q, num_queries, c, num_candidates)


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """``0 .. count - 1`` in ranges of which a band holds every pair."""
    for start in range(0, count, configs.BAND_PAIRS):
        yield start, min(start + configs.BAND_PAIRS, count)


def _sweep_in_pieces(crop: Crop, block: Block, cursor: Tensor) -> None:
    """Decide the open pairs of a block whose band overflowed; what was certain is counted."""
    assert crop.plan is not None
    tile, (first_q, num_q, first_c, num_c) = crop.plan.tile, block
    width = crop.capacity // tile.queries // tile.candidates * tile.candidates
    for c in range(first_c, first_c + num_c, width):
        for q in range(first_q, first_q + num_q, tile.queries):
            piece = Block(
                q,
                min(tile.queries, first_q + num_q - q),
                c,
                min(width, first_c + num_c - c),
            )
            crop.sweep(piece, cursor.zero_(), count_certain=False)
            crop.decide(piece, cursor)


def _decide_everything(crop: Crop, batch: Batch, cursor: Tensor) -> None:
    """Where not even one tile fits the scratch (tens of thousands of features)."""
    pairs = batch.num_queries * batch.num_candidates
    for first in range(0, pairs, crop.capacity):
        crop.decide_all(first, min(crop.capacity, pairs - first), cursor)

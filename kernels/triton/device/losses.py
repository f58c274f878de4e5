"""Losses over all candidates, reduced as scores are computed: scores of tiles stay on the chip.

A tile's scores become row sums in registers. If gradients are needed, the slope of the loss by each
score is also computed, and is the only number that is written for every pair. Row sums of a tile
are float32; finish.py adds the sums of all tiles in float64, in the order of the tiles, for any
order of programs.

Labels come as ascending keys ``row N + id``. A row of a tile finds its first positive by a binary
search among its own keys, and walks on while positives lie in the tile. A repeated positive counts
once.

Cost model (sm_90, d features): the loop of score_tiles.py, 6.6 d slots a pair for rotate, and about
65 of all code around it for bce with slopes (of cross entropy 55 forward, 45 backward): two dozen
elementwise, with a root in the place of a quotient and a polynomial in that of a logarithm, and
three for each sum of rows, of which a thread has 8. 128 registers, so 16 warps a multiprocessor.
About six an element more for each positive that the fullest row of a tile has there. A product
takes tensor cores (products.py).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Form, find_last_not_above, load_as
from .finish import LOWEST
from .products import Product, multiply
from .score_tiles import sum_packed
from .sweep import by_lane, by_row, lanes_in_tile, max_rows, rows_in_tile, sum_lanes, sum_rows
from .terms import score_of

LABELS = 1024  # labels of a program
# words of a status before the words of programs: positives, candidates, programs that finished
FACTS = 4
_FACTS: tl.constexpr = tl.constexpr(FACTS)
_NO_KEY: tl.constexpr = tl.constexpr(9223372036854775807)
_FAR: tl.constexpr = tl.constexpr(2.0**120)  # above all scores: exp(x - _FAR) is 0
_MINUS_LOG2_E: tl.constexpr = tl.constexpr(-1.4426950408889634)


class Variant(NamedTuple):
    """Constants for which a kernel of losses is compiled."""

    form: Form
    tile: Any  # CropTile, or the TileShape of a product
    product: Product | None = None


class PositiveIds(NamedTuple):
    """Positives of all rows, and memory for their keys."""

    indptr: Any  # int64 [B + 1]
    ids: Any  # int64 [positives]
    keys: Any  # int64 [positives]


class RowLabels(NamedTuple):
    """Facts of rows that a loss reads. A label is ``every``, plus ``positive`` at positives."""

    keys: Any  # [positives] int64 ascending ``row N + id``; softmax: [B] the targets
    indptr: Any  # [B + 1] where the keys of each row begin; softmax: None
    status: Any  # status of make_keys; softmax: None
    positive: float
    every: float
    weight: float = 1.0  # times the gradient of a row
    # Gradient of the rows; None: 1. No Vector, since Triton 3.6 loses the members of a tuple within
    # a tuple argument of a function.
    grad: Any = None
    grad_step: int = 0
    logsumexp: Any = None  # [B] float64, for slopes of a softmax
    first: int = 0  # candidate of the chunk
    row: int = 0  # first row of the launch


class TileResults(NamedTuple):
    """Memory for the results of a tile."""

    # [tiles][2, or 3 of a softmax][B] loss, linear; peak, mass, linear; None: not needed
    sums: Any
    picked: Any  # [B] scores of the targets of a softmax
    slopes: Any  # [B][row]; None: not needed
    row: int
    bias_sums: Any  # [tiles of rows][row]; None: not needed


@triton.jit
def log1p_of(e):
    """Return ``log(1 + e)`` of ``0 <= e <= 1``, to 3e-7 relative: a polynomial, nine slots."""
    tail = -0.029505213722586632 + e * 0.0052326880395412445
    tail = -0.13663242757320404 + e * (0.07822591066360474 + e * tail)
    tail = -0.2484298199415207 + e * (0.19106005132198334 + e * tail)
    tail = -0.4999949336051941 + e * (0.3331909775733948 + e * tail)
    return e * (0.9999999403953552 + e * tail)


@triton.jit
def rows_of_tile(labels, TILE: tl.constexpr):
    """Return the rows of this program's tile."""
    return labels.row + tl.program_id(0) * TILE.rows + rows_in_tile(TILE)


@triton.jit
def first_positive(labels, row, first, sizes, TILE: tl.constexpr):
    """Return the place of the first positive in each row of a tile from candidate ``first``.

    The place of the row's first key that is not before the tile, which is searched among the keys
    of the row; the key of the tile's first candidate, and the first key that is past the tile, or
    past the chunk, which may end before.
    """
    num_queries, num_candidates = sizes
    num_keys = tl.load(labels.status)
    count = tl.load(labels.status + 1)
    m_row = row < num_queries
    start = row.to(tl.int64) * count + first
    lanes = tl.minimum(num_candidates - tl.program_id(1) * TILE.lanes, TILE.lanes)
    stop = tl.where(m_row, start + lanes, -1)
    low = tl.load(labels.indptr + row, mask=m_row, other=0)
    low = tl.minimum(tl.maximum(low, 0), num_keys)
    high = tl.load(labels.indptr + row + 1, mask=m_row, other=0)
    high = tl.maximum(tl.minimum(high, num_keys), low)
    width = tl.max(high - low)
    while width > 0:
        middle = (low + high) // 2
        is_before = tl.load(labels.keys + middle, mask=low < high, other=_NO_KEY) < start
        low = tl.where(is_before, middle + 1, low)
        high = tl.where(is_before, high, middle)
        width = width // 2
    return low, start, stop, num_keys


@triton.jit
def key_at(p_keys, place, num_keys):
    """Return the key at each place; past the last key, a number above every key."""
    return tl.load(p_keys + place, mask=place < num_keys, other=_NO_KEY)


@triton.jit
def weights_of(labels, row, m_row):
    """Return factors of the slopes of rows; 0 for missing rows."""
    weight = tl.where(m_row, labels.weight, 0.0)
    if labels.grad is not None:
        p_grad = labels.grad + row.to(tl.int64) * labels.grad_step
        weight *= load_as(p_grad, m_row, tl.float32)
    return weight


@triton.jit
def store_sums(p_sums, row, num_queries, place, values, PARTS: tl.constexpr):
    """Store a sum of each row of a tile."""
    tile = tl.program_id(1).to(tl.int64) * PARTS + place
    tl.store(p_sums + tile * num_queries + row, values, mask=row < num_queries)


@triton.jit
def logistic_of(scores, labels, result, sizes, TILE: tl.constexpr):
    """Store sums of a tile's binary cross entropies; return slopes, or junk if not needed.

    ``scores`` are those of the tile, their sums of rows, or junk if not needed, and a mask of
    lanes. Positives are walked once, for sums and slopes together.
    """
    x, linear, m_lane = scores
    num_queries, _ = sizes
    row = rows_of_tile(labels, TILE)
    first = labels.first + tl.program_id(1).to(tl.int64) * TILE.lanes
    place, start, stop, num_keys = first_positive(labels, row, first, sizes, TILE)
    every = labels.every
    positive = labels.positive
    e = tl.exp2(tl.abs(x) * _MINUS_LOG2_E)
    if result.sums is not None:
        term = tl.maximum(x, 0.0) + log1p_of(e)
        total = sum_rows(tl.where(by_lane(m_lane, TILE), term, 0.0), TILE)
        store_sums(result.sums, row, num_queries, 1, linear, 2)
        if every != 0.0:
            total -= every * linear
    slope = x
    if result.slopes is not None:
        weight = weights_of(labels, row, row < num_queries)
        root = tl.rsqrt(1.0 + e)  # one slot, where a quotient has six
        share = root * root
        slope = by_row(weight, TILE) * tl.where(x >= 0.0, share, e * share)
        slope -= by_row(weight * every, TILE)
        weight *= positive
    key = key_at(labels.keys, place, num_keys)
    while tl.max((key < stop).to(tl.int32)) > 0:
        p_before = labels.keys + place - 1  # a repeated key counts once
        before = tl.load(p_before, mask=(place > 0) & (key < stop), other=-1)
        lane = tl.where((key < stop) & (before != key), key - start, -1).to(tl.int32)
        hit = by_lane(lanes_in_tile(TILE), TILE) == by_row(lane, TILE)
        if result.sums is not None:
            total -= positive * sum_rows(tl.where(hit, x, 0.0), TILE)
        if result.slopes is not None:
            slope = tl.where(hit, slope - by_row(weight, TILE), slope)
        place += 1
        key = key_at(labels.keys, place, num_keys)
    if result.sums is not None:
        store_sums(result.sums, row, num_queries, 0, total, 2)
    return slope


@triton.jit
def softmax_of(scores, labels, result, num_queries, TILE: tl.constexpr):
    """Do :func:`logistic_of` for the softmax: peaks, masses and sums, and scores of targets."""
    x, linear, m_lane = scores
    row = rows_of_tile(labels, TILE)
    m_row = row < num_queries
    first = labels.first + tl.program_id(1).to(tl.int64) * TILE.lanes
    target = tl.load(labels.keys + row, mask=m_row, other=-1) - first
    target = tl.where((target >= 0) & (target < TILE.lanes), target, -1).to(tl.int32)
    is_target = by_lane(lanes_in_tile(TILE), TILE) == by_row(target, TILE)
    slope = x
    if result.sums is not None:
        store_sums(result.sums, row, num_queries, 2, linear, 3)
        p_picked = tl.broadcast_to(by_row(result.picked + row, TILE), x.shape)
        tl.store(p_picked, x, mask=is_target)
        x = tl.where(by_lane(m_lane, TILE), x, float("-inf"))
        peak = tl.maximum(max_rows(x, TILE), LOWEST)  # a finite peak for scores that are all -inf
        mass = sum_rows(tl.exp(x - by_row(peak, TILE)), TILE)
        store_sums(result.sums, row, num_queries, 0, peak, 3)
        store_sums(result.sums, row, num_queries, 1, mass, 3)
    if result.slopes is not None:
        # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
        whole = tl.load(labels.logsumexp + row, mask=m_row, other=_FAR)
        near = whole.to(tl.float32)
        weight = weights_of(labels, row, m_row)
        rest = (near.to(tl.float64) - whole).to(tl.float32)  # at most 2**-24 of the whole
        scale = weight * tl.exp(rest)
        slope = by_row(scale, TILE) * tl.exp(x - by_row(near, TILE))
        slope -= by_row(weight * labels.every, TILE)
        slope = tl.where(is_target, slope - by_row(weight * labels.positive, TILE), slope)
    return slope


@triton.jit
def reduce_tile(raw, bias, labels, result, sizes, VARIANT: tl.constexpr):
    """Store sums and slopes of a tile of scores ``raw`` before the bias.

    ``sizes`` has the number of queries, and of candidates of the chunk. A slope by a score that is
    a root is divided by the score, for the pull of gradients. Past the candidates of the chunk, a
    row of slopes repeats the last candidate without a label. So a thread stores all its lanes at
    once, and a sum may read these slopes, times 0.
    """
    FORM: tl.constexpr = VARIANT.form
    TILE: tl.constexpr = VARIANT.tile
    num_queries, num_candidates = sizes
    row = rows_of_tile(labels, TILE)
    lane = tl.program_id(1) * TILE.lanes + lanes_in_tile(TILE)
    m_row = row < num_queries
    m_lane = lane < num_candidates
    x = raw
    summed = raw
    if FORM.has_bias:
        p_bias = bias.ptr + tl.minimum(lane, num_candidates - 1).to(tl.int64) * bias.step
        own = load_as(p_bias, None, tl.float32)
        # A bias of -inf leaves a candidate out. A label that every candidate has makes this a
        # mistake, which a sum must tell.
        finite = tl.where(own == float("-inf"), 0.0, own)
        summed += by_lane(tl.where(labels.every == 0.0, finite, own), TILE)
        x += by_lane(own, TILE)
    linear = 0.0
    if result.sums is not None:
        linear = sum_rows(tl.where(by_lane(m_lane, TILE), summed, 0.0), TILE)
    scores = x, linear, m_lane
    if labels.indptr is None:
        slope = softmax_of(scores, labels, result, num_queries, TILE)
    else:
        slope = logistic_of(scores, labels, result, sizes, TILE)
    if result.bias_sums is not None:
        tile = labels.row // TILE.rows + tl.program_id(0)
        p_sums = result.bias_sums + tile.to(tl.int64) * result.row
        tl.store(p_sums + lane, sum_lanes(slope, TILE), mask=m_lane)
    if result.slopes is not None:
        if FORM.is_root:
            slope = tl.where(raw < 0.0, slope / -raw, 0.0)
        p_row = result.slopes + row.to(tl.int64) * result.row
        mask = by_row(m_row, TILE) & by_lane(lane < result.row, TILE)
        tl.store(by_row(p_row, TILE) + by_lane(lane, TILE), slope, mask=mask)


@triton.jit(do_not_specialize=["num_queries", "num_candidates", "num_features"])
def tile_losses(
    rows,  # Factors if the variant has a product, else ScorePanels
    labels,
    result,
    num_queries,
    num_candidates,
    num_features,
    VARIANT: tl.constexpr,
):
    """Reduce one tile of a chunk of candidates, which are packed or multiplied in place."""
    FORM: tl.constexpr = VARIANT.form
    TILE: tl.constexpr = VARIANT.tile
    PRODUCT: tl.constexpr = VARIANT.product
    sizes = num_queries, num_candidates
    if PRODUCT is None:
        score = score_of(sum_packed(rows.queries, rows.panels, num_features, FORM, TILE), FORM)
    else:
        score = multiply(rows, sizes, num_features, TILE, PRODUCT)
    reduce_tile(score, rows.bias, labels, result, sizes, VARIANT)


@triton.jit(do_not_specialize=["num_queries", "num_positives", "num_candidates"])
def make_keys(
    labels,  # PositiveIds
    p_status,  # [FACTS + programs] int64: facts of the labels; 1 if a program met an error
    bias,
    num_queries,
    num_positives,
    num_candidates,
    LABELS: tl.constexpr,
):
    """Write a key of every positive, safe in any case, and whether all positives are valid."""
    i_program = tl.program_id(0)
    if i_program == 0:
        tl.store(p_status, num_positives.to(tl.int64))
        tl.store(p_status + 1, num_candidates.to(tl.int64))
        tl.store(p_status + 2, tl.zeros((), tl.int64))
    o = i_program.to(tl.int64) * LABELS + tl.arange(0, LABELS)
    m_row = o < num_queries
    low = tl.load(labels.indptr + o, mask=m_row, other=0)
    high = tl.load(labels.indptr + o + 1, mask=m_row, other=1)
    is_bad = m_row & ((low >= high) | ((o == 0) & (low != 0)))
    is_bad |= m_row & (o == num_queries - 1) & (high != num_positives)
    m_place = o < num_positives
    id = tl.load(labels.ids + o, mask=m_place, other=0)
    safe = tl.minimum(tl.maximum(id, 0), num_candidates - 1)
    is_bad |= m_place & (id != safe)
    if bias is not None:
        value = load_as(bias.ptr + safe * bias.step, m_place, tl.float32)
        is_bad |= m_place & (value == float("-inf"))
    row = tl.maximum(find_last_not_above(labels.indptr, num_queries, o), 0)
    tl.store(labels.keys + o, row * num_candidates + safe, mask=m_place)
    tl.store(p_status + _FACTS + i_program, tl.max(is_bad.to(tl.int64), 0))

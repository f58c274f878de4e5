"""The sweep of several crops at once: running sums over the widest, classified where a crop ends.

Cost model: the loop of sweep.py (rotate, sm_90: 7.3 issue slots an element, 7.6 with the folds);
at the end of each crop a classification. So crops of 128, 256 and 512 features cost little more
than 512 alone. Sums are folded at the end of a crop, too; ``bounds.num_folds`` counts it.

A tile stops when every total is past the limits of all crops still to come. These are made by
the host (nest.py), so that a fold loads two numbers a query.
"""

import triton
import triton.language as tl

from .score_tiles import add_features
from .sweep import HUGE, SUM_BLOCK, append, classify
from .terms import DOT, L2, distance_of

THRESHOLDS: tl.constexpr = tl.constexpr(6)  # numbers a query and crop


@triton.jit
def is_past(
    total, p_threshold, highest_bias, largest_norm, SCORE: tl.constexpr, BLOCK_M: tl.constexpr
):
    """1 if every total is past the limits of the crops to come, else 0."""
    o_query = tl.arange(0, BLOCK_M)
    rel = tl.load(p_threshold + 3 * BLOCK_M + o_query)
    limit = tl.load(p_threshold + 4 * BLOCK_M + o_query)
    limit += highest_bias + 2.0 * rel * tl.abs(highest_bias)
    limit += 2.0 * tl.load(p_threshold + 5 * BLOCK_M + o_query) * largest_norm
    if SCORE == L2:
        limit = tl.where(limit < 0.0, -1.0, limit * limit * (1.0 + 9.5367431640625e-07))
    past = (total > limit[:, None]) & (total <= HUGE)
    return tl.min(tl.min(past.to(tl.int32), 0), 0)


@triton.jit(
    do_not_specialize=[
        "lane_stride",
        "cursor_stride",
        "num_positions",
        "num_candidates",
        "num_features",
        "num_crops",
        "capacity",
    ]
)
def sweep_nested(
    p_query,  # [tiles][num_features][PLANES][BLOCK_M]
    p_panel,  # [panels][num_features][PLANES][BLOCK_N]
    p_threshold,  # [tiles][num_crops][6][BLOCK_M], see nest.py
    p_lane,  # [num_crops of lane_stride][panels][2][BLOCK_N] bias, norm
    lane_stride,
    p_crops,  # [num_crops] widths, none below the one before; the last is num_features
    p_greater,  # [num_crops][num_positions] int32
    p_band,  # [num_crops][capacity] position << 32 | lane
    p_cursor,  # [num_crops] of cursor_stride
    cursor_stride,
    num_positions,
    num_candidates,
    num_features,
    num_crops,
    capacity,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Count, for each crop, what beats its target for certain; append what is open to its band."""
    i_tile = tl.program_id(0)  # queries first: a panel is reused while it is hot
    i_panel = tl.program_id(1)
    o_tile = tl.arange(0, BLOCK_M)
    o_panel = tl.arange(0, BLOCK_N)
    p_threshold += i_tile * num_crops * (THRESHOLDS * BLOCK_M)
    p_lane += i_panel * (2 * BLOCK_N)
    highest_bias = 0.0
    if HAS_BIAS:
        highest_bias = tl.max(tl.load(p_lane + o_panel), 0)
    largest_norm = 0.0
    if HAS_NORM:  # that of the widest crop is the largest
        p_widest = p_lane + (num_crops - 1) * lane_stride
        largest_norm = tl.max(tl.load(p_widest + BLOCK_N + o_panel), 0)
    wide = num_features.to(tl.int64) * PLANES
    p_query += i_tile * (wide * BLOCK_M)
    p_panel += i_panel * (wide * BLOCK_N)
    lane = i_panel * BLOCK_N + o_panel
    position = i_tile * BLOCK_M + o_tile
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    feature = 0  # past num_features: abandoned
    for i_crop in range(num_crops):
        width = tl.load(p_crops + i_crop).to(tl.int32)
        while feature < width:
            stop = tl.minimum(feature + SUM_BLOCK, width)
            part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            total += add_features(
                part, p_query, p_panel, feature, stop, SCORE, PLANES, BLOCK_M, BLOCK_N
            )
            feature = stop
            if SCORE != DOT:
                past = is_past(total, p_threshold, highest_bias, largest_norm, SCORE, BLOCK_M)
                feature += past * (num_features + 1)
        if feature == width:
            tau = tl.load(p_threshold + o_tile)[:, None]
            valid = (tau == tau) & (lane < num_candidates)[None, :]
            absolute = tl.load(p_threshold + BLOCK_M + o_tile)[:, None]
            rel = tl.load(p_threshold + 3 * BLOCK_M + o_tile)[:, None]
            if HAS_NORM:
                norm = tl.load(p_lane + BLOCK_N + o_panel)[None, :]
                absolute += tl.load(p_threshold + 2 * BLOCK_M + o_tile)[:, None] * norm
            if HAS_BIAS:
                tau += tl.load(p_lane + o_panel)[None, :]
            beats, decided = classify(distance_of(total, SCORE), tau, rel, absolute)
            count = tl.sum((beats & valid).to(tl.int32), 1)  # [M]
            tl.atomic_add(p_greater + position, count, mask=count > 0, sem="relaxed")
            append(p_band, p_cursor, capacity, position, lane, valid & (decided == 0))
        p_threshold += THRESHOLDS * BLOCK_M
        p_lane += lane_stride
        p_greater += num_positions
        p_band += capacity
        p_cursor += cursor_stride

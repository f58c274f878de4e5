"""The candidates that may be among a query's best: what a sweep cannot rule out, scored exactly.

Cost model: the sweep of sweep.py, which abandons a tile whose every candidate is worse than its
query's limit, and canonical.py for each survivor: about k (1 + log(N / stripe)) of them a query.
"""

import triton
import triton.language as tl

from .canonical import score_pairs
from .operands import note_bad_rows
from .sweep import HUGE, append, sweep_tile
from .terms import distance_of, query_planes


@triton.jit(do_not_specialize=["num_candidates", "num_features", "capacity"])
def collect(
    p_query,  # [tiles][num_features][PLANES][BLOCK_M]
    p_panel,  # [panels][num_features][PLANES][BLOCK_N]
    p_threshold,  # [tiles][3 + HAS_FACTOR][BLOCK_M] minus the limit (NaN: none), base, slope, reach
    p_lane,  # [panels][2][BLOCK_N] bias, norm; read if HAS_BIAS, HAS_NORM
    p_band,  # [capacity] position << 32 | lane of this sweep
    p_cursor,  # [1]
    num_candidates,
    num_features,
    capacity,
    rel,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Append the pairs of a tile that are not certain to be worse than their query's limit."""
    i_tile = tl.program_id(0)
    i_panel = tl.program_id(1)
    o_panel = tl.arange(0, BLOCK_N)
    p_threshold += i_tile * ((3 + HAS_FACTOR) * BLOCK_M)
    p_lane += i_panel * (2 * BLOCK_N)
    highest_bias = 0.0
    if HAS_BIAS:
        highest_bias = tl.max(tl.load(p_lane + o_panel), 0)
    largest_norm = 0.0
    if HAS_NORM:
        largest_norm = tl.max(tl.load(p_lane + BLOCK_N + o_panel), 0)
    wide = num_features.to(tl.int64)
    total, complete = sweep_tile(
        p_query + i_tile * (wide * (query_planes(SCORE, PLANES, HAS_FACTOR) * BLOCK_M)),
        p_panel + i_panel * (wide * ((PLANES + HAS_FACTOR) * BLOCK_N)),
        p_threshold,
        highest_bias,
        largest_norm,
        num_features,
        rel,
        SCORE,
        PLANES,
        HAS_FACTOR,
        HAS_NORM,
        BLOCK_M,
        BLOCK_N,
    )
    if complete:
        o_tile = tl.arange(0, BLOCK_M)
        lane = i_panel * BLOCK_N + o_panel
        tau = tl.load(p_threshold + o_tile)[:, None]
        valid = (tau == tau) & (lane < num_candidates)[None, :]
        absolute = tl.load(p_threshold + BLOCK_M + o_tile)[:, None]
        if HAS_NORM:
            norm = tl.load(p_lane + BLOCK_N + o_panel)[None, :]
            absolute += tl.load(p_threshold + 2 * BLOCK_M + o_tile)[:, None] * norm
        if HAS_BIAS:
            tau += tl.load(p_lane + o_panel)[None, :]
        distance = distance_of(total, SCORE)
        is_worse = (distance > tau + (rel * tl.abs(tau) + absolute)) & (distance < HUGE)
        position = i_tile * BLOCK_M + o_tile
        append(p_band, p_cursor, capacity, position, lane, valid & (is_worse == 0))


@triton.jit(do_not_specialize=["count", "num_features"])
def score_survivors(
    p_query,
    q_row_stride,
    q_plane_stride,
    q_step,
    p_table,
    c_row_stride,
    c_plane_stride,
    c_step,
    p_factor,
    f_row_stride,
    f_step,
    p_bias,
    bias_stride,
    p_pairs,  # [count] position << 32 | lane
    p_order,  # [positions] query
    p_ids,  # [lanes] candidate, read if HAS_IDS; else lanes are candidates
    p_limits,  # [positions] float64
    p_scores,  # [count] float64
    p_status,  # [3] least query, candidate and factor row with a number that is not finite
    count,
    num_features,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_IDS: tl.constexpr,
    CHECK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Canonical scores of pairs; below its query's limit a score may be any number below it."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_pair = place < count
    pair = tl.load(p_pairs + place, mask=m_pair, other=0)
    query = tl.load(p_order + (pair >> 32), mask=m_pair, other=0)
    candidate = pair & 4294967295
    if HAS_IDS:
        candidate = tl.load(p_ids + candidate, mask=m_pair, other=0)
    limit = tl.load(p_limits + (pair >> 32), mask=m_pair, other=0.0)
    if CHECK:  # every number is looked at
        limit = tl.full((LANES,), float("nan"), tl.float64)
    score, q_finite, c_finite, f_finite = score_pairs(
        p_query,
        q_row_stride,
        q_plane_stride,
        q_step,
        p_table,
        c_row_stride,
        c_plane_stride,
        c_step,
        p_factor,
        f_row_stride,
        f_step,
        p_bias,
        bias_stride,
        query,
        candidate,
        limit,
        m_pair,
        num_features,
        SCORE,
        PLANES,
        HAS_FACTOR,
        HAS_BIAS,
        LANES,
    )
    tl.store(p_scores + place, score, mask=m_pair)
    if CHECK:
        note_bad_rows(p_status, query, m_pair & (q_finite == 0))
        note_bad_rows(p_status + 1, candidate, m_pair & (c_finite == 0))
        if HAS_FACTOR:
            note_bad_rows(p_status + 2, candidate, m_pair & (f_finite == 0))

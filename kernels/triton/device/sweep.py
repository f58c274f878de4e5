"""The sweep: tiles of queries against panels of candidates, in float32, classified and counted.

Cost model (rotate, sm_90, 32 x 128 tile, 4 warps): per feature and element 6 arithmetic slots and
0.8 for loads and the loop, 7.1 with the folds; one square root takes as long as 8, so the square
root unit is the limit. 136 registers, no spills, no shared memory in the loop. A lane owns one
candidate and every query of its tile, so query loads are uniform 16-byte vectors.

Sums run over 64 features and are then folded into totals, which keeps the error bound short; the
fold is also where a tile stops whose every total is past its query's limit. Sums of monotone
scores only grow, so nothing is lost.
"""

import triton
import triton.language as tl

from .moves import NEAREST, add_swept
from .terms import DOT, RSCF_ROTATE, add_term, distance_of, is_root, query_planes

SUM_BLOCK: tl.constexpr = tl.constexpr(64)  # features per short accumulator; bounds.py counts it
HUGE: tl.constexpr = tl.constexpr(3.4028234663852886e38)  # the largest finite float32


@triton.jit
def sweep_tile(
    p_query,
    p_panel,
    p_threshold,
    highest_bias,
    largest_norm,
    num_features,
    rel,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Totals ``[M, N]`` of a tile, and whether it ran to its end.

    ``p_query [feature][plane][M]`` and ``p_panel [feature][plane][N]`` are packed; thresholds are
    loaded at every fold, since a lane would hold all of them.
    """
    o_query = tl.arange(0, BLOCK_M)
    o_panel = tl.arange(0, BLOCK_N)
    is_near = True
    if HAS_FACTOR:
        is_near = tl.max(tl.load(p_threshold + 3 * BLOCK_M + o_query), 0) * largest_norm <= NEAREST
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    feature = 0  # past num_features: abandoned
    while feature < num_features:
        stop = tl.minimum(feature + SUM_BLOCK, num_features)
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if SCORE >= RSCF_ROTATE:
            part = add_swept(
                part,
                p_query,
                p_panel,
                feature,
                stop,
                is_near,
                SCORE,
                PLANES,
                HAS_FACTOR,
                BLOCK_M,
                BLOCK_N,
            )
        else:
            for k in range(feature, stop):
                row = k * PLANES
                q_re = tl.load(p_query + row * BLOCK_M + o_query)[:, None]
                c_re = tl.load(p_panel + row * BLOCK_N + o_panel)[None, :]
                q_im = q_re
                c_im = c_re
                if PLANES == 2:
                    q_im = tl.load(p_query + (row + 1) * BLOCK_M + o_query)[:, None]
                    c_im = tl.load(p_panel + (row + 1) * BLOCK_N + o_panel)[None, :]
                part = add_term(part, q_re, q_im, c_re, c_im, SCORE)
        total += part
        feature = stop
        if SCORE != DOT:
            threshold = tl.load(p_threshold + o_query)
            tau = threshold + highest_bias
            err = rel * tl.abs(tau) + tl.load(p_threshold + BLOCK_M + o_query)
            if HAS_NORM:
                err += tl.load(p_threshold + 2 * BLOCK_M + o_query) * largest_norm
            limit = tau + 1.25 * err
            if is_root(SCORE):
                limit = tl.where(limit < 0.0, -1.0, limit * limit * (1.0 + 9.5367431640625e-07))
            limit = tl.where(threshold == threshold, limit, -1.0)[:, None]
            past = (total > limit) & (total <= HUGE)
            feature += tl.min(tl.min(past.to(tl.int32), 0), 0) * num_features
    return total, feature == num_features


@triton.jit
def classify(distance, tau, rel, absolute):
    """Whether the bound decides that a pair beats its target, and whether it decides at all.

    Only true comparisons of finite numbers decide.
    """
    err = rel * tl.abs(tau) + absolute
    beats = (distance < tau - err) & (distance > -HUGE)
    loses = (distance > tau + err) & (distance < HUGE)
    return beats, beats | loses


@triton.jit
def append(p_band, p_cursor, capacity, position, lane, is_open):
    """Append the open pairs ``[M, N]`` to the band, as far as it has room.

    The cursor counts on past the capacity, in 64 bits. Nothing may branch on a load of it: warps
    that see different numbers would part before a barrier.
    """
    flag = is_open.to(tl.int32)
    count = tl.sum(flag, 0)  # [N]
    num_open = tl.sum(count, 0)
    if num_open > 0:
        first = tl.atomic_add(p_cursor, num_open.to(tl.int64), sem="relaxed")
        room = tl.minimum(tl.maximum(capacity - first, 0), num_open).to(tl.int32)
        slot = (tl.cumsum(count, 0) - count)[None, :] + tl.cumsum(flag, 0) - flag
        pair = position.to(tl.int64)[:, None] * 4294967296 + lane.to(tl.int64)[None, :]
        tl.store(p_band + first + slot, pair, mask=is_open & (slot < room))


@triton.jit(do_not_specialize=["num_candidates", "num_features", "capacity"])
def sweep(
    p_query,  # [tiles][num_features][PLANES][BLOCK_M]
    p_panel,  # [panels][num_features][PLANES][BLOCK_N]
    p_threshold,  # [tiles][3 + HAS_FACTOR][BLOCK_M], see bounds.thresholds
    p_lane,  # [panels][2][BLOCK_N] bias, norm; read if HAS_BIAS, HAS_NORM
    p_greater,  # [tiles][BLOCK_M] int32
    p_band,  # [capacity] position << 32 | lane
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
    """Count what beats its target for certain; append what is open to the band."""
    i_tile = tl.program_id(0)  # queries first: a panel is reused while it is hot
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
        position = i_tile * BLOCK_M + o_tile
        tau = tl.load(p_threshold + o_tile)[:, None]
        valid = (tau == tau) & (lane < num_candidates)[None, :]
        absolute = tl.load(p_threshold + BLOCK_M + o_tile)[:, None]
        if HAS_NORM:
            norm = tl.load(p_lane + BLOCK_N + o_panel)[None, :]
            absolute += tl.load(p_threshold + 2 * BLOCK_M + o_tile)[:, None] * norm
        if HAS_BIAS:
            tau += tl.load(p_lane + o_panel)[None, :]
        beats, decided = classify(distance_of(total, SCORE), tau, rel, absolute)
        count = tl.sum((beats & valid).to(tl.int32), 1)  # [M]
        tl.atomic_add(p_greater + position, count, mask=count > 0, sem="relaxed")
        append(p_band, p_cursor, capacity, position, lane, valid & (decided == 0))

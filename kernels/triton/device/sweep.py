"""The sweep: tiles of packed queries against panels of candidates, in float32, then classified.

Cost model (rotate, sm_90, 64 x 128 tile, 8 warps): per feature and element 6 arithmetic slots and
0.5 for loads and the loop, 6.6 with the folds; one square root takes as long as 8, so the square
root unit is the limit. 127 registers, no spills, no shared memory in the loop. A thread has 8
queries of the warp and 4 candidates beside each other. Loads of queries are uniform, all loads are
16-byte vectors, and 12 words serve 32 pairs and a plane. With loads rscf_rotate takes 6.8 slots
without a factor, 22.2 if phases are near.

Sums run over 64 features and are then folded into totals, which keeps the error bound short; at a
fold, a tile stops if every total is past the query's limit. Sums of monotone scores only grow, so
nothing is lost.

One kernel counts for ranks and, without counts, collects pairs that may be among the best.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import (
    NO_NORM,
    candidate_planes,
    lanes_apart,
    query_planes,
    rows_of_band,
    threshold_rows,
)
from .moves import FAR, NEAR, NEAREST, STILL
from .terms import PRODUCT, Candidate, Query, add_term, distance_of

# features per short accumulator; bounds.py counts folds by this number
SUM_BLOCK: tl.constexpr = tl.constexpr(64)
HUGE: tl.constexpr = tl.constexpr(3.4028234663852886e38)  # the largest finite float32


class SweepPanels(NamedTuple):
    """Operands of a sweep: rows, and the data that decide pairs."""

    queries: Any  # [tiles][num_features][planes][rows of a tile]
    panels: Any  # [panels][num_features][planes][lanes of a tile]
    thresholds: Any  # [tiles][3, or 4 for rscf scores][rows of a tile], see bounds.thresholds
    lanes: Any  # [panels][2][lanes of a tile] bias, norm; read if the form needs these
    rel: float


class Tally(NamedTuple):
    """Counts of certain pairs, and the band of open pairs."""

    greater: Any  # [positions]; int32 in a sweep; None: all pairs that do not lose are open
    band: Any  # [capacity] position << 32 | lane
    cursor: Any  # [1] pairs appended, or more if there was no room
    capacity: int
    first: int  # lane of the first candidate


@triton.jit
def tile_of(p_queries, p_panels, num_features, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return the packed queries and candidates of this program's tile."""
    wide = num_features.to(tl.int64)
    # Queries first, so that a panel is reused while it is in the cache.
    p_queries += tl.program_id(0) * (wide * (query_planes(FORM) * TILE.rows))
    p_panels += tl.program_id(1) * (wide * (candidate_planes(FORM) * TILE.lanes))
    return p_queries, p_panels


@triton.jit
def row_of_pair(TILE: tl.constexpr):
    """Return the row of each pair of a tile, ``[J, W]``: warp w has rows from ``w J`` on."""
    J: tl.constexpr = rows_of_band(TILE)
    return tl.arange(0, J)[:, None] + tl.arange(0, TILE.bands)[None, :] * J


@triton.jit
def lane_of_pair(TILE: tl.constexpr):
    """Return the lane of each pair of a tile, ``[R, L]``: a thread's lanes are neighbours."""
    R: tl.constexpr = TILE.repeats
    return tl.arange(0, R)[:, None] + tl.arange(0, lanes_apart(TILE))[None, :] * R


@triton.jit
def of_rows(values):
    """Return ``[J, W]``, spread over the sums of a tile."""
    return values[None, :, :, None]


@triton.jit
def of_lanes(values):
    """Return ``[R, L]``, spread over the sums of a tile."""
    return values[:, None, None, :]


@triton.jit
def new_sums(TILE: tl.constexpr):
    """Return the sums of a tile, ``[R, J, W, L]``: lanes, rows and warps as Triton deals them."""
    R: tl.constexpr = TILE.repeats
    J: tl.constexpr = rows_of_band(TILE)
    W: tl.constexpr = TILE.bands
    L: tl.constexpr = lanes_apart(TILE)
    return tl.zeros((R, J, W, L), tl.float32)


@triton.jit
def flat(total, TILE: tl.constexpr):
    """Return the sums of a tile as ``[M, N]``."""
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    return tl.reshape(tl.permute(total, (2, 1, 3, 0)), (M, N))


@triton.jit
def add_packed(part, tile, first, stop, FORM: tl.constexpr, MOVE: tl.constexpr, TILE: tl.constexpr):
    """Return ``part`` (:func:`new_sums`) plus terms of packed features ``first .. stop - 1``."""
    p_queries, p_panels = tile
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    p_queries += row_of_pair(TILE)
    p_panels += lane_of_pair(TILE)
    for k in range(first, stop):
        p_q = p_queries + k * (query_planes(FORM) * M)
        p_c = p_panels + k * (candidate_planes(FORM) * N)
        q_re = of_rows(tl.load(p_q))
        c_re = of_lanes(tl.load(p_c))
        q_im = q_re
        c_im = c_re
        w_re = q_re
        w_im = q_re
        a = q_re
        b = c_re
        if FORM.planes == 2:
            q_im = of_rows(tl.load(p_q + M))
            c_im = of_lanes(tl.load(p_c + N))
        if FORM.is_rscf:
            w_re = of_rows(tl.load(p_q + FORM.planes * M))
            if FORM.planes == 2:
                w_im = of_rows(tl.load(p_q + 3 * M))
        if FORM.has_factor:
            a = of_rows(tl.load(p_q + 2 * FORM.planes * M))
            b = of_lanes(tl.load(p_c + FORM.planes * N))
        query = Query(q_re, q_im, w_re, w_im, a)
        part = add_term(part, query, Candidate(c_re, c_im, b), FORM, MOVE)
    return part


@triton.jit
def add_swept(part, tile, first, stop, is_near, FORM: tl.constexpr, TILE: tl.constexpr):
    """Do ``add_packed`` for queries that are moved, with a cheaper loop if all phases are near."""
    if FORM.has_factor and FORM.planes == 2:
        if is_near:
            part = add_packed(part, tile, first, stop, FORM, NEAR, TILE)
        else:
            part = add_packed(part, tile, first, stop, FORM, FAR, TILE)
    elif FORM.has_factor:
        part = add_packed(part, tile, first, stop, FORM, NEAR, TILE)
    else:
        part = add_packed(part, tile, first, stop, FORM, STILL, TILE)
    return part


@triton.jit
def extremes(p_lanes, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return the highest bias of a panel, and the largest norm."""
    o_lane = tl.arange(0, TILE.lanes)
    highest_bias = 0.0
    if FORM.has_bias:
        highest_bias = tl.max(tl.load(p_lanes + o_lane), 0)
    largest_norm = 0.0
    if FORM.norm != NO_NORM:
        largest_norm = tl.max(tl.load(p_lanes + TILE.lanes + o_lane), 0)
    return highest_bias, largest_norm


@triton.jit
def of_squares(limit, FORM: tl.constexpr):
    """Return the limit of a sum, given the limit of its root."""
    if FORM.is_root:
        limit = tl.where(limit < 0.0, -1.0, limit * limit * (1.0 + 9.5367431640625e-07))
    return limit


@triton.jit
def all_past(total, limit):
    """Return 1 if every total is past the query's limit ``[J, W]``, else 0."""
    past = (total > of_rows(limit)) & (total <= HUGE)
    return tl.min(past.to(tl.int32))


@triton.jit
def sweep_tile(tile, packed, num_features, largest, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return sums of a tile (:func:`new_sums`), and whether the tile ran to its end.

    Thresholds are those of the tile, and ``largest`` is its :func:`extremes`. Thresholds are loaded
    at every fold, since a lane would have to hold all thresholds.
    """
    highest_bias, largest_norm = largest
    M: tl.constexpr = TILE.rows
    p_threshold = packed.thresholds + row_of_pair(TILE)
    is_near = True
    if FORM.has_factor:
        is_near = tl.max(tl.load(p_threshold + 3 * M)) * largest_norm <= NEAREST
    total = new_sums(TILE)
    feature = 0  # past num_features: abandoned
    while feature < num_features:
        stop = tl.minimum(feature + SUM_BLOCK, num_features)
        part = new_sums(TILE)
        total += add_swept(part, tile, feature, stop, is_near, FORM, TILE)
        feature = stop
        if FORM.term != PRODUCT:
            threshold = tl.load(p_threshold)
            tau = threshold + highest_bias
            err = packed.rel * tl.abs(tau) + tl.load(p_threshold + M)
            if FORM.norm != NO_NORM:
                err += tl.load(p_threshold + 2 * M) * largest_norm
            limit = of_squares(tau + 1.25 * err, FORM)
            limit = tl.where(threshold == threshold, limit, -1.0)
            feature += all_past(total, limit) * num_features
    return total, feature == num_features


@triton.jit
def classify(distance, tau, rel, absolute):
    """Return masks of pairs that are proven to beat the target, and proven to lose.

    Only true comparisons of finite numbers decide.
    """
    err = rel * tl.abs(tau) + absolute
    beats = (distance < tau - err) & (distance > -HUGE)
    loses = (distance > tau + err) & (distance < HUGE)
    return beats, loses


@triton.jit
def judge(total, packed, num_candidates, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return masks of pairs that are proven to beat, that are proven to lose, and that count."""
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    p_threshold = packed.thresholds + row_of_pair(TILE)
    o_lane = lane_of_pair(TILE)
    lane = tl.program_id(1) * N + o_lane
    tau = of_rows(tl.load(p_threshold))
    valid = (tau == tau) & of_lanes(lane < num_candidates)
    absolute = of_rows(tl.load(p_threshold + M))
    if FORM.norm != NO_NORM:
        norm = of_lanes(tl.load(packed.lanes + N + o_lane))
        absolute += of_rows(tl.load(p_threshold + 2 * M)) * norm
    if FORM.has_bias:
        tau += of_lanes(tl.load(packed.lanes + o_lane))
    beats, loses = classify(distance_of(total, FORM), tau, packed.rel, absolute)
    return beats & valid, loses, valid


@triton.jit
def count_certain(p_greater, beats, TILE: tl.constexpr):
    """Add the pairs of a tile that beat the targets to the counts of positions."""
    position = tl.program_id(0) * TILE.rows + row_of_pair(TILE)
    count = tl.sum(tl.sum(beats.to(tl.int32), 0), 2)  # [J, W]
    tl.atomic_add(p_greater + position, count, mask=count > 0, sem="relaxed")


@triton.jit
def append(tally, is_open, TILE: tl.constexpr):
    """Append the open pairs of a tile to the band, as far as the band has room.

    The cursor counts on past the capacity, in 64 bits. Nothing may branch on a load of it: warps
    that see different numbers would part before a barrier.
    """
    R: tl.constexpr = TILE.repeats
    W: tl.constexpr = TILE.bands
    L: tl.constexpr = lanes_apart(TILE)
    flag = is_open.to(tl.int32)
    count = tl.reshape(tl.sum(flag, 1), (R * W * L,))
    num_open = tl.sum(count, 0)
    if num_open > 0:
        first = tl.atomic_add(tally.cursor, num_open.to(tl.int64), sem="relaxed")
        room = tl.minimum(tl.maximum(tally.capacity - first, 0), num_open).to(tl.int32)
        before = tl.reshape(tl.cumsum(count, 0) - count, (R, 1, W, L))
        slot = before + tl.cumsum(flag, 1) - flag
        position = tl.program_id(0) * TILE.rows + row_of_pair(TILE)
        lane = tl.program_id(1) * TILE.lanes + lane_of_pair(TILE)
        lane = (lane.to(tl.uint32) + tally.first).to(tl.int64)  # there are fewer than 2**32
        pair = of_rows(position.to(tl.int64) * 4294967296) + of_lanes(lane)
        tl.store(tally.band + first + slot, pair, mask=is_open & (slot < room))


@triton.jit
def of_tile(packed, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return packed thresholds and lanes of this program's tile; rows unchanged."""
    return SweepPanels(
        packed.queries,
        packed.panels,
        packed.thresholds + tl.program_id(0) * (threshold_rows(FORM) * TILE.rows),
        packed.lanes + tl.program_id(1) * (2 * TILE.lanes),
        packed.rel,
    )


@triton.jit(do_not_specialize=["num_candidates", "num_features"])
def sweep(packed, tally, num_candidates, num_features, FORM: tl.constexpr, TILE: tl.constexpr):
    """Count pairs that certainly beat the query's limit; append open pairs to the band."""
    packed = of_tile(packed, FORM, TILE)
    tile = tile_of(packed.queries, packed.panels, num_features, FORM, TILE)
    largest = extremes(packed.lanes, FORM, TILE)
    total, complete = sweep_tile(tile, packed, num_features, largest, FORM, TILE)
    if complete:
        beats, loses, valid = judge(total, packed, num_candidates, FORM, TILE)
        if tally.greater is not None:
            count_certain(tally.greater, beats, TILE)
            append(tally, valid & ((beats | loses) == 0), TILE)
        else:
            append(tally, valid & (loses == 0), TILE)

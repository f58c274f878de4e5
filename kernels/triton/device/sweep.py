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
    num_norms,
    query_planes,
    threshold_rows,
)
from .moves import FAR, NEAR, NEAREST, STILL
from .terms import PRODUCT, Candidate, Query, distance_of, term_of

# features per short accumulator, also of rows in place; bounds.py counts folds by this number
SUM_BLOCK: tl.constexpr = tl.constexpr(64)
HUGE: tl.constexpr = tl.constexpr(3.4028234663852886e38)  # the largest finite float32


class SweepPanels(NamedTuple):
    """Operands of a sweep: rows, and the data that decide pairs."""

    queries: Any  # [tiles][num_features][planes][rows of a tile], or SplitRows
    panels: Any  # [panels][num_features][planes][lanes of a tile], or SplitRows
    thresholds: Any  # [tiles][3, 4 for rscf scores, 5 if split][rows of a tile], see thresholds.py
    lanes: Any  # [panels][2][lanes of a tile] bias, norm; read if the form needs these
    rel: float


class Tally(NamedTuple):
    """Counts of certain pairs, and the bands of open pairs: one band, or one for each query."""

    counts: Any  # [queries][4] int64, see canonical.Counted; None: pairs that may win are open
    band: Any  # [bands][capacity] query << 32 | lane
    cursor: Any  # [1] int64, pairs appended, or more if there was no room
    capacity: int  # pairs of a band
    # [bands] int32, of queries from ``first_query`` on: places after the last pair, or beyond the
    # band; None: there is one band
    cursors: Any = None
    order: Any = None  # [positions] query; None: the queries from ``first_query`` on
    first_query: int = 0
    first: int = 0  # lane of the first candidate


@triton.jit
def tile_of(p_queries, p_panels, num_features, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return the packed queries and candidates of this program's tile."""
    wide = num_features.to(tl.int64)
    # Queries first, so that a panel is reused while it is in the cache.
    p_queries += tl.program_id(0) * (wide * (query_planes(FORM) * TILE.rows))
    p_panels += tl.program_id(1) * (wide * (candidate_planes(FORM) * TILE.lanes))
    return p_queries, p_panels


@triton.constexpr_function
def is_swept(tile):
    """Return True if pairs lie in the order of a sweep's sums, ``[R, J, W, L]``; else ``[M, N]``.

    Data of rows is ``[J, W]``, or ``[M]``; data of lanes is ``[R, L]``, or ``[N]``. Warp w has rows
    from ``w J`` on, and a thread's lanes are neighbours.
    """
    return getattr(tile, "repeats", 0) > 0


@triton.jit
def rows_in_tile(TILE: tl.constexpr):
    """Return the number of each row of a tile."""
    row = tl.arange(0, TILE.rows)
    if is_swept(TILE):
        J: tl.constexpr = TILE.rows // TILE.num_warps
        row = tl.arange(0, J)[:, None] + tl.arange(0, TILE.num_warps)[None, :] * J
    return row


@triton.jit
def lanes_in_tile(TILE: tl.constexpr):
    """Return the number of each lane of a tile."""
    lane = tl.arange(0, TILE.lanes)
    if is_swept(TILE):
        R: tl.constexpr = TILE.repeats
        lane = tl.arange(0, R)[:, None] + tl.arange(0, TILE.lanes // R)[None, :] * R
    return lane


@triton.jit
def by_row(values, TILE: tl.constexpr):
    """Return numbers of rows, spread over the pairs of a tile."""
    return values[None, :, :, None] if is_swept(TILE) else values[:, None]


@triton.jit
def by_lane(values, TILE: tl.constexpr):
    """Return numbers of lanes, spread over the pairs of a tile."""
    return values[:, None, None, :] if is_swept(TILE) else values[None, :]


@triton.jit
def sum_rows(values, TILE: tl.constexpr):
    """Return the sum of each row of a tile."""
    return tl.sum(tl.sum(values, 0), 2) if is_swept(TILE) else tl.sum(values, 1)


@triton.jit
def max_rows(values, TILE: tl.constexpr):
    """Return the highest number of each row of a tile."""
    return tl.max(tl.max(values, 0), 2) if is_swept(TILE) else tl.max(values, 1)


@triton.jit
def sum_lanes(values, TILE: tl.constexpr):
    """Return the sum of each lane of a tile."""
    return tl.sum(tl.sum(values, 1), 1) if is_swept(TILE) else tl.sum(values, 0)


@triton.jit
def new_sums(TILE: tl.constexpr):
    """Return the sums of a tile, ``[R, J, W, L]``: lanes, rows and warps as Triton deals them."""
    R: tl.constexpr = TILE.repeats
    J: tl.constexpr = TILE.rows // TILE.num_warps
    W: tl.constexpr = TILE.num_warps
    L: tl.constexpr = TILE.lanes // TILE.repeats
    return tl.zeros((R, J, W, L), tl.float32)


@triton.jit
def flat(total, TILE: tl.constexpr):
    """Return the sums of a tile as ``[M, N]``."""
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    return tl.reshape(tl.permute(total, (2, 1, 3, 0)), (M, N))


@triton.constexpr_function
def at_once(form, tile):
    """Return the features that are loaded at once: two of complex rows, if registers are left."""
    return 2 if form.planes == 2 and not form.is_rscf and tile.num_warps == 4 else 1


@triton.jit
def add_packed(part, tile, first, stop, FORM: tl.constexpr, MOVE: tl.constexpr, TILE: tl.constexpr):
    """Return ``part`` (:func:`new_sums`) plus terms of packed features ``first .. stop - 1``."""
    p_queries, p_panels = tile
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    p_queries += rows_in_tile(TILE)
    p_panels += lanes_in_tile(TILE)
    for k in tl.range(first, stop, loop_unroll_factor=at_once(FORM, TILE)):
        p_q = p_queries + k * (query_planes(FORM) * M)
        p_c = p_panels + k * (candidate_planes(FORM) * N)
        q_re = by_row(tl.load(p_q), TILE)
        c_re = by_lane(tl.load(p_c), TILE)
        q_im = q_re
        c_im = c_re
        w_re = q_re
        w_im = q_re
        a = q_re
        b = c_re
        if FORM.planes == 2:
            q_im = by_row(tl.load(p_q + M), TILE)
            c_im = by_lane(tl.load(p_c + N), TILE)
        if FORM.is_rscf:
            w_re = by_row(tl.load(p_q + FORM.planes * M), TILE)
            if FORM.planes == 2:
                w_im = by_row(tl.load(p_q + 3 * M), TILE)
        if FORM.has_factor:
            a = by_row(tl.load(p_q + 2 * FORM.planes * M), TILE)
            b = by_lane(tl.load(p_c + FORM.planes * N), TILE)
        query = Query(q_re, q_im, w_re, w_im, a)
        part += term_of(query, Candidate(c_re, c_im, b), FORM, MOVE)
    return part


@triton.jit
def sweep_tile(packed, decider, p_lanes, num_features, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return sums of a tile (:func:`new_sums`), and whether the tile ran to its end.

    ``decider`` is that of :func:`take`, and ``p_lanes`` points to the panel's biases and norms.
    Thresholds are loaded at every fold, since a lane would have to hold all thresholds.
    """
    M: tl.constexpr = TILE.rows
    MOVE: tl.constexpr = NEAR if FORM.has_factor else STILL
    o_lane = tl.arange(0, TILE.lanes)
    highest_bias = 0.0
    if FORM.has_bias:
        highest_bias = tl.max(tl.load(p_lanes + o_lane), 0)
    largest_norm = 0.0
    if FORM.norm != NO_NORM:
        largest_norm = tl.max(tl.load(p_lanes + TILE.lanes + o_lane), 0)
    tile = tile_of(packed.queries, packed.panels, num_features, FORM, TILE)
    p_threshold, rel = decider
    p_threshold += rows_in_tile(TILE)
    is_near = True  # phases have a cheaper loop if all are near
    if FORM.has_factor and FORM.planes == 2:
        is_near = tl.max(tl.load(p_threshold + 3 * M)) * largest_norm <= NEAREST
    total = new_sums(TILE)
    feature = 0  # past num_features: abandoned
    while feature < num_features:
        stop = tl.minimum(feature + SUM_BLOCK, num_features)
        part = new_sums(TILE)
        if is_near:
            total += add_packed(part, tile, feature, stop, FORM, MOVE, TILE)
        else:
            total += add_packed(part, tile, feature, stop, FORM, FAR, TILE)
        feature = stop
        if FORM.term != PRODUCT:
            threshold = tl.load(p_threshold)
            tau = threshold + highest_bias
            err = rel * tl.abs(tau) + tl.load(p_threshold + M)
            if FORM.norm != NO_NORM:
                err += tl.load(p_threshold + 2 * M) * largest_norm
            limit = tau + 1.25 * err
            if FORM.is_root:
                square = limit * limit * (1.0 + 9.5367431640625e-07)
                limit = tl.where(limit < 0.0, -1.0, square)
            limit = tl.where(threshold == threshold, limit, -1.0)
            is_past = (total > by_row(limit, TILE)) & (total <= HUGE)
            feature += tl.min(is_past.to(tl.int32)) * num_features
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
def take(
    distance,
    facts,  # biases of the candidates, and a tuple of their norms
    decider,  # thresholds of the tile, and the relative error
    tally,
    num_candidates,
    FORM: tl.constexpr,
    NORMS: tl.constexpr,  # number of norms, whose factors are thresholds after the first two
    TILE: tl.constexpr,
):
    """Count pairs that certainly beat the query's limit, and append open pairs to the band.

    Pairs are appended one by one, as few of a tile are open. Cursors count on past the capacity.
    The places of a query's band have 32 bits, which take fewer registers.
    """
    bias, norms = facts
    p_threshold, rel = decider
    p_threshold += rows_in_tile(TILE)
    lane = tl.program_id(1) * TILE.lanes + lanes_in_tile(TILE)
    limit = tl.load(p_threshold)
    tau = by_row(limit, TILE)
    valid = (tau == tau) & by_lane(lane < num_candidates, TILE)
    absolute = by_row(tl.load(p_threshold + TILE.rows), TILE)
    for i in tl.static_range(NORMS):
        factor = tl.load(p_threshold + (2 + i) * TILE.rows)
        absolute += by_row(factor, TILE) * by_lane(norms[i], TILE)
    if FORM.has_bias:
        tau += by_lane(bias, TILE)
    beats, loses = classify(distance, tau, rel, absolute)
    is_open = valid & (loses == 0)
    query = tl.program_id(0) * TILE.rows + rows_in_tile(TILE)
    if tally.order is None:
        query = (query + tally.first_query).to(tl.int64)  # there are fewer than 2**31
    else:
        query = tl.load(tally.order + query, mask=limit == limit, other=0)
    if tally.counts is not None:
        beats &= valid
        is_open &= beats == 0
        count = sum_rows(beats.to(tl.int32), TILE).to(tl.int64)
        tl.atomic_add(tally.counts + query * 4, count, mask=count > 0, sem="relaxed")
    one = is_open.to(tl.int32)
    if tally.cursors is None:
        end = tally.capacity
        p_cursor = tally.cursor + one * 0
        slot = tl.atomic_add(p_cursor, one.to(tl.int64), mask=is_open, sem="relaxed")
    else:
        band = (query - tally.first_query).to(tl.int32)
        end = by_row((band + 1) * tally.capacity, TILE)
        p_cursor = by_row(tally.cursors + band, TILE) + one * 0
        slot = tl.atomic_add(p_cursor, one, mask=is_open, sem="relaxed")
    lane = (lane.to(tl.uint32) + tally.first).to(tl.int64)  # there are fewer than 2**32
    pair = by_row(query * 4294967296, TILE) + by_lane(lane, TILE)
    tl.store(tally.band + slot, pair, mask=is_open & (slot < end))


@triton.jit(do_not_specialize=["num_candidates", "num_features"])
def sweep(packed, tally, num_candidates, num_features, FORM: tl.constexpr, TILE: tl.constexpr):
    """Count pairs that certainly beat the query's limit; append open pairs to the band."""
    p_threshold = packed.thresholds + tl.program_id(0) * (threshold_rows(FORM) * TILE.rows)
    p_panel = packed.lanes + tl.program_id(1) * (2 * TILE.lanes)
    decider = p_threshold, packed.rel
    total, complete = sweep_tile(packed, decider, p_panel, num_features, FORM, TILE)
    if complete:
        p_lane = p_panel + lanes_in_tile(TILE)
        bias = 0.0
        norm = 0.0
        if FORM.has_bias:
            bias = tl.load(p_lane)
        if FORM.norm != NO_NORM:
            norm = tl.load(p_lane + TILE.lanes)
        distance, facts = distance_of(total, FORM), (bias, (norm,))
        take(distance, facts, decider, tally, num_candidates, FORM, num_norms(FORM), TILE)

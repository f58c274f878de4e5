"""The sweep of dot products on tensor cores: rows as two bfloat16 parts, three products of them.

With ``q = q_hi + q_lo + q_rest``, the sweep computes ``q_lo c_hi + q_hi c_lo + q_hi c_hi``, and the
bound (host/split.py, docs/explanation/exactness.md) covers the rest. For each 32 features, the
small products come first, from 0, so that tensor cores cut off little. The sum is then added to a
total in float32, as in sweep.py.

Cost model (sm_90, 128 x 128 tile, 8 warps): 6 HGMMA, 8 copies to shared memory and 64 additions per
thread for 32 features; 168 registers, no spills, 128 KiB of shared memory in four stages. Limited
by tensor cores (0.75 clocks per feature and 512 pairs) and by the bytes that the L2 cache gives:
1/32 of a byte per pair and feature. The tile of at most 64 queries is turned: its rows are 128
candidates, 64 for each warp group. So no product is made twice, and a step has 2 barriers, not 17.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Lanes, is_finite, load_as, note_bad_rows, widen
from .pack import ROWS, norm_above, rows_at
from .sweep import take

SPLIT_FEATURES = 32  # features of a step; rows are padded to a multiple
SPLIT_NORMS = 3  # norms of a row: of the row, of the lower part, and of the rest
STEP: tl.constexpr = tl.constexpr(SPLIT_FEATURES)
TERMS: tl.constexpr = tl.constexpr(1 + SPLIT_NORMS)
THRESHOLDS: tl.constexpr = tl.constexpr(2 + SPLIT_NORMS)


class SplitRows(NamedTuple):
    """Packed rows of one side, with parts ``[rows][steps][STEP]``, padded with zeros."""

    high: Any  # bfloat16
    low: Any  # lower part; None: zeros, as for a table in bfloat16
    terms: Any  # [panels][4][lanes of a panel] bias, norms


@triton.jit
def to_bfloat16(values):
    """Return float32 rounded to bfloat16, ties to even, by bits; a NaN becomes anything.

    Denormals stay on every target. The interpreter has equal numbers, although its own conversion
    carries wrongly.
    """
    bits = values.to(tl.uint32, bitcast=True)
    bits += 32767 + ((bits >> 16) & 1)
    return (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit(do_not_specialize=["count", "num_features"])
def pack_parts(
    lanes,
    bias,
    packed,  # SplitRows
    count,
    num_features,
    PANEL: tl.constexpr,
):
    """Pack ``ROWS`` rows, and upper bounds on the norms of the parts.

    Cost model: a read of the rows, a write of 4 bytes per number; limited by memory.
    """
    lanes = Lanes(lanes.rows, lanes.ids, lanes.first, lanes.status)
    LANES: tl.constexpr = PANEL.lanes
    IS_NEGATED: tl.constexpr = PANEL.is_negated
    num_steps = (num_features + STEP - 1) // STEP
    lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = rows_at(lanes, lane, count)
    p_rows = lanes.rows.ptr + rows[:, None] * lanes.rows.row
    p_high = packed.high + lane.to(tl.int64)[:, None] * (num_steps * STEP)
    p_low = p_high
    if packed.low is not None:
        p_low = packed.low + lane.to(tl.int64)[:, None] * (num_steps * STEP)
    is_bad = tl.zeros((ROWS,), tl.int32)
    of_row = tl.zeros((ROWS,), tl.float64)
    of_low = tl.zeros((ROWS,), tl.float64)
    of_rest = tl.zeros((ROWS,), tl.float64)
    for step in range(num_steps):
        k = step * STEP + tl.arange(0, STEP)
        m_feature = (k < num_features)[None, :]
        o_feature = (k.to(tl.int64) * lanes.rows.step)[None, :]
        value = widen(tl.load(p_rows + o_feature, mask=m_feature, other=0.0)).to(tl.float64)
        if lanes.status is not None:
            is_bad |= tl.max((is_finite(value) == 0).to(tl.int32), 1)
        if IS_NEGATED:
            value = -value
        high = to_bfloat16(value.to(tl.float32))
        rest = value - widen(high).to(tl.float64)
        tl.store(p_high + k[None, :], high)
        if packed.low is not None:
            low = to_bfloat16(rest.to(tl.float32))
            tl.store(p_low + k[None, :], low)
            lower = widen(low).to(tl.float64)
            of_low += tl.sum(lower * lower, 1)
            rest -= lower
        of_row += tl.sum(value * value, 1)
        of_rest += tl.sum(rest * rest, 1)
    if lanes.status is not None:
        note_bad_rows(lanes.status, rows, is_bad > 0)
    p_terms = packed.terms + (tl.program_id(0) * ROWS // LANES) * (TERMS * LANES)
    p_terms += (tl.program_id(0) * ROWS) % LANES + tl.arange(0, ROWS)
    if bias is not None:
        tl.store(p_terms, load_as(bias.ptr + rows * bias.step, None, tl.float32))
    sums = of_row, of_low, of_rest
    for i in tl.static_range(TERMS - 1):
        norm = norm_above(sums[i], 2)
        tl.store(p_terms + (1 + i) * LANES, tl.where(norm < float("inf"), norm, float("inf")))


@triton.constexpr_function
def is_turned(tile):
    """Return True if candidates are the rows of a tile's products, 64 for each warp group."""
    return tile.rows < tile.lanes


@triton.jit
def add_parts(part, q, c, TILE: tl.constexpr):
    """Add the product of parts of queries ``[M, STEP]`` and of candidates ``[STEP, N]``."""
    turned: tl.constexpr = is_turned(TILE)
    return tl.dot(tl.trans(c), tl.trans(q), part) if turned else tl.dot(q, c, part)


@triton.jit
def new_products(TILE: tl.constexpr):
    """Return zeros for the products of a tile, ``[M, N]``, turned ``[N, M]``."""
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    return tl.zeros((N, M) if is_turned(TILE) else (M, N), tl.float32)


@triton.jit
def multiply_tile(queries, candidates, num_features, TILE: tl.constexpr):
    """Multiply the :class:`SplitRows` of a tile, ``[M, N]``."""
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    num_steps = (num_features + STEP - 1) // STEP
    width = num_steps * STEP
    o_query = (tl.program_id(0) * M + tl.arange(0, M))[:, None] * width + tl.arange(0, STEP)
    o_candidate = (tl.program_id(1) * N + tl.arange(0, N))[None, :] * width
    o_candidate += tl.arange(0, STEP)[:, None]
    total = new_products(TILE)
    for step in tl.range(0, num_steps, num_stages=TILE.stages):
        k = step * STEP
        q_high = tl.load(queries.high + o_query + k)
        q_low = tl.load(queries.low + o_query + k)
        c_high = tl.load(candidates.high + o_candidate + k)
        part = add_parts(new_products(TILE), q_low, c_high, TILE)
        if candidates.low is not None:
            c_low = tl.load(candidates.low + o_candidate + k)
            part = add_parts(part, q_high, c_low, TILE)
        part = add_parts(part, q_high, c_high, TILE)
        total += part
    if is_turned(TILE):
        total = tl.trans(total)
    return total


@triton.jit
def store_products(queries, candidates, p_out, num_features, stride, TILE: tl.constexpr):
    """Store what a sweep multiplies, one tile."""
    total = multiply_tile(queries, candidates, num_features, TILE)
    o_query = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    o_lane = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
    tl.store(p_out + o_query[:, None] * stride + o_lane[None, :], total)


@triton.jit(do_not_specialize=["num_candidates", "num_features"])
def sweep_split(
    packed, tally, num_candidates, num_features, FORM: tl.constexpr, TILE: tl.constexpr
):
    """Do :func:`sweep.sweep` for the :class:`SplitRows` of both sides."""
    candidates = packed.panels
    total = multiply_tile(packed.queries, candidates, num_features, TILE)
    p_threshold = packed.thresholds + tl.program_id(0) * (THRESHOLDS * TILE.rows)
    p_lane = candidates.terms + tl.program_id(1) * (TERMS * TILE.lanes)
    p_lane += tl.arange(0, TILE.lanes)
    bias = 0.0
    if FORM.has_bias:
        bias = tl.load(p_lane)
    p_norm = p_lane + TILE.lanes
    norms = tl.load(p_norm), tl.load(p_norm + TILE.lanes), tl.load(p_norm + 2 * TILE.lanes)
    decider = p_threshold, packed.rel
    take(total, (bias, norms), decider, tally, num_candidates, FORM, 3, TILE)

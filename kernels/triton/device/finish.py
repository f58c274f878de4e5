"""Kernel that turns row sums of tiles into losses, and kernel that scales gradients.

The program that finishes last adds the losses of all rows, in order. The result does not depend on
which program is last.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import load_as

FINISHED_ROWS, SCALED = 16, 4096  # rows or numbers of a program
_ROWS: tl.constexpr = tl.constexpr(FINISHED_ROWS)
_TILES: tl.constexpr = tl.constexpr(32)  # tiles with sums that are added at once
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)  # the lowest finite float32


class Totals(NamedTuple):
    """Row sums of earlier tiles, and targets for the sums of all tiles.

    Sizes that change within a run are no members: kernels are compiled anew when an int of a tuple
    begins or ceases to be a multiple of 16.
    """

    carried: Any = None  # [2, or 3 of a softmax][B] float64
    rows: Any = None  # [B] the losses
    linear: Any = None  # [B] float64
    logsumexp: Any = None  # [B] float64, for a softmax
    status: Any = None  # [programs] int64, 1 if a program met a number that is not finite
    total: Any = None  # [1] the sum of the losses; None: not needed
    parts: Any = None  # [programs] float64, parts of the total
    finished: Any = None  # [1] int64: number of programs that have finished, 0 before
    sums: Any = None  # [tiles][2, or 3 of a softmax][B] row sums
    picked: Any = None  # [B] scores of the targets of a softmax
    num_candidates: int = 0
    bias: Any = None  # [N], for a softmax. No Vector, as in losses.RowLabels
    bias_step: int = 0


@triton.jit
def sum_over_tiles(p_sums, part, num_tiles, num_queries, row, PARTS: tl.constexpr):
    """Return a sum of each row over all tiles, in float64 and in order; the maximum of peaks."""
    total = tl.zeros_like(row).to(tl.float64)
    for first in range(0, num_tiles, _TILES):
        tile = first + tl.arange(0, _TILES)
        mask = (tile < num_tiles)[:, None] & (row < num_queries)[None, :]
        o_sum = (tile.to(tl.int64) * PARTS + part)[:, None] * num_queries + row[None, :]
        total += tl.sum(tl.load(p_sums + o_sum, mask=mask, other=0.0).to(tl.float64), 0)
    return total


@triton.jit
def is_last(p_finished, num_programs):
    """Return True in the program that comes last, which sees the stores of all programs."""
    tl.debug_barrier()
    one = tl.full((), 1, tl.int64)
    last = tl.atomic_add(p_finished, one, sem="acq_rel") == num_programs - 1
    tl.debug_barrier()
    return last


@triton.jit
def sum_of_programs(p_parts, num_programs):
    """Return the sum of the numbers that programs stored, in a fixed order."""
    total = tl.zeros((_TILES,), tl.float64)
    for first in range(0, num_programs, _TILES):
        program = first + tl.arange(0, _TILES)
        p_part = p_parts + program
        total += tl.load(p_part, mask=program < num_programs, other=0.0, volatile=True)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["num_tiles", "num_queries"])
def finish(
    labels,
    totals,
    num_tiles,
    num_queries,
    HAS_EARLIER: tl.constexpr,  # sums of earlier tiles are carried
    IS_LAST: tl.constexpr,  # no tiles follow
):
    """Add the tiles' sums to the earlier sums; after the last tiles, make the rows' losses."""
    IS_SOFTMAX: tl.constexpr = labels.indptr is None
    row = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    m_row = row < num_queries
    PARTS: tl.constexpr = 3 if IS_SOFTMAX else 2
    p_carried = totals.carried + row
    linear = sum_over_tiles(totals.sums, PARTS - 1, num_tiles, num_queries, row, PARTS)
    if IS_SOFTMAX:
        peak = tl.zeros_like(linear) + LOWEST
        mass = tl.zeros_like(linear)
        if HAS_EARLIER:
            peak = tl.load(p_carried, mask=m_row, other=0.0)
            mass = tl.load(p_carried + num_queries, mask=m_row, other=0.0)
        for first in range(0, num_tiles, _TILES):
            tile = first + tl.arange(0, _TILES)
            mask = (tile < num_tiles)[:, None] & m_row[None, :]
            p_peak = totals.sums + (tile.to(tl.int64) * 3)[:, None] * num_queries + row[None, :]
            peaks = tl.load(p_peak, mask=mask, other=float("-inf")).to(tl.float64)
            masses = tl.load(p_peak + num_queries, mask=mask, other=0.0).to(tl.float64)
            higher = tl.maximum(peak, tl.max(peaks, 0))
            parts = tl.where(mask, masses * tl.exp(peaks - higher[None, :]), 0.0)
            mass = mass * tl.exp(peak - higher) + tl.sum(parts, 0)
            peak = higher
        loss = peak + tl.log(mass)
    else:
        loss = sum_over_tiles(totals.sums, 0, num_tiles, num_queries, row, PARTS)
    if HAS_EARLIER:
        linear += tl.load(p_carried + (PARTS - 1) * num_queries, mask=m_row, other=0.0)
        if not IS_SOFTMAX:
            loss += tl.load(p_carried, mask=m_row, other=0.0)
    if IS_LAST:
        is_bad = (tl.abs(linear) < float("inf")) == 0
        if IS_SOFTMAX:
            tl.store(totals.logsumexp + row, loss, mask=m_row)
            target = tl.load(labels.keys + row, mask=m_row, other=0)
            safe = tl.minimum(tl.maximum(target, 0), totals.num_candidates - 1)
            is_bad |= target != safe
            if totals.bias is not None:
                value = load_as(totals.bias + safe * totals.bias_step, m_row, tl.float32)
                is_bad |= value == float("-inf")
            inside = m_row & (target == safe)
            picked = tl.load(totals.picked + row, mask=inside, other=0.0).to(tl.float64)
            loss -= labels.positive * picked
            if labels.every != 0.0:
                loss -= labels.every * linear
        loss *= labels.weight
        tl.store(totals.rows + row, loss.to(tl.float32), mask=m_row)
        tl.store(totals.linear + row, linear, mask=m_row)
        tl.store(totals.status + tl.program_id(0), tl.max((is_bad & m_row).to(tl.int64), 0))
        if totals.total is not None:
            tl.store(totals.parts + tl.program_id(0), tl.sum(tl.where(m_row, loss, 0.0), 0))
            if is_last(totals.finished, tl.num_programs(0)):
                total = sum_of_programs(totals.parts, tl.num_programs(0))
                tl.store(totals.total, total.to(tl.float32))
    else:
        tl.store(p_carried, peak if IS_SOFTMAX else loss, mask=m_row)
        if IS_SOFTMAX:
            tl.store(p_carried + num_queries, mass, mask=m_row)
        tl.store(p_carried + (PARTS - 1) * num_queries, linear, mask=m_row)


@triton.jit
def scale(values, counts, p_factor, MEMBERS: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply gradients, ``values``, by a factor in place; for a factor of 1, write nothing."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    factor = tl.load(p_factor).to(tl.float32)
    if factor != 1.0:
        for i in tl.static_range(MEMBERS):
            mask = o < counts[i]
            tl.store(values[i] + o, tl.load(values[i] + o, mask=mask) * factor, mask=mask)

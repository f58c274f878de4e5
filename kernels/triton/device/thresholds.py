"""Thresholds: numbers that decide the pairs of a query, from a limit and the bound of an error.

The rows of thresholds are minus the limit (NaN: none), and margins: the base, the slopes of norms
of a candidate and, of rscf scores, the largest move ``|a|``. With ``tau = bias + row 0`` and ``err
= rel |tau| + base + slope norm(c) + ..`` a distance below ``tau - err`` beats the limit, one above
``tau + err`` does not.

Cost model: some ten numbers of each query, once a pass.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Form, find_last_not_above
from .pack import PACK_ROWS, rows_at

THRESHOLD_ROWS = 32  # positions of a program
_ROWS: tl.constexpr = tl.constexpr(THRESHOLD_ROWS)


class Norms(NamedTuple):
    """Place of the norms of queries in panels ``[panels][1 + norms][lanes]``, after a bias."""

    lanes: int
    norms: int
    by_position: bool = False  # else panels have all queries


class Limits(NamedTuple):
    """Limits of queries, and a bound: see bounds.ErrorBound.margins."""

    scores: Any  # [queries] float64
    norms: Any  # see Norms
    bias: Any  # [1] float64, the largest magnitude of a bias; None: there is none
    margins: Any  # for each row a constant, and a factor of each norm


class Positions(NamedTuple):
    """Queries of a pass, and memory for their thresholds."""

    ids: Any  # [positions] query; None: the queries from ``first`` on
    first: int
    candidates: Any  # rising ids; None: all rows
    out: Any  # [tiles][rows of thresholds][rows of a tile]


def places_of(form: Form) -> Norms:
    """Return the places of the norms that the bound of a float32 sum needs."""
    return Norms(PACK_ROWS, 4 if form.is_rscf else int(form.norm > 0))


norms_of = triton.constexpr_function(places_of)  # for kernels; Triton 3.6 alters the host's tuples


@triton.jit
def margin_of(limits, size, place, ROW: tl.constexpr, NORMS: tl.constexpr):
    """Return a row of margins for limits of magnitude ``size``; ``place`` is that of the norms."""
    COUNT: tl.constexpr = NORMS.norms
    FIRST: tl.constexpr = ROW * (1 + COUNT)
    margin = tl.zeros_like(size) + limits.margins[FIRST]
    if ROW == 0:
        if limits.bias is not None:
            size += tl.load(limits.bias + place * 0)
        margin += size * 2.384185791015625e-07  # 4 units
    for i in tl.static_range(COUNT):
        o_panel = place // NORMS.lanes * ((1 + COUNT) * NORMS.lanes) + place % NORMS.lanes
        norm = tl.load(limits.norms + o_panel + (1 + i) * NORMS.lanes).to(tl.float64)
        margin += norm * limits.margins[FIRST + 1 + i]
    return (margin * (1.0 + 9.5367431640625e-07) + 7.52316384526264e-37).to(tl.float32)


@triton.jit
def limits_of(limits, query):
    """Return limits, and their magnitudes; 0 for NaN."""
    score = tl.load(limits.scores + query)
    return score, tl.where(score == score, tl.abs(score), 0.0)


@triton.jit(do_not_specialize=["count", "num_rows", "num_candidates"])
def write_thresholds(
    limits,
    positions,
    counted,  # canonical.Counted, if all others beat a target that scores NaN; else None
    count,
    num_rows,  # rows of a tile
    num_candidates,
    NORMS: tl.constexpr,
):
    """Write the thresholds of some positions; places of a tile past the last one have no limit."""
    ROWS: tl.constexpr = 1 + len(limits.margins) // (1 + NORMS.norms)
    position = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    inside = position < count
    query = rows_at(positions, position, count)
    place = query
    if NORMS.by_position:
        place = tl.minimum(position, count - 1).to(tl.int64)
    score, size = limits_of(limits, query)
    p_row = positions.out + (position // num_rows).to(tl.int64) * (ROWS * num_rows)
    p_row += position % num_rows
    m_row = position < tl.cdiv(count, num_rows) * num_rows
    tl.store(p_row, tl.where(inside, -score, float("nan")).to(tl.float32), mask=m_row)
    for row in tl.static_range(ROWS - 1):
        margin = margin_of(limits, size, place, row, NORMS)
        tl.store(p_row + (row + 1) * num_rows, margin, mask=m_row)
    if counted is not None:
        target = tl.load(counted.targets + query)
        is_candidate = target >= 0
        if positions.candidates is not None:
            nearest = find_last_not_above(positions.candidates, num_candidates, target)
            p_nearest = positions.candidates + nearest
            is_candidate = tl.load(p_nearest, mask=nearest >= 0, other=-2) == target
        others = num_candidates - is_candidate.to(tl.int64)
        tl.store(counted.counts + query * 4, others, mask=inside & (score != score))

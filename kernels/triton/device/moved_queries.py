"""Queries of filtering scores, packed for a sweep: the factor is near 1, so that is folded in.

``q e^{iab} = (q e^{ia}) e^{ia(b-1)}`` and ``q + a b = (q + a) + a (b - 1)``; both are taken in
float64 and rounded once. Beside that, what bounds.py must know of every query.

Cost model: a canonical sine and cosine for every number of a query, 1/N of a sweep's work.
"""

import triton
import triton.language as tl

from .canonical_trig import canonical_cos_sin
from .moves import load_query
from .operands import is_finite, note_bad_rows
from .terms import RSCF_L2, RSCF_ROTATE


@triton.jit
def folded(q_re, q_im, a, SCORE: tl.constexpr, HAS_FACTOR: tl.constexpr):
    """The float64 query moved as by a factor of 1."""
    re = q_re
    im = q_im
    if HAS_FACTOR:
        if SCORE == RSCF_ROTATE:
            cosine, sine = canonical_cos_sin(a)
            re = q_re * cosine - q_im * sine
            im = q_re * sine + q_im * cosine
        else:
            re = q_re + a
    return re, im


@triton.jit(do_not_specialize=["count", "num_features"])
def fold_queries(
    p_query,
    q_row_stride,
    q_plane_stride,
    q_step,
    p_ids,  # [count] rows to pack
    count,
    num_features,
    p_out,  # [tiles][num_features][2 * PLANES + HAS_FACTOR][LANES]
    p_status,  # [2] second: the least row that holds a number that is not finite
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    CHECK: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Pack ``ROWS`` rows by ``FEATURES`` features; lanes past the last row repeat it."""
    TOTAL: tl.constexpr = 2 * PLANES + HAS_FACTOR
    o_first = tl.program_id(0) * ROWS
    lane = o_first + tl.arange(0, ROWS)
    k = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    rows = tl.load(p_ids + tl.minimum(lane, count - 1).to(tl.int64))
    mask = (k < num_features)[None, :] & (lane >= 0)[:, None]
    p_rows = p_query + rows[:, None] * q_row_stride + (k.to(tl.int64) * q_step)[None, :]
    q_re, q_im, w_re, w_im, a = load_query(p_rows, q_plane_stride, mask, PLANES, HAS_FACTOR)
    if CHECK:
        is_good = is_finite(q_re) & is_finite(q_im) & is_finite(w_re) & is_finite(w_im)
        is_bad = tl.max(((is_good & is_finite(a)) == 0).to(tl.int32), 1)
        note_bad_rows(p_status + 1, rows, is_bad > 0)
    re, im = folded(q_re.to(tl.float64), q_im.to(tl.float64), a.to(tl.float64), SCORE, HAS_FACTOR)
    p_tile = p_out + (o_first // LANES).to(tl.int64) * num_features * (TOTAL * LANES)
    p_tile += (k * (TOTAL * LANES))[None, :] + ((o_first % LANES) + tl.arange(0, ROWS))[:, None]
    tl.store(p_tile, re.to(tl.float32), mask=mask)
    tl.store(p_tile + PLANES * LANES, w_re.to(tl.float32), mask=mask)
    if PLANES == 2:
        tl.store(p_tile + LANES, im.to(tl.float32), mask=mask)
        tl.store(p_tile + 3 * LANES, w_im.to(tl.float32), mask=mask)
    if HAS_FACTOR:
        tl.store(p_tile + 2 * PLANES * LANES, a.to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["count", "num_features"])
def describe_queries(
    p_query,
    q_row_stride,
    q_plane_stride,
    q_step,
    count,
    num_features,
    p_sizes,  # [4][count] float64
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Of each query: sizes of ``q``, of ``a`` and of ``w``, and the largest ``|a|``.

    Sizes are sums of magnitudes (``rscf_l2``: Euclidean); that of ``a`` for ``rscf_rotate`` is of
    ``|q a|``. A ``w`` that float32 would flush makes its size infinite.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = row < count
    of_q = tl.zeros((ROWS,), tl.float64)
    of_a = tl.zeros((ROWS,), tl.float64)
    of_w = tl.zeros((ROWS,), tl.float64)
    reach = tl.zeros((ROWS,), tl.float64)
    for feature in range(0, num_features, FEATURES):
        k = feature + tl.arange(0, FEATURES)
        mask = m_row[:, None] & (k < num_features)[None, :]
        p_rows = p_query + row[:, None] * q_row_stride + (k.to(tl.int64) * q_step)[None, :]
        q_re, q_im, w_re, w_im, a = load_query(p_rows, q_plane_stride, mask, PLANES, HAS_FACTOR)
        a = tl.abs(a.to(tl.float64))
        w = tl.abs(w_re.to(tl.float64))
        vanishes = (w > 0.0) & (w < 1.1754943508222875e-38)
        if PLANES == 2:
            w_im = tl.abs(w_im.to(tl.float64))
            vanishes |= (w_im > 0.0) & (w_im < 1.1754943508222875e-38)
            w += w_im
        if SCORE == RSCF_ROTATE:
            size = tl.abs(q_re.to(tl.float64)) + tl.abs(q_im.to(tl.float64))
            move = size * a
        else:
            size = q_re.to(tl.float64)
            if HAS_FACTOR:
                size += tl.load(p_rows + 2 * PLANES * q_plane_stride, mask=mask, other=0.0).to(
                    tl.float64
                )
            size = tl.abs(size)
            move = a
            if SCORE == RSCF_L2:
                size = size * size
                move = move * move
        of_q += tl.sum(size, 1)
        of_a += tl.sum(move, 1)
        of_w += tl.sum(tl.where(vanishes, float("inf"), w), 1)
        reach = tl.maximum(reach, tl.max(tl.where(a < float("inf"), a, float("inf")), 1))
    if SCORE == RSCF_L2:
        of_q = tl.sqrt(of_q)
        of_a = tl.sqrt(of_a)
    tl.store(p_sizes + row, of_q, mask=m_row)
    tl.store(p_sizes + count + row, of_a, mask=m_row)
    tl.store(p_sizes + 2 * count + row, of_w, mask=m_row)
    tl.store(p_sizes + 3 * count + row, reach, mask=m_row)

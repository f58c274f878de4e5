"""Canonical scores: the definition of a rank, in float64, features in order, no fusion, bias last.

Every kernel here is launched with ``enable_fp_fusion=False``: it then consists of ``mul.rn``,
``add.rn`` and ``sqrt.rn``, and flushes no denormal.

Cost model: a lane owns a pair, so a feature costs up to four gathered loads, 5 float64 operations
and a correctly rounded float64 square root (about 20 float64 instructions). Only targets and the
pairs that the sweep leaves open come here. Sums of monotone scores stop, as exactly as they are
defined, once they are past their target's.
"""

import triton
import triton.language as tl

from .canonical_trig import canonical_filtered_term
from .moves import load_candidate, load_query
from .operands import is_finite, note_bad_rows, widen
from .terms import DOT, RSCF_ROTATE, canonical_score, canonical_term

STOP_BLOCK: tl.constexpr = tl.constexpr(64)  # features between two looks at what can still win


@triton.jit
def score_pairs(
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
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Canonical scores of pairs ``[P]``, and whether the numbers of each operand were finite.

    A score that is certain to be below ``limit`` may be any number below it; NaN asks for all.
    """
    p_q = p_query + query * q_row_stride
    p_c = p_table + candidate * c_row_stride
    p_f = p_table
    if HAS_FACTOR:
        p_f = p_factor + candidate * f_row_stride
    bias = tl.zeros((LANES,), tl.float64)
    if HAS_BIAS:
        bias = widen(tl.load(p_bias + candidate * bias_stride, mask=m_pair, other=0.0)).to(
            tl.float64
        )
    total = tl.zeros((LANES,), tl.float64)
    q_finite = m_pair
    c_finite = m_pair
    f_finite = m_pair
    feature = 0
    while feature < num_features:
        stop = tl.minimum(feature + STOP_BLOCK, num_features)
        for _ in range(feature, stop):
            if SCORE >= RSCF_ROTATE:
                q_re, q_im, w_re, w_im, a = load_query(
                    p_q, q_plane_stride, m_pair, PLANES, HAS_FACTOR
                )
                c_re, c_im, b = load_candidate(p_c, c_plane_stride, p_f, m_pair, PLANES, HAS_FACTOR)
                total += canonical_filtered_term(
                    q_re.to(tl.float64),
                    q_im.to(tl.float64),
                    w_re.to(tl.float64),
                    w_im.to(tl.float64),
                    a.to(tl.float64),
                    c_re.to(tl.float64),
                    c_im.to(tl.float64),
                    b.to(tl.float64),
                    SCORE,
                    HAS_FACTOR,
                )
                q_finite &= is_finite(w_re) & is_finite(w_im) & is_finite(a)
                if HAS_FACTOR:
                    f_finite &= is_finite(b)
                    p_f += f_step
            else:
                q_re = widen(tl.load(p_q, mask=m_pair, other=0.0)).to(tl.float64)
                c_re = widen(tl.load(p_c, mask=m_pair, other=0.0)).to(tl.float64)
                q_im = q_re
                c_im = c_re
                if PLANES == 2:
                    p_im = p_q + q_plane_stride
                    q_im = widen(tl.load(p_im, mask=m_pair, other=0.0)).to(tl.float64)
                    p_im = p_c + c_plane_stride
                    c_im = widen(tl.load(p_im, mask=m_pair, other=0.0)).to(tl.float64)
                total += canonical_term(q_re, q_im, c_re, c_im, SCORE)
            q_finite &= is_finite(q_re) & is_finite(q_im)
            c_finite &= is_finite(c_re) & is_finite(c_im)
            p_q += q_step
            p_c += c_step
        feature = stop
        if SCORE != DOT:
            lost = canonical_score(total, bias, SCORE, HAS_BIAS) < limit
            if tl.min((lost | (m_pair == 0)).to(tl.int32), 0) > 0:
                feature = num_features
    return canonical_score(total, bias, SCORE, HAS_BIAS), q_finite, c_finite, f_finite


@triton.jit(do_not_specialize=["count", "num_features"])
def score_targets(
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
    p_targets,  # [count]
    p_scores,  # [count] float64
    p_status,  # [3] least query, candidate and factor row with a number that is not finite
    count,
    num_features,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHECK: tl.constexpr,
    LANES: tl.constexpr,
):
    """The canonical score of every query's target; every query row is checked on the way."""
    query = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    m_pair = query < count
    target = tl.load(p_targets + query, mask=m_pair, other=0)
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
        target,
        tl.full((LANES,), float("nan"), tl.float64),
        m_pair,
        num_features,
        SCORE,
        PLANES,
        HAS_FACTOR,
        HAS_BIAS,
        LANES,
    )
    tl.store(p_scores + query, score, mask=m_pair)
    if CHECK:
        note_bad_rows(p_status, query, m_pair & (q_finite == 0))
        note_bad_rows(p_status + 1, target, m_pair & (c_finite == 0))
        if HAS_FACTOR:
            note_bad_rows(p_status + 2, target, m_pair & (f_finite == 0))


@triton.jit(do_not_specialize=["capacity", "first_row", "num_features"])
def decide(
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
    p_targets,  # [B]
    p_scores,  # [B] float64, of the targets
    p_greater,  # [B]
    p_equal,  # [B]
    p_band,  # [capacity] position << 32 | lane
    p_cursor,  # [1]
    capacity,
    p_order,  # query of each position, read if HAS_ORDER; else positions are queries
    p_ids,  # candidate of each lane, read if HAS_IDS; else first_row + lane
    first_row,
    p_status,
    num_features,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_IDS: tl.constexpr,
    CHECK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Decide the pairs of a band that did not overflow; a query's own target never counts."""
    appended = tl.load(p_cursor)
    size = tl.where(appended <= capacity, appended, 0).to(tl.int32)
    for first in range(tl.program_id(0) * LANES, size, tl.num_programs(0) * LANES):
        slot = first + tl.arange(0, LANES)
        m_pair = slot < size
        pair = tl.load(p_band + slot, mask=m_pair, other=0)
        query = pair >> 32
        if HAS_ORDER:
            query = tl.load(p_order + query, mask=m_pair, other=0)
        lane = pair & 4294967295
        candidate = first_row + lane
        if HAS_IDS:
            candidate = tl.load(p_ids + lane, mask=m_pair, other=0)
        m_pair &= candidate != tl.load(p_targets + query, mask=m_pair, other=0)
        threshold = tl.load(p_scores + query, mask=m_pair, other=0.0)
        limit = threshold
        if CHECK:  # every number is looked at
            limit = tl.full((LANES,), float("nan"), tl.float64)
        score, _, c_finite, f_finite = score_pairs(
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
        one = tl.full((LANES,), 1, tl.int64)
        tl.atomic_add(p_greater + query, one, mask=m_pair & (score > threshold), sem="relaxed")
        tl.atomic_add(p_equal + query, one, mask=m_pair & (score == threshold), sem="relaxed")
        if CHECK:
            note_bad_rows(p_status + 1, candidate, m_pair & (c_finite == 0))
            if HAS_FACTOR:
                note_bad_rows(p_status + 2, candidate, m_pair & (f_finite == 0))

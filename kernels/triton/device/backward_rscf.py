"""Gradients of filtering scores: of queries, and of candidates together with their factor.

As pull.py and gather.py, but the sides differ: a query has up to five planes, a candidate up to
three. One function gives the slopes of either side; sums that a side does not have are never
stored, so the compiler drops them.

Cost model (rscf_rotate with a factor, sm_90, issue slots an element): 58 for queries, 49 for
candidates. Accumulators fill the registers, so a lane owns a feature of 4 queries or of 8
candidates.
"""

import triton
import triton.language as tl

from .backward import LEAST_NORMAL
from .gather import narrow
from .moves import PLAIN, load_candidate, load_query, move_cos_sin
from .sweep import SUM_BLOCK
from .terms import RSCF_L1, RSCF_ROTATE


@triton.jit
def filtered_slopes(
    weight,
    q_re,
    q_im,
    w_re,
    w_im,
    a,
    c_re,
    c_im,
    b,
    SCORE: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    OF_QUERIES: tl.constexpr,
):
    """``weight`` times the slopes by ``q_re, q_im, w_re, w_im, a``, or by ``c_re, c_im, b``."""
    if SCORE == RSCF_ROTATE:
        re = q_re
        im = q_im
        if HAS_FACTOR:
            cosine, sine = move_cos_sin(a, b, PLAIN)
            re = q_re * cosine - q_im * sine
            im = q_re * sine + q_im * cosine
        x = re - w_re * c_re
        y = im - w_im * c_im
        scaled = -weight * tl.rsqrt(x * x + (y * y + LEAST_NORMAL))
        u = scaled * x
        v = scaled * y
        by_move = v * re - u * im
        by_re = u
        by_im = v
        if HAS_FACTOR:
            by_re = u * cosine + v * sine
            by_im = v * cosine - u * sine
    else:
        x = q_re
        if HAS_FACTOR:
            x = x + a * b
        x = x - w_re * c_re
        if SCORE == RSCF_L1:
            u = tl.where(x > 0, -weight, tl.where(x < 0, weight, 0.0))
        else:
            u = -weight * x
        v = u
        by_move = u
        by_re = u
        by_im = u
    if OF_QUERIES:
        return by_re, by_im, -u * c_re, -v * c_im, by_move * b
    by_factor = by_move * a
    return -u * w_re, -v * w_im, by_factor, by_factor, by_factor


@triton.jit
def single(values):
    """Five numbers as float32."""
    a, b, c, d, e = values
    return a.to(tl.float32), b.to(tl.float32), c.to(tl.float32), d.to(tl.float32), e.to(tl.float32)


@triton.jit
def add_plane(p_plane, total, mask):
    """Add to a plane of a gradient."""
    tl.store(p_plane, tl.load(p_plane, mask=mask, other=0.0) + total, mask=mask)


@triton.jit(
    do_not_specialize=[
        "split_stride",
        "factor_split_stride",
        "num_rows",
        "num_others",
        "others_per_split",
        "first_feature",
        "last_feature",
    ]
)
def pull_filtered(
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
    p_coefficient,  # [tiles of rows][num_others][WEIGHTS]
    p_grad,  # [splits][num_rows, planes * features] float32, added to; None: not needed
    split_stride,
    g_row_stride,
    g_plane_stride,
    g_step,
    p_grad_factor,  # [splits][num_rows, features], as p_grad
    factor_split_stride,
    h_row_stride,
    num_rows,
    num_others,
    others_per_split,
    first_feature,
    last_feature,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    OF_QUERIES: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
    WEIGHTS: tl.constexpr,
):
    """Add the pull of one split of the other side to a tile of gradients."""
    first_row = tl.program_id(0) * ROWS
    i_split = tl.program_id(2)
    row = first_row + tl.arange(0, ROWS)
    feature = first_feature + tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    m_feature = (feature < last_feature)[None, :]
    k = feature.to(tl.int64)[None, :]
    safe_row = tl.minimum(row, num_rows - 1).to(tl.int64)[:, None]
    p_query += k * q_step
    p_table += k * c_step
    p_f = p_table
    if HAS_FACTOR:
        p_f = p_factor + k * f_step
    first = i_split * others_per_split
    last = tl.minimum(first + others_per_split, num_others)
    m_row = m_feature & (row >= 0)[:, None]
    if OF_QUERIES:
        p_query += safe_row * q_row_stride
        q_re, q_im, w_re, w_im, a = single(
            load_query(p_query, q_plane_stride, m_row, PLANES, HAS_FACTOR)
        )
        p_table += first.to(tl.int64) * c_row_stride
        if HAS_FACTOR:
            p_f += first.to(tl.int64) * f_row_stride
    else:
        p_table += safe_row * c_row_stride
        if HAS_FACTOR:
            p_f += safe_row * f_row_stride
        c_re, c_im, b = load_candidate(p_table, c_plane_stride, p_f, m_row, PLANES, HAS_FACTOR)
        c_re = c_re.to(tl.float32)
        c_im = c_im.to(tl.float32)
        b = b.to(tl.float32)
        p_query += first.to(tl.int64) * q_row_stride
    p_coefficient += ((first_row // WEIGHTS).to(tl.int64) * num_others + first) * WEIGHTS
    p_coefficient += first_row % WEIGHTS + tl.arange(0, ROWS)
    total_0 = tl.zeros((ROWS, FEATURES), tl.float32)
    total_1 = tl.zeros((ROWS, FEATURES), tl.float32)
    total_2 = tl.zeros((ROWS, FEATURES), tl.float32)
    total_3 = tl.zeros((ROWS, FEATURES), tl.float32)
    total_4 = tl.zeros((ROWS, FEATURES), tl.float32)
    other = first
    while other < last:
        stop = tl.minimum(other + SUM_BLOCK, last)
        sum_0 = tl.zeros((ROWS, FEATURES), tl.float32)
        sum_1 = tl.zeros((ROWS, FEATURES), tl.float32)
        sum_2 = tl.zeros((ROWS, FEATURES), tl.float32)
        sum_3 = tl.zeros((ROWS, FEATURES), tl.float32)
        sum_4 = tl.zeros((ROWS, FEATURES), tl.float32)
        for _ in range(other, stop):
            weight = tl.load(p_coefficient)[:, None]
            if OF_QUERIES:
                c_re, c_im, b = load_candidate(
                    p_table, c_plane_stride, p_f, m_feature, PLANES, HAS_FACTOR
                )
                c_re = c_re.to(tl.float32)
                c_im = c_im.to(tl.float32)
                b = b.to(tl.float32)
                p_table += c_row_stride
                if HAS_FACTOR:
                    p_f += f_row_stride
            else:
                q_re, q_im, w_re, w_im, a = single(
                    load_query(p_query, q_plane_stride, m_feature, PLANES, HAS_FACTOR)
                )
                p_query += q_row_stride
            s_0, s_1, s_2, s_3, s_4 = filtered_slopes(
                weight,
                q_re,
                q_im,
                w_re,
                w_im,
                a,
                c_re,
                c_im,
                b,
                SCORE,
                HAS_FACTOR,
                OF_QUERIES,
            )
            sum_0 += s_0
            sum_1 += s_1
            sum_2 += s_2
            sum_3 += s_3
            sum_4 += s_4
            p_coefficient += WEIGHTS
        total_0 += sum_0
        total_1 += sum_1
        total_2 += sum_2
        total_3 += sum_3
        total_4 += sum_4
        other = stop
    mask = m_feature & (row < num_rows)[:, None]
    row = row.to(tl.int64)[:, None]
    if p_grad is not None:
        p_grad += i_split.to(tl.int64) * split_stride + row * g_row_stride + k * g_step
        add_plane(p_grad, total_0, mask)
        if PLANES == 2:
            add_plane(p_grad + g_plane_stride, total_1, mask)
        if OF_QUERIES:
            add_plane(p_grad + PLANES * g_plane_stride, total_2, mask)
            if PLANES == 2:
                add_plane(p_grad + 3 * g_plane_stride, total_3, mask)
            if HAS_FACTOR:
                add_plane(p_grad + 2 * PLANES * g_plane_stride, total_4, mask)
    if p_grad_factor is not None:
        p_grad_factor += i_split.to(tl.int64) * factor_split_stride + row * h_row_stride
        add_plane(p_grad_factor + k, total_2, mask)


@triton.jit
def store_list(p_grad, p_extra, target, row_stride, extra_stride, o_column, total, mask):
    """Store a plane of a row, or of an extra row where the list has several pieces."""
    if target >= 0:
        value = narrow(total, p_grad.dtype.element_ty)
        tl.store(p_grad + target * row_stride + o_column, value, mask=mask)
    else:
        tl.store(p_extra + (-1 - target) * extra_stride + o_column, total, mask=mask)


@triton.jit(do_not_specialize=["first_feature", "last_feature"])
def pull_filtered_lists(
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
    p_order,  # [places] pair of each place of the lists, read if HAS_ORDER; else its own number
    p_others,  # [places] row of the other side
    p_weight,  # [pairs]
    p_starts,  # [pieces + 1] first place of each piece
    p_owners,  # [pieces] the row that a piece's pairs share
    p_target,  # [pieces] row of p_grad, or -1 - row of p_extra
    p_grad,  # contiguous; None: not needed
    p_extra,  # float32
    g_row_stride,
    g_plane_stride,
    p_grad_factor,  # as p_grad
    p_extra_factor,
    h_row_stride,
    first_feature,
    last_feature,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    OF_QUERIES: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    PAIRS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """The pull of the pairs of one piece on the row they share."""
    piece = tl.program_id(0).to(tl.int64)
    feature = first_feature + tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    m_feature = feature < last_feature
    mask = m_feature[None, :]
    k = feature.to(tl.int64)[None, :]
    start = tl.load(p_starts + piece)
    count = (tl.load(p_starts + piece + 1) - start).to(tl.int32)
    p_others += start
    p_query += k * q_step
    p_table += k * c_step
    p_f = p_table
    if HAS_FACTOR:
        p_f = p_factor + k * f_step
    owner = tl.load(p_owners + piece)
    if OF_QUERIES:
        p_query += owner * q_row_stride
        q_re, q_im, w_re, w_im, a = single(
            load_query(p_query, q_plane_stride, mask, PLANES, HAS_FACTOR)
        )
    else:
        p_table += owner * c_row_stride
        if HAS_FACTOR:
            p_f += owner * f_row_stride
        c_re, c_im, b = load_candidate(p_table, c_plane_stride, p_f, mask, PLANES, HAS_FACTOR)
        c_re = c_re.to(tl.float32)
        c_im = c_im.to(tl.float32)
        b = b.to(tl.float32)
    total_0 = tl.zeros((PAIRS, FEATURES), tl.float32)
    total_1 = tl.zeros((PAIRS, FEATURES), tl.float32)
    total_2 = tl.zeros((PAIRS, FEATURES), tl.float32)
    total_3 = tl.zeros((PAIRS, FEATURES), tl.float32)
    total_4 = tl.zeros((PAIRS, FEATURES), tl.float32)
    o_piece = tl.arange(0, PAIRS)
    first = 0
    while first < count:
        stop = tl.minimum(first + SUM_BLOCK * PAIRS, count)
        sum_0 = tl.zeros((PAIRS, FEATURES), tl.float32)
        sum_1 = tl.zeros((PAIRS, FEATURES), tl.float32)
        sum_2 = tl.zeros((PAIRS, FEATURES), tl.float32)
        sum_3 = tl.zeros((PAIRS, FEATURES), tl.float32)
        sum_4 = tl.zeros((PAIRS, FEATURES), tl.float32)
        for place in range(first, stop, PAIRS):
            m_pair = place + o_piece < count
            other = tl.load(p_others + place + o_piece, mask=m_pair, other=0)[:, None]
            if HAS_ORDER:
                pair = tl.load(p_order + start + place + o_piece, mask=m_pair, other=0)
                p_w = p_weight + pair
            else:
                p_w = p_weight + start + place + o_piece
            weight = tl.load(p_w, mask=m_pair, other=0.0)[:, None]
            if OF_QUERIES:
                p_o = p_f
                if HAS_FACTOR:
                    p_o = p_f + other * f_row_stride
                c_re, c_im, b = load_candidate(
                    p_table + other * c_row_stride,
                    c_plane_stride,
                    p_o,
                    mask,
                    PLANES,
                    HAS_FACTOR,
                )
                c_re = c_re.to(tl.float32)
                c_im = c_im.to(tl.float32)
                b = b.to(tl.float32)
            else:
                q_re, q_im, w_re, w_im, a = single(
                    load_query(
                        p_query + other * q_row_stride, q_plane_stride, mask, PLANES, HAS_FACTOR
                    )
                )
            s_0, s_1, s_2, s_3, s_4 = filtered_slopes(
                weight,
                q_re,
                q_im,
                w_re,
                w_im,
                a,
                c_re,
                c_im,
                b,
                SCORE,
                HAS_FACTOR,
                OF_QUERIES,
            )
            sum_0 += s_0
            sum_1 += s_1
            sum_2 += s_2
            sum_3 += s_3
            sum_4 += s_4
        total_0 += sum_0
        total_1 += sum_1
        total_2 += sum_2
        total_3 += sum_3
        total_4 += sum_4
        first = stop
    target = tl.load(p_target + piece)
    if p_grad is not None:
        s = g_row_stride
        o = g_plane_stride
        store_list(p_grad, p_extra, target, s, s, feature, tl.sum(total_0, 0), m_feature)
        if PLANES == 2:
            column = o + feature
            store_list(p_grad, p_extra, target, s, s, column, tl.sum(total_1, 0), m_feature)
        if OF_QUERIES:
            column = PLANES * o + feature
            store_list(p_grad, p_extra, target, s, s, column, tl.sum(total_2, 0), m_feature)
            if PLANES == 2:
                column = 3 * o + feature
                store_list(p_grad, p_extra, target, s, s, column, tl.sum(total_3, 0), m_feature)
            if HAS_FACTOR:
                column = 2 * PLANES * o + feature
                store_list(p_grad, p_extra, target, s, s, column, tl.sum(total_4, 0), m_feature)
    if p_grad_factor is not None:
        s = h_row_stride
        total = tl.sum(total_2, 0)
        store_list(p_grad_factor, p_extra_factor, target, s, s, feature, total, m_feature)

"""Pairs that are named one by one: rows are gathered inside the kernel, no ``[B, K, D]`` exists.

Cost model: lanes are features, rows are read in place: limited by the gathered rows, 8 bytes an
element of rotate forward and again for each gradient, beside about 7 (forward) and 11 (backward)
issue slots. A sum is reduced over lanes once a pair and crop, not once an element.

Backward, a gradient row is the pull (pull.py) of a list of pairs: of a query, its own; of a table's
row, those whose id it is, in the order of the index. Lists are cut into pieces of bounded length,
so that one hot id is many programs; pieces of a row are added in order.
"""

import triton
import triton.language as tl

from .backward import add_pull
from .moves import add_stored
from .operands import widen
from .sweep import SUM_BLOCK
from .terms import DOT, RSCF_ROTATE, add_term, distance_of


@triton.jit
def narrow(values, DTYPE: tl.constexpr):
    """Float32 values as the type of a gradient, rounded to nearest."""
    if DTYPE.primitive_bitwidth < 32:
        return values.to(DTYPE, fp_downcast_rounding="rtne")
    return values.to(DTYPE)


@triton.jit(
    do_not_specialize=[
        "index_row_stride",
        "index_stride",
        "crop_stride",
        "row_stride",
        "num_candidates",
        "num_crops",
    ]
)
def gather_scores(
    p_query,
    q_row_stride,
    q_plane_stride,
    q_step,
    p_table,
    c_row_stride,
    c_plane_stride,
    c_step,
    p_index,  # [num_queries, num_candidates]
    index_row_stride,
    index_stride,
    p_crops,  # [num_crops][2] width, place in the output; widths do not fall
    p_factor,
    f_row_stride,
    f_step,
    p_bias,
    bias_stride,
    p_out,  # [num_crops, num_queries, num_candidates] of column stride 1
    crop_stride,
    row_stride,
    num_candidates,
    num_crops,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PAIRS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Scores of a query with ``PAIRS`` of its candidates."""
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    m_pair = place < num_candidates
    p_ids = p_index + query * index_row_stride
    candidate = tl.load(p_ids + tl.minimum(place, num_candidates - 1) * index_stride)
    p_q = p_query + query * q_row_stride
    p_c = (p_table + candidate * c_row_stride)[:, None]
    bias = tl.zeros((PAIRS,), tl.float32)
    if HAS_BIAS:
        bias = widen(tl.load(p_bias + candidate * bias_stride)).to(tl.float32)
    total = tl.zeros((PAIRS, FEATURES), tl.float32)
    low = 0
    for i_crop in range(num_crops):
        width = tl.load(p_crops + 2 * i_crop).to(tl.int32)
        for feature in range(low // FEATURES * FEATURES, width, FEATURES):
            k = feature + tl.arange(0, FEATURES)
            m_k = (k >= low) & (k < width)
            mask = m_k[None, :]
            o_q = k.to(tl.int64) * q_step
            o_c = (k.to(tl.int64) * c_step)[None, :]
            if SCORE >= RSCF_ROTATE:
                p_f = p_c
                if HAS_FACTOR:
                    p_f = (p_factor + candidate * f_row_stride)[:, None]
                    p_f += (k.to(tl.int64) * f_step)[None, :]
                total = add_stored(
                    total,
                    (p_q + o_q)[None, :],
                    q_plane_stride,
                    mask,
                    p_c + o_c,
                    c_plane_stride,
                    p_f,
                    mask,
                    SCORE,
                    PLANES,
                    HAS_FACTOR,
                )
            else:
                q_re = widen(tl.load(p_q + o_q, mask=m_k, other=0.0)).to(tl.float32)[None, :]
                c_re = widen(tl.load(p_c + o_c, mask=mask, other=0.0)).to(tl.float32)
                q_im = q_re
                c_im = c_re
                if PLANES == 2:
                    q_im = tl.load(p_q + q_plane_stride + o_q, mask=m_k, other=0.0)
                    q_im = widen(q_im).to(tl.float32)[None, :]
                    c_im = tl.load(p_c + c_plane_stride + o_c, mask=mask, other=0.0)
                    c_im = widen(c_im).to(tl.float32)
                total = add_term(total, q_re, q_im, c_re, c_im, SCORE)
        low = tl.maximum(low, width)
        score = distance_of(tl.sum(total, 1), SCORE)
        if SCORE != DOT:
            score = -score
        score += bias
        p_row = p_out + tl.load(p_crops + 2 * i_crop + 1) * crop_stride + query * row_stride
        tl.store(p_row + place, score, mask=m_pair)


@triton.jit(do_not_specialize=["first_feature", "last_feature"])
def pull_lists(
    p_row,
    r_row_stride,
    r_plane_stride,
    r_step,
    p_other,
    c_row_stride,
    c_plane_stride,
    c_step,
    p_order,  # [places] pair of each place of the lists, read if HAS_ORDER; else its own number
    p_others,  # [places] row of the other side
    p_weight,  # [pairs]
    p_starts,  # [pieces + 1] first place of each piece
    p_owners,  # [pieces] the row that a piece's pairs share
    p_target,  # [pieces] row of p_grad, or -1 - row of p_extra
    p_grad,
    g_row_stride,
    g_plane_stride,
    g_step,
    p_extra,  # float32
    extra_stride,
    first_feature,
    last_feature,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    PAIRS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Minus the pull of the pairs of one piece on the row they share."""
    piece = tl.program_id(0).to(tl.int64)
    feature = first_feature + tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    m_feature = feature < last_feature
    k = tl.minimum(feature, last_feature - 1).to(tl.int64)
    start = tl.load(p_starts + piece)
    count = (tl.load(p_starts + piece + 1) - start).to(tl.int32)
    p_others += start
    p_row += tl.load(p_owners + piece) * r_row_stride + k * r_step
    r_re = widen(tl.load(p_row)).to(tl.float32)[None, :]
    r_im = r_re
    if PLANES == 2:
        r_im = widen(tl.load(p_row + r_plane_stride)).to(tl.float32)[None, :]
    total_re = tl.zeros((PAIRS, FEATURES), tl.float32)
    total_im = tl.zeros((PAIRS, FEATURES), tl.float32)
    o_piece = tl.arange(0, PAIRS)
    first = 0
    while first < count:
        stop = tl.minimum(first + SUM_BLOCK * PAIRS, count)
        re = tl.zeros((PAIRS, FEATURES), tl.float32)
        im = tl.zeros((PAIRS, FEATURES), tl.float32)
        for place in range(first, stop, PAIRS):
            m_pair = place + o_piece < count
            other = tl.load(p_others + place + o_piece, mask=m_pair, other=0)
            if HAS_ORDER:
                pair = tl.load(p_order + start + place + o_piece, mask=m_pair, other=0)
                p_w = p_weight + pair
            else:
                p_w = p_weight + start + place + o_piece
            weight = tl.load(p_w, mask=m_pair, other=0.0)[:, None]
            p_o = p_other + (other * c_row_stride)[:, None]
            p_o += (k * c_step)[None, :]
            c_re = widen(tl.load(p_o)).to(tl.float32)
            c_im = c_re
            if PLANES == 2:
                c_im = widen(tl.load(p_o + c_plane_stride)).to(tl.float32)
            x = r_re - c_re
            if SCORE == DOT:
                x = -c_re
            re, im = add_pull(re, im, weight, x, r_im - c_im, SCORE)
        total_re += re
        total_im += im
        first = stop
    sum_re = -tl.sum(total_re, 0)
    sum_im = -tl.sum(total_im, 0)
    target = tl.load(p_target + piece)
    if target >= 0:
        p_sum = p_grad + target * g_row_stride + k * g_step
        tl.store(p_sum, narrow(sum_re, p_grad.dtype.element_ty), mask=m_feature)
        if PLANES == 2:
            p_sum += g_plane_stride
            tl.store(p_sum, narrow(sum_im, p_grad.dtype.element_ty), mask=m_feature)
    else:
        p_piece = p_extra + (-1 - target) * extra_stride + k * g_step
        tl.store(p_piece, sum_re, mask=m_feature)
        if PLANES == 2:
            tl.store(p_piece + g_plane_stride, sum_im, mask=m_feature)


@triton.jit(do_not_specialize=["width"])
def add_pieces(
    p_grad,  # [lists, width]
    grad_stride,
    p_extra,  # [extras, width]
    p_first,  # [lists + 1] first extra row of each list
    width,
    COLUMNS: tl.constexpr,
):
    """The gradient of a row whose list was cut: its pieces, added in order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < width
    first = tl.load(p_first + row)
    last = tl.load(p_first + row + 1)
    if first < last:
        total = tl.zeros((COLUMNS,), tl.float32)
        for piece in range(first, last):
            total += tl.load(p_extra + piece * grad_stride + column, mask=mask, other=0.0)
        tl.store(p_grad + row * grad_stride + column, total, mask=mask)

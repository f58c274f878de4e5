"""The sweep that keeps its scores: tiles of packed queries against panels, every crop in one pass.

Cost model: the loop of sweep.py, 7.1 issue slots an element for rotate on sm_90 with the folds;
a store of 4 bytes a pair and crop beside that.

A crop's total is read off where its last feature has been added, between two folds if need be, so
it is the number that the cropped table gives, bit for bit.
"""

import triton
import triton.language as tl

from .moves import PLAIN, STILL, add_packed
from .operands import widen
from .sweep import SUM_BLOCK
from .terms import DOT, RSCF_ROTATE, add_term, distance_of, query_planes


@triton.jit
def add_features(
    part,
    p_query,
    p_panel,
    first,
    stop,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_FACTOR: tl.constexpr = False,
):
    """``part [M, N]`` plus the terms of features ``first .. stop - 1``, as they are stored."""
    if SCORE >= RSCF_ROTATE:
        MOVE: tl.constexpr = PLAIN if HAS_FACTOR else STILL
        return add_packed(
            part, p_query, p_panel, first, stop, SCORE, PLANES, MOVE, BLOCK_M, BLOCK_N
        )
    o_query = tl.arange(0, BLOCK_M)
    o_panel = tl.arange(0, BLOCK_N)
    for k in range(first, stop):
        row = k * PLANES
        q_re = tl.load(p_query + row * BLOCK_M + o_query)[:, None]
        c_re = tl.load(p_panel + row * BLOCK_N + o_panel)[None, :]
        q_im = q_re
        c_im = c_re
        if PLANES == 2:
            q_im = tl.load(p_query + (row + 1) * BLOCK_M + o_query)[:, None]
            c_im = tl.load(p_panel + (row + 1) * BLOCK_N + o_panel)[None, :]
        part = add_term(part, q_re, q_im, c_re, c_im, SCORE)
    return part


@triton.jit
def store_scores(
    total,
    p_out,
    row_stride,
    num_queries,
    num_candidates,
    p_bias,
    bias_stride,
    SCORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Store the scores of a tile's sums; the bias comes last."""
    query = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    candidate = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_candidate = candidate < num_candidates
    score = distance_of(total, SCORE)
    if SCORE != DOT:
        score = -score
    if HAS_BIAS:
        p_bias += candidate.to(tl.int64) * bias_stride
        score += widen(tl.load(p_bias, mask=m_candidate, other=0.0)).to(tl.float32)[None, :]
    p_tile = p_out + (query.to(tl.int64) * row_stride)[:, None] + candidate[None, :]
    tl.store(p_tile, score, mask=(query < num_queries)[:, None] & m_candidate[None, :])


@triton.jit(
    do_not_specialize=[
        "crop_stride",
        "row_stride",
        "num_queries",
        "num_candidates",
        "num_features",
        "num_crops",
    ]
)
def score_tiles(
    p_query,  # [tiles][num_features][PLANES][BLOCK_M]
    p_panel,  # [panels][num_features][PLANES][BLOCK_N]
    p_crops,  # [num_crops][2] width, place in the output; widths do not fall; read if HAS_CROPS
    p_bias,
    bias_stride,
    p_out,  # [num_crops, num_queries, num_candidates] of column stride 1
    crop_stride,
    row_stride,
    num_queries,
    num_candidates,
    num_features,
    num_crops,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CROPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Scores of a tile."""
    wide = num_features.to(tl.int64)
    # Queries first: a panel is reused while it is hot.
    p_query += tl.program_id(0) * (wide * (query_planes(SCORE, PLANES, HAS_FACTOR) * BLOCK_M))
    p_panel += tl.program_id(1) * (wide * ((PLANES + HAS_FACTOR) * BLOCK_N))
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if HAS_CROPS:
        feature = 0
        for i_crop in range(num_crops):
            width = tl.load(p_crops + 2 * i_crop).to(tl.int32)
            while feature < width:
                stop = tl.minimum((feature // SUM_BLOCK + 1) * SUM_BLOCK, width)
                part = add_features(
                    part,
                    p_query,
                    p_panel,
                    feature,
                    stop,
                    SCORE,
                    PLANES,
                    BLOCK_M,
                    BLOCK_N,
                    HAS_FACTOR,
                )
                feature = stop
                if feature % SUM_BLOCK == 0:
                    total += part
                    part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            store_scores(
                total + part,
                p_out + tl.load(p_crops + 2 * i_crop + 1) * crop_stride,
                row_stride,
                num_queries,
                num_candidates,
                p_bias,
                bias_stride,
                SCORE,
                HAS_BIAS,
                BLOCK_M,
                BLOCK_N,
            )
    else:
        for feature in range(0, num_features, SUM_BLOCK):
            stop = tl.minimum(feature + SUM_BLOCK, num_features)
            total += add_features(
                part, p_query, p_panel, feature, stop, SCORE, PLANES, BLOCK_M, BLOCK_N, HAS_FACTOR
            )
        store_scores(
            total,
            p_out,
            row_stride,
            num_queries,
            num_candidates,
            p_bias,
            bias_stride,
            SCORE,
            HAS_BIAS,
            BLOCK_M,
            BLOCK_N,
        )

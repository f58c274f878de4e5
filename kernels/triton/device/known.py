"""Known answers: the pairs of a CSR index, each once, swept in float32 and classified.

Filtered counts are raw counts minus these, so no mask over candidates exists.

Cost model: lanes are features, rows are read in place: 4 bytes of both rows a real, coalesced, and
6 issue slots an element for rotate. Limited by the gathered rows: FB15k-237's test set has 9.7
million known answers, 1.6 % of its pairs. Two binary searches a pair beside that.
"""

import triton
import triton.language as tl

from .moves import add_stored
from .operands import find_last_not_above, widen
from .pack import largest_of, norm_above
from .sweep import classify
from .terms import DOT, RSCF_ROTATE, add_term, distance_of


@triton.jit(
    do_not_specialize=[
        "start",
        "stop",
        "num_queries",
        "num_subset",
        "search_steps",
        "num_features",
    ]
)
def count_known(
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
    p_indptr,  # [num_queries + 1]
    p_indices,  # [nnz]
    p_targets,  # [num_queries]
    p_subset,  # [num_subset] sorted, read if HAS_SUBSET
    p_threshold,  # [3][num_queries] minus the target's score, base, slope
    p_greater,  # [num_queries] int64
    p_band,  # [stop - start] query << 32 | id
    p_cursor,  # [1]
    p_unsorted,  # [1] set to 1 if a row's ids do not rise
    start,
    stop,
    num_queries,
    num_subset,
    search_steps,
    num_features,
    rel,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SUBSET: tl.constexpr,
    PAIRS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Count what beats its target for certain among entries ``start .. stop - 1``."""
    entry = start + tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    m_entry = entry < stop
    entry = tl.minimum(entry, stop - 1)
    query = find_last_not_above(p_indptr, num_queries + 1, entry, search_steps)
    candidate = tl.load(p_indices + entry)
    has_previous = entry > tl.load(p_indptr + query)
    previous = tl.load(p_indices + entry - 1, mask=has_previous, other=-1)
    if tl.max((m_entry & (previous > candidate)).to(tl.int32), 0) > 0:
        tl.store(p_unsorted, 1)
    keep = m_entry & (previous != candidate) & (candidate != tl.load(p_targets + query))
    if HAS_SUBSET:
        found = find_last_not_above(p_subset, num_subset, candidate, search_steps)
        nearest = tl.load(p_subset + found, mask=found >= 0, other=-1)
        keep &= nearest == candidate

    total = tl.zeros((PAIRS, FEATURES), tl.float32)
    squares = tl.zeros((PAIRS,), tl.float64)
    p_q = (p_query + query * q_row_stride)[:, None]
    p_c = (p_table + candidate * c_row_stride)[:, None]
    for feature in range(0, num_features, FEATURES):
        k = feature + tl.arange(0, FEATURES)
        mask = keep[:, None] & (k < num_features)[None, :]
        o_q = (k.to(tl.int64) * q_step)[None, :]
        o_c = (k.to(tl.int64) * c_step)[None, :]
        if SCORE >= RSCF_ROTATE:
            p_f = p_c
            if HAS_FACTOR:
                p_f = (p_factor + candidate * f_row_stride)[:, None]
                p_f += (k.to(tl.int64) * f_step)[None, :]
                b = widen(tl.load(p_f, mask=mask, other=1.0)).to(tl.float64)
                squares = tl.maximum(squares, largest_of(tl.abs(b - 1.0)))
            total = add_stored(
                total,
                p_q + o_q,
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
            q_re = widen(tl.load(p_q + o_q, mask=mask, other=0.0))
            c_re = widen(tl.load(p_c + o_c, mask=mask, other=0.0))
            q_im = q_re
            c_im = c_re
            if PLANES == 2:
                q_im = widen(tl.load(p_q + q_plane_stride + o_q, mask=mask, other=0.0))
                c_im = widen(tl.load(p_c + c_plane_stride + o_c, mask=mask, other=0.0))
            total = add_term(
                total,
                q_re.to(tl.float32),
                q_im.to(tl.float32),
                c_re.to(tl.float32),
                c_im.to(tl.float32),
                SCORE,
            )
            if NORM > 0:
                re = tl.abs(c_re.to(tl.float64))
                im = tl.abs(c_im.to(tl.float64))
                squares += tl.sum(re if NORM == 1 else re * re, 1)
                if PLANES == 2:
                    squares += tl.sum(im if NORM == 1 else im * im, 1)
    distance = distance_of(tl.sum(total, 1), SCORE)
    if SCORE == DOT:
        distance = -distance

    tau = tl.load(p_threshold + query)
    absolute = tl.load(p_threshold + num_queries + query)
    if NORM > 0:
        norm = norm_above(squares, NORM)
        if HAS_FACTOR:  # rows as they are stored: the angle is a b, not a (b - 1)
            norm += 1.0
        absolute += tl.load(p_threshold + 2 * num_queries + query) * norm
    ranked = tau == tau
    if HAS_BIAS:
        tau += widen(tl.load(p_bias + candidate * bias_stride)).to(tl.float32)
    beats, decided = classify(distance, tau, rel, absolute)
    one = tl.full((PAIRS,), 1, tl.int64)
    counts = keep & (beats | (ranked == 0))  # a target without a score loses to every candidate
    tl.atomic_add(p_greater + query, one, mask=counts, sem="relaxed")
    is_open = keep & ranked & (decided == 0)
    flag = is_open.to(tl.int32)
    num_open = tl.sum(flag, 0)
    if num_open > 0:
        first = tl.atomic_add(p_cursor, num_open.to(tl.int64), sem="relaxed")
        tl.store(
            p_band + first + tl.cumsum(flag, 0) - flag,
            (query << 32) | candidate,
            mask=is_open,
        )

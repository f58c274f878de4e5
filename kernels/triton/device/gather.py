"""Pairs that are named one by one: rows are gathered inside the kernel, no ``[B, K, D]`` exists.

Cost model: lanes are features, rows are read in place: limited by the gathered rows, 8 bytes per
element of rotate beside about 7 issue slots. A sum is reduced over lanes once per pair and crop,
not once per element.
"""

import triton
import triton.language as tl

from .arguments import Views, load_as
from .terms import Query, add_term, load_candidate, load_query, score_of, stored_move


@triton.jit
def as_row(q):
    """Return a query's features ``[F]`` as ``[1, F]``."""
    return Query(q.re[None, :], q.im[None, :], q.w_re[None, :], q.w_im[None, :], q.a[None, :])


@triton.jit(do_not_specialize=["num_candidates", "num_crops"])
def gather_scores(
    views,
    index,  # Rows of ids [num_queries, num_candidates]
    out,  # with crops
    num_candidates,
    num_crops,  # not in ``out``: as a constant it costs the loop 0.1 slots
    FORM: tl.constexpr,
    TILE: tl.constexpr,  # pairs, features
):
    """Store the scores of a query with some of its candidates."""
    PAIRS: tl.constexpr = TILE.rows
    FEATURES: tl.constexpr = TILE.lanes
    # Made anew, since Triton 3.6 loses the members of nested tuples that are arguments in a loop.
    views = Views(views.queries, views.table, views.factor, views.bias)
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    p_ids = index.ptr + query * index.row
    candidate = tl.load(p_ids + tl.minimum(place, num_candidates - 1) * index.step)
    p_q = views.queries.ptr + query * views.queries.row
    p_c = (views.table.ptr + candidate * views.table.row)[:, None]
    p_f = p_c
    if FORM.has_factor:
        p_f = (views.factor.ptr + candidate * views.factor.row)[:, None]
    bias = tl.zeros((PAIRS,), tl.float32)
    if FORM.has_bias:
        bias = load_as(views.bias.ptr + candidate * views.bias.step, None, tl.float32)
    total = tl.zeros(TILE, tl.float32)
    low = 0
    for i_crop in range(num_crops):
        width = tl.load(out.crops + 2 * i_crop).to(tl.int32)
        for feature in range(low // FEATURES * FEATURES, width, FEATURES):
            k = feature + tl.arange(0, FEATURES)
            mask = (k >= low) & (k < width)
            k = k.to(tl.int64)
            q = load_query(p_q, views.queries, k, mask, FORM, tl.float32)
            k = k[None, :]
            c = load_candidate(p_c, p_f, views, k, mask[None, :], FORM, tl.float32)
            total = add_term(total, as_row(q), c, FORM, stored_move(FORM))
        low = tl.maximum(low, width)
        score = score_of(tl.sum(total, 1), FORM) + bias
        p_row = out.ptr + tl.load(out.crops + 2 * i_crop + 1) + query * out.row
        tl.store(p_row + place, score, mask=place < num_candidates)

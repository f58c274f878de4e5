"""Pairs that are named one by one: rows are gathered inside the kernel, no ``[B, K, D]`` exists.

Cost model: lanes are features, rows are read in place: limited by the gathered rows, 8 bytes per
element of rotate beside about 7 issue slots. A sum is reduced over lanes once per pair and crop,
not once per element.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Views, load_as
from .terms import (
    load_candidate,
    load_query,
    pointers_of,
    score_of,
    stored_move,
    term_of,
)


class ListedRows(NamedTuple):
    """Targets before the ids, and memory for all of them, clamped to rows of the table."""

    targets: Any  # [B]
    step: int
    index: Any  # [B, num_candidates]
    num_rows: int
    status: Any  # [1] set to 1 if an id was clamped


@triton.jit(do_not_specialize=["num_candidates", "num_features", "num_crops"])
def gather_scores(
    views,
    index,  # Rows of ids [num_queries, num_candidates]
    listed,  # ListedRows, then rows of ids have one less; or None
    out,
    num_candidates,
    num_features,  # if there are no crops
    num_crops,  # not in ``out``: as a constant it costs the loop 0.1 slots
    FORM: tl.constexpr,
    TILE: tl.constexpr,  # pairs, features
):
    """Store the scores of a query with some of its candidates."""
    PAIRS: tl.constexpr = TILE.rows
    FEATURES: tl.constexpr = TILE.lanes
    views = Views(views.queries, views.table, views.factor, views.bias)
    per_query = tl.cdiv(num_candidates, PAIRS)
    query = (tl.program_id(0) // per_query).to(tl.int64)
    place = (tl.program_id(0) % per_query).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    p_ids = index.ptr + query * index.row
    if listed is not None:
        o = tl.minimum(tl.maximum(place - 1, 0), num_candidates - 2)
        target = tl.load(listed.targets + query * listed.step)
        id = tl.where(place == 0, target, tl.load(p_ids + o * index.step))
        candidate = tl.minimum(tl.maximum(id, 0), listed.num_rows - 1)
        is_inside = place < num_candidates
        tl.store(listed.index + query * num_candidates + place, candidate, mask=is_inside)
        if tl.max((is_inside & (id != candidate)).to(tl.int32), 0) > 0:
            tl.store(listed.status, 1)
    else:
        candidate = tl.load(p_ids + tl.minimum(place, num_candidates - 1) * index.step)
    p_q, p_c, p_f = pointers_of(views, query, candidate[:, None], FORM)
    bias = tl.zeros((PAIRS,), tl.float32)
    if FORM.has_bias:
        bias = load_as(views.bias.ptr + candidate * views.bias.step, None, tl.float32)
    total = tl.zeros(TILE, tl.float32)
    low = 0
    for i_crop in range(num_crops):
        width = num_features
        p_row = out.ptr + query * out.row
        if out.crops is not None:
            width = tl.load(out.crops + 2 * i_crop).to(tl.int32)
            p_row += tl.load(out.crops + 2 * i_crop + 1)
        for feature in range(low // FEATURES * FEATURES, width, FEATURES):
            k = feature + tl.arange(0, FEATURES)[None, :]
            mask = (k >= low) & (k < width)
            k = k.to(tl.int64)
            q = load_query(p_q, views.queries, k, mask, FORM, tl.float32)
            c = load_candidate(p_c, p_f, views, k, mask, FORM, tl.float32)
            total += term_of(q, c, FORM, stored_move(FORM))
        low = tl.maximum(low, width)
        score = score_of(tl.sum(total, 1), FORM) + bias
        tl.store(p_row + place, score, mask=place < num_candidates)

"""Sweep that stores scores: tiles of packed queries against panels, all crops in one pass.

Cost model: the loop of sweep.py, 6.6 issue slots per element for rotate on sm_90 with the folds,
and a store of 4 bytes per pair and crop.

A crop's total is read after the addition of the last feature, between two folds if need be. So the
total is that of the cropped table, bit for bit.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Vector, load_as
from .products import multiply
from .sweep import SUM_BLOCK, add_packed, flat, new_sums, tile_of
from .terms import score_of, stored_move


class ScorePanels(NamedTuple):
    """Packed queries and candidates, as in a sweep, and the biases of the candidates."""

    queries: Any
    panels: Any
    bias: Vector | None


@triton.jit
def sum_packed(p_queries, p_panels, num_features, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return the sums of a tile over all features, in the layout of ``sweep.new_sums``."""
    MOVE: tl.constexpr = stored_move(FORM)
    tile = tile_of(p_queries, p_panels, num_features, FORM, TILE)
    total = new_sums(TILE)
    part = new_sums(TILE)
    for feature in range(0, num_features, SUM_BLOCK):
        stop = tl.minimum(feature + SUM_BLOCK, num_features)
        total += add_packed(part, tile, feature, stop, FORM, MOVE, TILE)
    return total


@triton.jit
def store_scores(total, p_out, row_stride, shape, bias, FORM: tl.constexpr, TILE: tl.constexpr):
    """Store the scores of a tile's sums ``shape``; the bias comes last."""
    num_queries, num_candidates = shape
    query = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    candidate = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
    m_candidate = candidate < num_candidates
    score = score_of(total, FORM)
    if FORM.has_bias:
        p_bias = bias.ptr + candidate.to(tl.int64) * bias.step
        score += load_as(p_bias, m_candidate, tl.float32)[None, :]
    p_tile = p_out + (query.to(tl.int64) * row_stride)[:, None] + candidate[None, :]
    tl.store(p_tile, score, mask=(query < num_queries)[:, None] & m_candidate[None, :])


@triton.jit(do_not_specialize=["num_queries", "num_candidates", "num_features"])
def score_tiles(
    rows,  # Factors if there is a product, else ScorePanels
    out,
    num_queries,
    num_candidates,
    num_features,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Store the scores of a tile, of every crop; of all features if there are no crops."""
    MOVE: tl.constexpr = stored_move(FORM)
    shape = num_queries, num_candidates
    bias = rows.bias
    if PRODUCT is not None:
        total = multiply(rows, shape, num_features, TILE, PRODUCT)
        store_scores(total, out.ptr, out.row, shape, bias, FORM, TILE)
    elif out.crops is not None:
        tile = tile_of(rows.queries, rows.panels, num_features, FORM, TILE)
        total = new_sums(TILE)
        part = new_sums(TILE)
        feature = 0
        for i_crop in range(out.num_crops):
            width = tl.load(out.crops + 2 * i_crop).to(tl.int32)
            while feature < width:
                stop = tl.minimum((feature // SUM_BLOCK + 1) * SUM_BLOCK, width)
                part = add_packed(part, tile, feature, stop, FORM, MOVE, TILE)
                feature = stop
                if feature % SUM_BLOCK == 0:
                    total += part
                    part = new_sums(TILE)
            p_crop = out.ptr + tl.load(out.crops + 2 * i_crop + 1)
            store_scores(flat(total + part, TILE), p_crop, out.row, shape, bias, FORM, TILE)
    else:
        total = sum_packed(rows.queries, rows.panels, num_features, FORM, TILE)
        store_scores(flat(total, TILE), out.ptr, out.row, shape, bias, FORM, TILE)

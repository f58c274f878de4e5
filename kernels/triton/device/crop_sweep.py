"""Sweep of several crops at once: running sums over the widest, classified at the end of each.

Cost model: the loop of sweep.py (rotate, sm_90: 7.3 issue slots per element, 7.6 with the folds);
at the end of each crop a classification. So crops of 128, 256 and 512 features cost little more
than 512 alone. Sums are folded at the end of a crop, too; ``bounds.num_folds`` counts it.

A tile stops when every total is past the limits of all crops still to come. The host makes these
limits (nest.py), so that a fold loads two numbers per query.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .sweep import (
    SUM_BLOCK,
    SweepPanels,
    Tally,
    add_packed,
    all_past,
    append,
    count_certain,
    extremes,
    judge,
    new_sums,
    of_rows,
    of_squares,
    row_of_pair,
    tile_of,
)
from .terms import PRODUCT, stored_move

THRESHOLDS: tl.constexpr = tl.constexpr(6)  # numbers per query and crop


class CropWidths(NamedTuple):
    """Crops of a sweep, and distances between the data of neighbouring crops."""

    widths: Any  # [number], in rising order; the last is the number of features
    number: int
    lanes: int  # distance between the lanes of a crop and of the next
    cursor: int


@triton.jit
def limit_to_come(p_threshold, largest, FORM: tl.constexpr, TILE: tl.constexpr):
    """Return the limit of each query past which no later crop can count."""
    highest_bias, largest_norm = largest
    M: tl.constexpr = TILE.rows
    p_threshold += row_of_pair(TILE)
    rel = tl.load(p_threshold + 3 * M)
    limit = tl.load(p_threshold + 4 * M)
    limit += highest_bias + 2.0 * rel * tl.abs(highest_bias)
    limit += 2.0 * tl.load(p_threshold + 5 * M) * largest_norm
    return of_squares(limit, FORM)


@triton.jit(do_not_specialize=["num_candidates", "num_features"])
def sweep_crops(
    packed,  # thresholds [tiles][crops][6][M], see nest.py; rel is one of the six
    crops,
    tally,  # data of the first crop; greater [crops][positions], band [crops][capacity]
    num_candidates,
    num_features,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Count, for each crop, pairs that certainly beat the target; append open pairs to the band."""
    M: tl.constexpr = TILE.rows
    p_threshold = packed.thresholds + tl.program_id(0) * crops.number * (THRESHOLDS * M)
    p_lanes = packed.lanes + tl.program_id(1) * (2 * TILE.lanes)
    # The norms of the widest crop are the largest.
    largest = extremes(p_lanes, p_lanes + (crops.number - 1) * crops.lanes, FORM, TILE)
    tile = tile_of(packed.queries, packed.panels, num_features, FORM, TILE)
    total = new_sums(TILE)
    feature = 0  # past num_features: abandoned
    for i_crop in range(crops.number):
        width = tl.load(crops.widths + i_crop).to(tl.int32)
        while feature < width:
            stop = tl.minimum(feature + SUM_BLOCK, width)
            part = new_sums(TILE)
            total += add_packed(part, tile, feature, stop, FORM, stored_move(FORM), TILE)
            feature = stop
            if FORM.term != PRODUCT:
                limit = limit_to_come(p_threshold, largest, FORM, TILE)
                feature += all_past(total, limit) * (num_features + 1)
        if feature == width:
            rel = of_rows(tl.load(p_threshold + 3 * M + row_of_pair(TILE)))
            p_crop_lanes = p_lanes + i_crop * crops.lanes
            of_crop = SweepPanels(packed.queries, packed.panels, p_threshold, p_crop_lanes, rel)
            beats, loses, valid = judge(total, of_crop, num_candidates, FORM, TILE)
            p_greater = tally.greater + i_crop * (tl.num_programs(0) * M)
            count_certain(p_greater, beats, TILE)
            p_band = tally.band + i_crop * tally.capacity
            p_cursor = tally.cursor + i_crop * crops.cursor
            of_band = Tally(p_greater, p_band, p_cursor, tally.capacity, tally.first)
            append(of_band, valid & ((beats | loses) == 0), TILE)
        p_threshold += THRESHOLDS * M

"""Preparations of the host, without a device: plans, rooms and bounds; it waits for nothing."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgfast.kernels.scores import SCORES, get_score
from support.engines import examples

pytest.importorskip("triton")


@given(
    score=st.sampled_from(list(SCORES)),
    num_queries=st.integers(1, 10**6),
    num_candidates=st.integers(1, 10**8),
    dim=st.one_of(st.integers(1, 2000), st.integers(1, 10**6)),
    arch=st.sampled_from([0, 80, 90, 100]),
    is_moved=st.booleans(),
)
@examples(300)
def test_scratch_is_bounded(score, num_queries, num_candidates, dim, arch, is_moved) -> None:
    from kgfast.kernels.triton.host import configs

    facts = get_score(score)
    has_factor = facts.is_rscf and is_moved
    rows = "split" if configs.splits(facts, num_queries, arch) else "packed"
    rows = "in place" if num_queries <= configs.FEW_QUERIES else rows
    sizes, facts_of_rows = (num_queries, num_candidates), (has_factor, configs.PACKED_BYTES, rows)
    tile, height, width = configs.plan(facts, sizes, dim, arch, *facts_of_rows)
    assert height % tile.rows == 0
    assert width % tile.lanes == 0
    assert width // tile.lanes <= 65535
    assert tile.rows * tile.lanes <= configs.BAND_PAIRS
    if rows == "in place":
        return
    of_query, of_candidate = facts.query_planes(has_factor), facts.planes + has_factor
    packed = height * 4 * dim * of_query
    packed += width * (4 * dim * of_candidate + configs.LANE_BYTES)
    assert dim >= 10_000 or packed + 8 * configs.BAND_PAIRS <= 45 << 20
    if rows == "split":
        assert (tile.lanes, tile.num_warps) == (128, 8)
        assert not facts.monotone
    else:  # a warp's threads have their lanes beside each other, and bands of rows have all lanes
        assert tile.lanes == (32 if arch else 64) * tile.repeats
        assert tile.repeats < max(2, tile.num_warps)  # else their loads go through shared memory


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_known_by_its_facts(name) -> None:
    from kgfast.kernels.triton.host import bounds, views

    facts, same = get_score(name), dataclasses.replace(get_score(name), name="mine", code=9)
    assert views.term_of(facts) == views.term_of(same)
    expected, actual = (bounds.error_bound(score, 100, False, True) for score in (facts, same))
    assert actual == expected

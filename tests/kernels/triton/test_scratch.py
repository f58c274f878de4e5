"""Scratch of the Triton backend that is too small: many bands, chunks and passes; right counts."""

from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from kgfast.kernels.checks import Checks
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from support.engines import DEVICE, SPLIT, assert_same, engines, packed
from support.flat import reference, triton
from support.problems import RSCF_SCORES, SCORES, Problem, no_known

pytest.importorskip("triton")

CONFIGS, TOPK = "kgfast.kernels.triton.host.configs", "kgfast.kernels.triton.topk"
on_triton = engines("triton", quick=False)
EACH_SCORE = engines("triton", SPLIT, scores=[it for it in SCORES if it != "rotate_interleaved"])


def check(engine, problem: Problem, settings: dict[str, int], k: int = 5, *, few: bool = False):
    """Both consumers, with constants of the host changed; few queries packed unless ``few``."""
    queries, table, targets, *known, score = problem.args
    options = problem.kwargs
    expected = reference.rank_counts(*problem.args, **options)
    best = reference.topk(queries, table, k, *known, score, **options)
    with ExitStack() as stack:
        stack.enter_context(packed(not few))
        for name, value in settings.items():
            stack.enter_context(patch(name, value))
        counts = engine.rank_counts(queries, table, targets, *known, score, **options)
        found = engine.topk(queries, table, k, *known, score, **options)
    assert_same(counts, expected)
    assert_same(found, best, zeros_have_signs=False)


def rows(score: str, count: int, dim: int, seed: int, grid: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, dim * get_score(score).planes, generator=generator)
    return (values * grid).round() / grid if grid else values


def some(batch: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Targets and known answers, of which some occur twice."""
    generator = torch.Generator().manual_seed(0)
    targets, indices = (
        torch.randint(count, (it,), generator=generator) for it in (batch, 3 * batch)
    )
    return targets, 3 * torch.arange(batch + 1), indices


def alike(score: str, batch: int, count: int, dim: int, **options) -> Problem:
    """Rows that are all the same but one: every pair is open."""
    table = rows(score, 1, dim, 0).repeat(count, 1)
    table[7] *= 0.5
    return Problem((rows(score, batch, dim, 1), table, *some(batch, count), score), options)


def ties(score: str, batch: int, count: int, **options) -> Problem:
    table, queries = rows(score, count, 3, 0, 1.0), rows(score, batch, 3, 1, 1.0)
    return Problem((queries, table, *some(batch, count), score), options)


A_TILE = {f"{CONFIGS}.BAND_PAIRS": 4096, f"{TOPK}.BAND_PAIRS": 128, f"{TOPK}.SAMPLE": 6}


@EACH_SCORE
@pytest.mark.parametrize("dims", [None, [2, 4, 1]])
def test_bands_that_overflow(engine, score, dims):
    """Each crop is repaired, and its index sorted, after all of them have run."""
    check(engine, alike(score, 20, 260, 4, dims=dims), A_TILE)


@engines("triton", scores=RSCF_SCORES)
def test_bands_of_moved_queries_that_overflow(engine, score):
    facts = get_score(score)
    queries, table = rows("l1", 5, 6 * facts.query_planes(True), 0), rows(score, 1, 6, 1)
    factor = rows("l1", 1, 6, 2).repeat(220, 1)
    factor[7] += 0.5
    targets = torch.tensor([7, 0, 3, 7, 219])
    problem = Problem((queries, table.repeat(220, 1), targets, *no_known(5), score))
    problem.kwargs["factor"] = factor
    check(engine, problem, A_TILE | {f"{CONFIGS}.BAND_PAIRS": 1024})


@on_triton
@pytest.mark.parametrize("dims", [None, [2, 3]])
def test_bands_of_few_queries_that_overflow(engine, dims):
    settings = {f"{CONFIGS}.BAND_PAIRS": 128}
    check(engine, alike("l1", 3, 150, 3, dims=dims), settings, few=True)


@on_triton
@pytest.mark.parametrize(("batch", "band"), [(3, 64), (40, 4096)])
def test_more_results_than_a_band_holds(engine, batch, band):
    """In pieces, of which the first is swept again; queries beyond a pass of 32 come after."""
    queries, table, _, *known, score = ties("rotate", batch, 260).args
    thresholds = torch.full((batch,), -torch.inf)
    thresholds[:1] = -3.0
    options = {"candidate_ids": torch.arange(259, -1, -1)} if batch == 40 else {}
    expected = reference.above(queries, table, thresholds, *known, score, **options)
    assert len(expected.ids) > 2 * band
    with patch(f"{CONFIGS}.BAND_PAIRS", band), patch(f"{CONFIGS}.QUERIES_PER_PASS", 32):
        found = engine.above(queries, table, thresholds, *known, score, **options)
        most = {"max_results": len(expected.ids) - 1}
        count = engine.above(queries, table, thresholds, *known, score, **options, **most)
    assert_same(found, expected, zeros_have_signs=False)
    assert count == len(expected.ids)


@on_triton
def test_more_rows_than_a_launch_takes(engine):
    """And more pairs than one band is for."""
    settings = {f"{CONFIGS}.MAX_GRID": 2, f"{CONFIGS}.BAND_PAIRS": 128}
    settings["kgfast.kernels.triton.rank._PAIRS_PER_OPEN"] = 1
    check(engine, ties("rotate", 3, 150), settings, few=True)


@on_triton
def test_more_known_answers_than_a_band_holds(engine):
    known = torch.tensor([0, 600, 1100]), torch.arange(1100) % 40
    queries, table, *_ = ties("l2", 2, 40).args
    problem = Problem((queries, table, torch.tensor([3, 0]), *known, "l2"))
    check(engine, problem, {f"{CONFIGS}.BAND_PAIRS": 1024})


@engines("triton", scores=["dot", "rotate"])
def test_many_passes_and_chunks(engine, score):
    row_bytes = 4 * 3 * get_score(score).planes
    settings = {
        f"{CONFIGS}.QUERY_BYTES": 32 * row_bytes,
        f"{CONFIGS}.PACKED_BYTES": 100 * row_bytes + 8 * 64,
        f"{TOPK}.MOST_QUERIES": 4,
    }
    ids = torch.randperm(150, generator=torch.Generator().manual_seed(0))[:140]
    check(engine, ties(score, 70, 150, candidate_ids=ids), settings, 3)


@on_triton
def test_scores_that_rise_with_the_id(engine):
    """The sample's limit is the worst there is: all that follow survive."""
    table = torch.arange(300.0)[:, None].expand(-1, 2)
    problem = Problem((torch.ones(2, 2), table, *some(2, 300), "dot"))
    check(engine, problem, {f"{TOPK}.BAND_PAIRS": 128, f"{TOPK}.SAMPLE": 8}, 3)


def rank_of(engine, queries, table) -> None:
    targets = torch.zeros(len(queries), dtype=torch.int64)
    engine.rank_counts(queries, table, targets, *no_known(len(queries)), "l1")


def best_of(engine, queries, table) -> None:
    engine.topk(queries, table, 2, score="l1")


@on_triton
@pytest.mark.parametrize("consumer", [rank_of, best_of])
@pytest.mark.parametrize("size", [64, 64 * 30])
def test_a_bad_row_of_a_later_block_is_named(
    engine, consumer: Callable[..., None], size: int
) -> None:
    """Also past features at which all rows have lost."""
    table = torch.full((150, 160), 9.0)
    table[:3] = 1.0
    table[140, 75] = torch.nan
    with (
        packed(),
        patch(f"{CONFIGS}.PACKED_BYTES", size),
        pytest.raises(ValueError, match="candidates: row 140 holds"),
    ):
        consumer(engine, table[:1], table)


@on_triton
@pytest.mark.parametrize("count", [0, 2])
def test_kept_checks_are_read_first(engine, count) -> None:
    def refuse() -> None:
        raise ValueError("what was kept")

    checks = Checks(deferred=True)
    checks.keep(torch.zeros(1, dtype=torch.bool, device=DEVICE), refuse)
    table = rows("l1", 30, 3, 0).to(DEVICE)
    table[20] = torch.nan
    operands = Operands(table[:count], Prepared(table, get_score("l1")))
    with pytest.raises(ValueError, match="what was kept"):
        triton.backend.topk(operands, 2, None, checks)


def test_other_devices_are_refused() -> None:
    from kgfast.kernels.triton.host.launch import architecture

    with pytest.raises(ValueError, match=r"serves CUDA and ROCm tensors.*meta"):
        architecture(torch.device("meta"))

"""Candidates above a threshold: the specification against the oracle, every engine against it."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.above import lowest_scores
from kgfast.kernels.reference import above, tiles
from support import oracles
from support.engines import (
    INTERPRETED,
    ISAS,
    LAYERS,
    NAMES,
    SPLIT,
    assert_same,
    engines,
    examples,
    packed,
)
from support.flat import reference
from support.forked import printed_by
from support.problems import RSCF_SCORES, SCORES, Problem, make_problem, problems
from support.sampled import threads

SEEDS = st.integers(0, 2**31 - 1)
INF = torch.inf


def asked(problem: Problem, seed: int) -> tuple[tuple, dict]:
    """Return the arguments of ``above``: thresholds are scores, or lie right beside one."""
    queries, table, _, indptr, indices, score = problem.args
    options = {name: it for name, it in problem.kwargs.items() if name != "nan_worst"}
    dims = options.pop("dims", [None])[:1]
    options |= {} if dims == [None] else {"dims": dims[0]}
    own = options | ({} if dims == [None] else {"dims": dims})
    scores, _ = reference.topk(queries, table, len(table), score=score, **own)
    scores, pick = scores.reshape(len(queries), -1).nan_to_num(0.0, INF, -INF), random.Random(seed)
    rows = []
    for row in scores:
        value = row[pick.randrange(len(row))]
        beside = pick.choice([value, value, value.nextafter(value + INF), value.nextafter(-value)])
        rows.append(pick.choice([beside.double()] * 8 + [beside.double() * 1.0000000001]))
    thresholds = torch.stack(rows).nan_to_num(0.0)
    if pick.random() < 0.1:
        thresholds[pick.randrange(len(thresholds))] = pick.choice([INF, -INF, 0.0, 1e300])
    return (queries, table, thresholds, indptr, indices, score), options


@given(problem=problems(), tile=st.sampled_from([512, 4096, 1 << 19]), seed=SEEDS)
@examples(30)
def test_the_specification_equals_the_oracle(problem, tile, seed):
    args, options = asked(problem, seed)
    queries, table, thresholds, indptr, indices, score = args
    with pytest.MonkeyPatch.context() as patch:
        for module in (tiles, above):
            patch.setattr(module, "TILE", tile)
        found = reference.above(*args, **options)
    values = oracles.canonical_scores(
        queries, table, score, options.get("bias"), dim=options.get("dims")
    )
    rounded, subset = torch.from_numpy(values).to(queries.dtype), options.get("candidate_ids")
    among = set(range(len(table)) if subset is None else subset.tolist())
    rows = []
    for row, (first, last) in enumerate(pairwise(indptr.tolist())):
        known = set(indices[first:last].tolist())
        reaches = (rounded[row].double() >= thresholds[row]).nonzero()[:, 0].tolist()
        rows.append([it for it in reaches if it in among and it not in known])
    assert [found.ids[a:b].tolist() for a, b in pairwise(found.indptr.tolist())] == rows
    wanted = [rounded[row, ids] for row, ids in enumerate(rows)]
    assert_same([found.scores], [torch.cat(wanted)])
    if found.ids.numel():
        assert reference.above(*args, **options, max_results=len(found.ids) - 1) == len(found.ids)


def check(engine, args: tuple, options: dict) -> None:
    found, expected = engine.above(*args, **options), reference.above(*args, **options)
    note = f"{args[-1]} {[*options]}"
    assert_same(found, expected, note, zeros_have_signs=not engine.is_triton)
    if engine.layer == "backend" and len(expected.ids):
        few = options | {"max_results": len(expected.ids) - 1}
        assert engine.above(*args, **few) == len(expected.ids)


@engines(*NAMES, SPLIT, quick=True)
@given(seed=SEEDS, layer=st.sampled_from(LAYERS))
@examples(50, 2)
def test_results_equal_the_specification(engine, seed, layer):
    check(engine.at(layer), *asked(make_problem(seed, served=engine.scores), seed))


@engines(*ISAS, "baseline", "triton")
@given(seed=SEEDS)
@examples(25)
def test_results_of_moved_queries_equal_the_specification(engine, seed):
    check(engine, *asked(make_problem(seed, served=RSCF_SCORES), seed))


@pytest.mark.skipif(INTERPRETED, reason="tens of thousands of rows are too many to interpret")
@engines(*ISAS, "baseline")
@given(seed=SEEDS)
@examples(10)
def test_results_equal_the_specification_where_no_bound_decides(engine, seed):
    """Tables of like and of tiny rows."""
    check(engine, *asked(make_problem(seed, many=True, served=engine.scores), seed))


@engines("reference", "triton", *ISAS, quick=("dot",), scores=SCORES)
@pytest.mark.parametrize("k", [1, 7])
def test_the_kth_score_as_threshold_returns_the_k_best(engine, score, k):
    generator = torch.Generator().manual_seed(k)
    table = torch.randn(60, 6, generator=generator)
    queries = torch.randn(5, 6, generator=generator)
    scores, ids = engine.topk(queries, table, k, score=score)
    indptr, found, own = engine.above(queries, table, scores[:, -1], score=score)
    assert indptr.tolist() == list(range(0, 5 * k + 1, k))
    order = ids.argsort(1)
    assert torch.equal(found.view(5, k), ids.gather(1, order))
    assert torch.equal(own.view(5, k), scores.gather(1, order))


@given(value=st.floats(width=32, allow_nan=False), step=st.sampled_from([-1, 0, 1]))
@examples(300)
def test_the_lowest_scores_are_those_that_round_to_the_threshold(value, step):
    """No number below rounds to it, neither of a float32 nor of a float64 beside one."""
    threshold = torch.tensor([value], dtype=torch.float64)
    if step:
        threshold = threshold.nextafter(torch.full_like(threshold, step * INF))
    lowest = lowest_scores(threshold, torch.float32)
    assert bool(lowest.float().double() >= threshold)
    below = lowest.nextafter(torch.full_like(lowest, -INF))
    assert bool(below == lowest) or not bool(below.float().double() >= threshold)
    assert torch.equal(lowest_scores(threshold, torch.float64), threshold)


@engines("reference", *ISAS, "triton", quick=True)
def test_scores_that_round_to_the_threshold_reach_it(engine):
    """Two rows whose float64 scores lie on either side of what rounds to 1 in float32."""
    table = torch.tensor([[1.0 - 2**-25 - 2**-50], [1.0 - 2**-25]], dtype=torch.float64)
    queries = torch.ones(1, 1)
    assert engine.above(queries, table, torch.ones(1))[1].tolist() == [1]
    assert engine.above(queries.double(), table, torch.ones(1))[1].tolist() == []


@pytest.mark.parametrize("count", [1, 3])
@engines(*ISAS, "baseline", scores=("dot", "rotate"))
def test_more_pairs_than_a_list_holds(engine, score, count):
    """A million results of each of few queries, in lists of 24 MiB that are resolved on the way."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(70_000, 2, generator=generator)
    queries = torch.randn(30, 2, generator=generator)
    thresholds = torch.full((30,), -INF)
    thresholds[3] = 0.5 if score == "dot" else -1.0
    with threads(count):
        found = engine.above(queries, table, thresholds, score=score)
        parts = [
            engine.above(*some, score=score)
            for some in zip(queries.split(7), [table] * 5, thresholds.split(7), strict=True)
        ]
    assert found.indptr.diff()[:3].tolist() == [70_000] * 3
    assert torch.equal(found.ids[:70_000], torch.arange(70_000))
    for place, name in ((1, "ids"), (2, "scores")):
        assert torch.equal(torch.cat([it[place] for it in parts]), getattr(found, name))
    expected = reference.above(queries[2:5], table, thresholds[2:5], score=score)
    first, last = found.indptr[[2, 5]].tolist()
    assert_same((found.ids[first:last], found.scores[first:last]), expected[1:])


@engines("reference", *ISAS, "baseline", "triton", quick=True)
@pytest.mark.parametrize("is_packed", [True, False])
def test_the_first_row_that_is_not_finite_is_named(engine, is_packed):
    table, queries, ids = torch.randn(100, 5), torch.randn(4, 5), torch.tensor([4, 61, 9])
    table[61, 3], table[17, 0], bad_query = INF, torch.nan, queries.clone()
    bad_query[2, 1] = -INF
    least = (0.0 if is_packed else 1e30,) if INTERPRETED else (0.0, 1e30, -INF)
    calls = [(engine.above, torch.full((4,), it)) for it in least]
    with packed(is_packed):
        for find, asked in (*calls, (engine.topk, 2)):
            with pytest.raises(ValueError, match="candidates: row 17 holds a NaN or an infinity"):
                find(queries, table, asked)
            with pytest.raises(ValueError, match="candidates: row 61 holds a NaN or an infinity"):
                find(queries, table, asked, candidate_ids=ids)
            with pytest.raises(ValueError, match="queries: row 2 holds"):
                find(bad_query, table, asked)
        with pytest.raises(ValueError, match="candidates: row 17 holds a NaN or an infinity"):
            engine.topk(queries, table, 90)


@engines(quick=True)
def test_nothing_to_find(engine):
    for queries, table in ((0, 3), (2, 0)):
        args = torch.ones(queries, 4), torch.ones(table, 4), torch.zeros(queries)
        check(engine, (*args, None, None, "dot"), {})
    args = torch.ones(2, 3), torch.ones(5, 3), torch.full((2,), 3.5), None, None, "dot"
    check(engine, args, {})
    for known in ((None, None), (torch.tensor([0, 1, 1]), torch.tensor([3]))):
        none = {"candidate_ids": torch.empty(0, dtype=torch.int64)}
        check(engine, (*args[:3], *known, "dot"), none)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_workspace_is_bounded():
    """The peak beyond 8 million results, 96 MB, of 2,000 queries on 40,000 rows, and of 8."""
    script = """
        import ctypes, resource, torch
        from support.flat import cpu
        torch.set_num_threads(2)
        ctypes.CDLL(None).mallopt(-3, 65536)  # M_MMAP_THRESHOLD: freed memory goes back
        table, queries = torch.randn(1_000_000, 8), torch.randn(2_000, 8)
        thresholds = torch.full((2_000,), -1e30)
        cpu.above(queries[:8], table[:2_000], thresholds[:8])
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = peak()
        for rows, batch in ((4_000, 2_000), (1_000_000, 8)):
            found = cpu.above(queries[:batch], table[:rows], thresholds[:batch])
            assert len(found.ids) == 8_000_000
            print(peak() - before - 12 * len(found.ids))
            del found
    """
    assert max(map(int, printed_by(script).split())) < 64 << 20

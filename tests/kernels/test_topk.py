"""Top-k: the specification against the oracle, every engine against the specification."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.reference import tiles
from kgfast.kernels.reference import topk as specification
from support import flat, oracles
from support.engines import (
    INTERPRETED,
    ISAS,
    LAYERS,
    NAMES,
    SPLIT,
    assert_same,
    bits,
    engines,
    examples,
    packed,
)
from support.flat import reference
from support.memory import PeakMemory
from support.problems import (
    RSCF_SCORES,
    SCORES,
    Problem,
    cast,
    make_problem,
    no_known,
    problems,
    table_of,
)
from support.sampled import threads

COUNTS = (1, 2, 3, 10, 31, 64, 257, 300)
SEEDS = st.integers(0, 2**31 - 1)
PLAIN_SCORES = [score for score in SCORES if score != "rotate_interleaved"]  # a layout, no score


def arguments(problem: Problem) -> tuple:
    """Return the arguments of ``topk``, without k."""
    queries, table, _, indptr, indices, score = problem.args
    return queries, table, indptr, indices, score


def run(function, problem: Problem, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    queries, table, indptr, indices, score = arguments(problem)
    return function(queries, table, k, indptr, indices, score, **problem.kwargs)


@given(
    problem=st.one_of(problems(), problems(nonfinite=True)),
    k=st.sampled_from(COUNTS),
    tile=st.sampled_from([512, 4096, 1 << 19]),
)
@examples(40)
def test_the_specification_equals_the_oracle(problem, k, tile):
    queries, table, indptr, indices, score = arguments(problem)
    dims, subset = (problem.kwargs.get(name) for name in ("dims", "candidate_ids"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", tile)
        patch.setattr(specification, "TILE", tile)
        scores, ids = run(reference.topk, problem, k)
    known = [indices[a:b].tolist() for a, b in pairwise(indptr.tolist())]
    for row, dim in enumerate([None] if dims is None else dims):
        values = oracles.canonical_scores(
            queries, table, score, problem.kwargs.get("bias"), dim=dim
        )
        best, of_best = oracles.best(values, k, known, None if subset is None else subset.tolist())
        crop = (scores, ids) if dims is None else (scores[row], ids[row])
        assert crop[1].tolist() == best
        assert torch.equal(bits(crop[0]), bits(torch.from_numpy(of_best).to(queries.dtype)))


def check(engine, problem: Problem, k: int, *, is_packed: bool = True) -> None:
    """Hold what an engine finds against what the reference finds."""
    with packed(is_packed):
        found = run(engine.topk, problem, k)
    signs = {"zeros_have_signs": not engine.is_triton}
    assert_same(found, run(reference.topk, problem, k), f"k={k} {problem}", **signs)


@pytest.mark.parametrize("nonfinite", [False, True], ids=["finite", "not finite"])
@engines(*NAMES, SPLIT, quick=True)
@given(
    seed=SEEDS, k=st.sampled_from(COUNTS), layer=st.sampled_from(LAYERS), is_packed=st.booleans()
)
@examples(40, 2)
def test_the_best_equal_the_specification(engine, nonfinite, seed, k, layer, is_packed):
    problem = make_problem(seed, nonfinite, served=engine.scores)
    check(engine.at(layer), problem, k, is_packed=is_packed)


@engines(*ISAS, "baseline", "triton")
@given(seed=SEEDS, nonfinite=st.booleans(), k=st.sampled_from([1, 3, 31, 300]))
@examples(25)
def test_the_best_of_moved_queries_equal_the_specification(engine, seed, nonfinite, k):
    check(engine, make_problem(seed, nonfinite, served=RSCF_SCORES), k, is_packed=seed % 2 == 0)


@pytest.mark.skipif(INTERPRETED, reason="tens of thousands of rows are too many to interpret")
@given(seed=SEEDS, k=st.sampled_from([1, 7, 100]))
@examples(15)
def test_the_best_equal_the_specification_where_survivors_overflow(engine, seed, k):
    check(engine, make_problem(seed, many=True, served=engine.scores), k)


def problem_of(queries, table, score, known=None, **options: Any) -> Problem:
    return Problem((queries, table, None, *(known or no_known(len(queries))), score), options)


def clustered(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that come closer and closer, in steps far below the sweep's precision and above it."""
    generator = torch.Generator().manual_seed(rows)
    steps = torch.linspace(1, 0, rows, dtype=torch.float64)[:, None]
    fine = torch.randint(-2, 3, (rows, 1), generator=generator).double() * 1e-9
    base = table_of("normal", 1, width, generator)
    return cast(base * (1 + steps + fine), dtype)


@engines(*ISAS, "baseline", scores=SCORES)
@pytest.mark.parametrize("k", [1, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_candidates_that_come_ever_closer(engine, score, k, dtype):
    """Every candidate beats those before it, many within the bound: buffers fill and resolve."""
    table = clustered(1_500, 20, dtype)
    check(engine, problem_of(table[[-1, 700]], table, score), k)


@engines(*ISAS, "baseline")
@pytest.mark.parametrize("k", [1, 5])
def test_rows_that_only_float64_tells_apart(engine, k):
    """Two moduli that add up to nearly 1: the square root's error decides the sweep's order."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        share = torch.rand(700, 1, generator=generator, dtype=torch.float64)
        total = 1 + 1e-7 * torch.randn(700, 1, generator=generator, dtype=torch.float64)
        table = torch.cat([share * total, (1 - share) * total, torch.zeros(700, 2)], 1).float()
        check(engine, problem_of(torch.zeros(1, 4), table, "rotate"), k)


@pytest.mark.parametrize("dim", [1, 3])
@engines(*ISAS, "baseline", "triton")
def test_sines_are_those_of_the_reference(engine, dim):
    """Phases of every size up to 2^20, many at multiples of a right angle."""
    generator, rows = torch.Generator().manual_seed(dim), 40 if INTERPRETED else 2_000
    exponents = 20 * torch.rand(rows, dim, generator=generator, dtype=torch.float64)
    phases = 2**exponents * torch.randn(rows, dim, generator=generator, dtype=torch.float64).sign()
    right = torch.randint(-90, 90, (rows // 2, dim), generator=generator) * (torch.pi / 2)
    phases[: rows // 2] = right + 1e-9 * phases[: rows // 2].sign()
    table = torch.randn(rows, 2 * dim, generator=generator, dtype=torch.float64)
    queries = torch.randn(1, 5 * dim, generator=generator, dtype=torch.float64)
    queries[:, 4 * dim :] = 1.0
    for k in (rows, 5):
        check(engine, problem_of(queries, table, "rscf_rotate", factor=phases), k)


@engines(*ISAS, "baseline", scores=SCORES)
def test_more_queries_than_one_pass_holds(engine, score):
    """Survivors of 6,000 queries times k = 150 do not fit into their 24 MiB at once."""
    generator = torch.Generator().manual_seed(4)
    table = torch.randn(700, 4, generator=generator)
    queries = torch.randn(6_000, 4, generator=generator)
    scores, ids = engine.topk(queries, table, 150, score=score)
    some = torch.randint(6_000, (40,), generator=generator)
    expected = reference.topk(queries[some], table, 150, None, None, score)
    assert_same((scores[some], ids[some]), expected)


@engines(*ISAS, "baseline", "triton")
@pytest.mark.parametrize("view", ["one row", "every third row", "columns", "misaligned"])
def test_views_are_read_in_place(engine, view):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(90, 8, generator=generator)
    if view == "one row":
        table = table[:1].expand(90, 8)
    elif view == "every third row":
        table = table[::3]
    elif view == "columns":
        table = torch.randn(9, 90, generator=generator)[1:].T
    elif engine.device == "cpu":
        raw = torch.empty(90 * 8 * 4 + 2, dtype=torch.uint8)
        raw[2:] = table.flatten().view(torch.uint8)
        table = torch.frombuffer(raw.numpy().data, dtype=torch.float32, offset=2).view(90, 8)
    queries = torch.randn(5, 17, generator=generator)[:, 1::2]
    for is_packed in (True, False):
        check(engine, problem_of(queries, table, "l1"), 4, is_packed=is_packed)


@engines(quick=True)
def test_nothing_to_find(engine):
    """No queries, no rows, fewer candidates than are asked for."""
    for queries, table in ((0, 3), (2, 0)):
        check(engine, problem_of(torch.ones(queries, 4), torch.ones(table, 4), "dot"), 2)
    known = torch.tensor([0, 5, 6]), torch.tensor([4, 3, 2, 1, 0, 2])
    queries, table = torch.randn(2, 3), torch.randn(5, 3)
    check(engine, problem_of(queries, table, "l2", known), 4)
    none = {"candidate_ids": torch.empty(0, dtype=torch.int64)}
    check(engine, problem_of(queries, table, "l2", **none), 2)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_workspace_is_bounded():
    """The peak of 2,000 queries on 60,000 rows, where [B, N] would take 480 MB."""
    table, queries = torch.randn(60_000, 32), torch.randn(2_000, 32)
    with threads(4):
        flat.cpu.topk(queries[:8], table[:2_000], 3)
        with PeakMemory("cpu") as peak:
            flat.cpu.topk(queries, table, 10)
            flat.cpu.topk(queries[:4], table, 20_000)
            flat.cpu.topk(queries[:2], table, 60_000)
    assert peak.bytes < 64 << 20

"""Scores of pairs, and of rows that an index names, and their gradients, on every engine."""

import random
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels.cpu import backward
from kgfast.kernels.operands import NamedRows, Need
from kgfast.kernels.scores import Term, get_score
from support.engines import ISAS, NAMES, assert_same, engine_of, engines, examples
from support.gradients import check, run
from support.problems import DTYPES, RSCF_SCORES, SCORES, strided
from support.sampled import Sampled, assert_close, make_moved, make_sampled, threads

ENGINES = ("reference", *ISAS, "baseline", "triton")
ON_CPU = (*ISAS, "baseline")
ALL_SCORES = (*SCORES, *RSCF_SCORES)
# scores of degree 1, whose gradients have the size of the gradient of the score
LENGTHS = (Term.MAGNITUDE, Term.SQUARE, Term.MODULUS)
DISTANCES = [score for score in ALL_SCORES if get_score(score).term in LENGTHS]
FAST = ("rotate", "dot")  # for interpreted kernels
SEEDS = st.integers(0, 2**31 - 1)
EITHER = pytest.mark.parametrize("is_indexed", [False, True], ids=["pairwise", "indexed"])
assert set(ENGINES) <= {*NAMES, "reference"}


def index_of(problem: Sampled, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 80, (), generator=generator))
    shape = (count, len(problem.queries)) if seed % 3 == 0 else (len(problem.queries), count)
    index = torch.randint(len(problem.table), shape, generator=generator)
    return index.t() if seed % 3 == 0 else index


@EITHER
@engines(*ENGINES, quick=True)
@given(seed=SEEDS)
@example(seed=0)
@example(seed=2003023)  # a gradient beyond float16
@examples(12, 1)
def test_scores_and_gradients(engine, is_indexed, seed):
    problem = make_sampled(seed, rows=30 if is_indexed or engine.is_triton else 140)
    check(engine, problem, index_of(problem, seed) if is_indexed else None)


@EITHER
@engines(*ENGINES)
@given(seed=SEEDS)
@example(seed=11776)  # a near candidate: 1.2e-5
@example(seed=3291)  # a nearer one: 2.9e-5
@examples(12, 3)
def test_scores_and_gradients_of_moved_queries(engine, is_indexed, seed):
    problem = make_moved(seed, rows=30)
    check(engine, problem, index_of(problem, seed) if is_indexed else None)


def operands(score, batch, rows, dim, dtype=torch.float32, angle=3.0, **options: Any) -> Sampled:
    """Random operands; with a factor where the score takes one."""
    generator = torch.Generator().manual_seed(4)
    facts = get_score(score)

    def normal(count, width):
        return torch.randn(count, width, generator=generator)

    queries, factor = normal(batch, dim * facts.planes), None
    table = normal(rows, dim * facts.planes).to(dtype)
    if facts.is_rscf:
        parts = [queries, 1 + 0.2 * normal(batch, dim * facts.planes), angle * normal(batch, dim)]
        queries, factor = torch.cat(parts, 1), (1 + 0.1 * normal(rows, dim)).to(dtype)
    return Sampled(queries, table, score, None, options.get("dims"), score, factor)


def an_index(problem: Sampled, width: int = 13) -> Tensor:
    """Ids with many duplicates, within rows and across; the first one is hot."""
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(len(problem.table), (len(problem.queries), width), generator=generator)
    index[:, : width // 3] = 0
    return index


def grad_of(problem: Sampled, index: Tensor | None) -> Tensor:
    width = len(problem.table) if index is None else index.shape[1]
    return torch.randn(len(problem.queries), width, generator=torch.Generator().manual_seed(5))


def given_of(score, batch, rows, dim, is_indexed, **options: Any):
    """Operands, an index or None, and a gradient."""
    problem = operands(score, batch, rows, dim, **options)
    index = an_index(problem) if is_indexed else None
    return problem, index, grad_of(problem, index)


# Bits that depend on nothing else.


@EITHER
@engines("reference", *ON_CPU, scores=ALL_SCORES)
def test_bits_do_not_depend_on_threads(engine, score, is_indexed):
    """Pools of 700 come in several ranges of terms; the reference has one for each feature."""
    dim = 5 if engine.name == "reference" else 33
    problem, index, grad = given_of(score, 70, 50 if is_indexed else 700, dim, is_indexed)
    results = []
    for count in (1, 2, 5, 1):
        with threads(count):
            results.append([it for it in run(engine, problem, grad, index) if it is not None])
    for other in results[1:]:
        assert_same(other, results[0])


@EITHER
@engines("reference", *ON_CPU, "triton", scores=ALL_SCORES)
@pytest.mark.parametrize("dim", [150, pytest.param(4_200, marks=pytest.mark.slow)])
def test_a_crop_has_the_bits_of_that_crop_alone_and_of_the_cropped_table(
    engine, score, is_indexed, dim
):
    """In rows of one panel, and of several."""
    if engine.is_triton and dim > 150:
        pytest.skip("has no panels")
    problem = operands(score, 3, 20, dim)
    rows = (an_index(problem, 9),) if is_indexed else ()
    scores = engine.indexed_scores if is_indexed else engine.pairwise_scores
    factor, dims = problem.factor, [1, 64, 65, 100, dim - 1, dim]
    together = scores(problem.queries, problem.table, *rows, score, None, factor, dims)
    for place, width in enumerate(dims):
        given = [cropped(it, score, dim, width) for it in (problem.queries, problem.table)]
        own = None if factor is None else factor[:, :width]
        alone = scores(problem.queries, problem.table, *rows, score, None, factor, [width])
        assert torch.equal(together[place], alone[0])
        assert torch.equal(together[place], scores(*given, *rows, score, None, own, [width])[0])
    if not (engine.is_triton and score == "dot"):  # a GEMM without crops
        whole = scores(problem.queries, problem.table, *rows, score, None, factor)
        assert torch.equal(together[-1], whole)


def cropped(rows: Tensor, score: str, dim: int, width: int) -> Tensor:
    if score == "rotate_interleaved":
        return rows[:, : 2 * width]
    return rows.unflatten(1, (-1, dim))[..., :width].flatten(1)


@EITHER
@engines(*ENGINES, scores=ALL_SCORES)
def test_a_gradient_is_the_same_alone(engine, score, is_indexed):
    problem, index, grad = given_of(score, 5, 40, 20, is_indexed)
    every = run(engine, problem, grad, index)
    for wanted in range(3 if get_score(score).is_rscf else 2):
        need = tuple(it == wanted for it in range(3))
        alone = run(engine, problem, grad, index, need)
        assert [it is not None for it in alone[1:]] == list(need)
        assert torch.equal(alone[1 + wanted], every[1 + wanted])


@engines("reference", *ON_CPU, scores=SCORES)
def test_gradients_of_a_span_of_rows_are_those_among_all(engine, score):
    """Compare gradients of some queries, too: processes that train together sum a part each."""
    problem, index, grad = given_of(score, 40, 50, 33, True)
    index[0, :50], backward = torch.arange(13), engine.flat.backend.backward
    operands = engine.flat.operands(problem.queries, problem.table, score)
    whole = backward(operands, grad, index, need=Need(True, True), rows=NamedRows())
    spans = [slice(0, 1), slice(1, 17), slice(17, 17), slice(17, 50)]
    parts = [
        backward(operands, grad, index, need=Need(False, True), rows=NamedRows(within=span))
        for span in spans
    ]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert torch.equal(torch.cat([part.table for part in parts]), whole.table)
    assert len(parts[0].ids) == 1
    assert len(parts[2].ids) == 0
    for rows in (slice(0, 7), slice(7, 40)):
        part = operands.of_queries(rows), grad[rows], index[rows]
        assert torch.equal(backward(*part, need=Need(True, False)).queries, whole.queries[rows])
    dense = backward(operands, grad, index, need=Need(True, True))
    assert torch.equal(dense.queries, whole.queries)
    assert torch.equal(dense.table[whole.ids], whole.table)


# Sizes.


@engines(*ON_CPU, scores=ALL_SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_queries_and_candidates_in_parts(engine, score, dtype, monkeypatch):
    problem, _, grad = given_of(score, 50, 300, 6, False, dtype=dtype)
    whole = run(engine, problem, grad, None)
    monkeypatch.setattr(backward, "_ROWS", 16)
    monkeypatch.setattr(backward, "_LENGTH_BYTES", 1)
    for part, full in zip(run(engine, problem, grad, None), whole, strict=True):
        if full is not None:
            assert part.dtype == full.dtype
            assert_close(part, full.double())


@engines(*ON_CPU)
def test_queries_too_many_to_be_turned_beforehand(engine):
    problem = operands("rscf_rotate", 16_000, 7, 3)
    check(engine, problem, torch.randint(7, (16_000, 1)))


@EITHER
@engines(*ENGINES, quick=True)
@pytest.mark.parametrize(("batch", "width"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_score(engine, is_indexed, batch, width):
    problem = operands("rotate", batch, 5 if is_indexed else width, 2)
    index = torch.empty(batch, width, dtype=torch.int64) if is_indexed else None
    found = run(engine, problem, torch.empty(batch, width), index)
    assert found.scores.shape == (batch, width)
    assert torch.equal(found.queries, torch.zeros_like(problem.queries))
    assert torch.equal(found.table, torch.zeros_like(problem.table))


@engines(*ON_CPU)
def test_offsets_beyond_two_to_the_31(engine):
    """Rows more than 2^31 elements apart, in an allocation of which few pages are touched."""
    stride = 1 << 21
    table = torch.empty(stride * 1_100, dtype=torch.float16).as_strided((1_100, 6), (stride, 1))
    table[:] = torch.randn(1_100, 6).half()
    index = torch.tensor([[0, 1_099, 7], [1_098, 3, 1_099]])
    problem = Sampled(torch.randn(2, 6), table, "rotate", None, None, "far")
    near = Sampled(problem.queries, table.clone(), "rotate", None, None, "near")
    for ids in (None, index):
        grad = grad_of(near, ids)
        both = [run(engine, it, grad, ids)[:3] for it in (problem, near)]
        assert_same(*both)


@engines(*ENGINES, scores=["dot", "rotate", *RSCF_SCORES], quick=("dot",))
def test_views_of_any_strides(engine, score):
    problem = operands(score, 4, 20, 5)
    for layout, table in (
        ("rows", strided(problem.table, "columns")),
        ("columns", problem.table[:1].expand(20, -1)),
    ):
        laid = Sampled(
            strided(problem.queries, layout), table, score, None, None, layout, problem.factor
        )
        check(engine, laid)
        check(engine, laid, torch.randint(20, (7, 4)).T)
        check(engine, laid, torch.tensor([[3]]).expand(4, 6))


# Numbers.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@engines("reference", *ON_CPU)
def test_gradients_are_rounded_once_to_nearest(engine, dtype):
    generator = torch.Generator().manual_seed(5)
    size = 10.0 ** torch.randint(-9, 6, (1, 4_000), generator=generator)
    grad = torch.cat([torch.randn(1, 4_000, generator=generator) * size, 0.0 * size[:, :1]], 1)
    table = torch.zeros(grad.shape[1], 1, dtype=dtype)
    found = run(engine, Sampled(torch.ones(1, 1), table, "dot", None, None, ""), grad, None)
    assert torch.equal(found.table, grad.t().to(dtype))  # a product with 1


def on_a_grid(score: str, exponents: Tensor, has_factor: bool, seed: int) -> Sampled:
    """Small integers times a power of two for each feature: differences are exact."""
    generator, facts = torch.Generator().manual_seed(seed), get_score(score)
    dim = len(exponents)
    size = torch.ldexp(torch.ones(dim, dtype=torch.float64), exponents).float()

    def integers(rows: int, planes: int) -> Tensor:
        grid = torch.randint(-8, 9, (rows, planes, dim), generator=generator)
        return (grid.float() * size).flatten(1)

    queries, table, factor = integers(37, facts.planes), integers(70, facts.planes), None
    queries[::4] = torch.where(torch.arange(len(queries[0])) == 3, queries[::4], table[:10])
    if facts.is_rscf:
        parts = [queries, torch.randint(1, 3, queries.shape, generator=generator).float()]
        if has_factor:
            factor = torch.randint(1, 3, (70, dim), generator=generator).float()
            parts += [integers(37, 1) if facts.planes == 1 else torch.zeros(37, dim)]
        queries = torch.cat(parts, 1)
    return Sampled(queries, table, score, None, None, f"{score} {exponents}", factor)


@cache
def of_the_reference(score: str, exponents: tuple[int, ...], has_factor: bool, is_indexed: bool):
    """Return a problem on a grid, its index and gradient, and what the reference makes of them."""
    problem = on_a_grid(score, torch.tensor(exponents), has_factor, len(score))
    index = an_index(problem) if is_indexed else None
    grad = grad_of(problem, index)
    return problem, index, grad, run(engine_of("reference"), problem, grad, index)


@EITHER
@engines(*ON_CPU, "triton", scores=DISTANCES)
@pytest.mark.parametrize("has_factor", [True, False], ids=["factor", "no factor"])
def test_numbers_of_every_size(engine, score, is_indexed, has_factor):
    """From 2^-148 (3e-45) to 2^118 (3e35), and many sizes in one row; below 2^-126 counts as 0."""
    facts, dim = get_score(score), 20
    if has_factor and not facts.is_rscf:
        pytest.skip("has no factor")
    sizes = [-148, -140, -110, -100, -70, -64, -60, -57, -54, -50, -46, 0, 30, 54, 62, 64, 100, 118]
    if engine.is_triton:
        sizes = [-46, 54]
    drawn, ends = random.Random(score), (sizes[2 % len(sizes)], min(sizes[-1], 100))
    mixed = tuple(drawn.randrange(*ends) for _ in range(dim))
    for exponents in (*((it,) * dim for it in sizes), mixed):
        key = score, exponents, has_factor, is_indexed
        problem, index, grad, exact = of_the_reference(*key)
        found = run(engine, problem, grad, index)
        rel = 2e-5 if facts.is_rscf else 1e-5
        assert_close(found.scores, exact.scores)
        if max(exponents) > 100 and facts.root:
            continue  # a gradient over such a length is below 2^-126
        for got, right in zip(found[1:], exact[1:], strict=True):
            if got is not None:
                is_flushed = max(exponents) < -126
                assert_close(got, 0.0 * right if is_flushed else right, rel=rel)


@EITHER
@engines(*ON_CPU, scores=ALL_SCORES)
def test_a_nan_reaches_its_own_scores_only(engine, score, is_indexed):
    """Nor does it hide that phases of other rows and queries have many turns."""
    problem, index, grad = given_of(score, 6, 70, 40, is_indexed, angle=30.0)
    if problem.factor is not None:
        problem.queries[:, -40:] *= 1e-3
        problem.queries[0, -1], problem.factor[64:66, -1] = 30.0, 2.0
    if index is not None:
        index[:, :4] = torch.tensor([65, 66, 67, 68])
    whole = run(engine, problem, grad, index)
    problem.queries[1, -1] = torch.nan
    found, others = run(engine, problem, grad, index), torch.arange(6) != 1
    for got, right in ((found.scores, whole.scores), (found.queries, whole.queries)):
        assert torch.equal(got[others], right[others])
    (problem.table if problem.factor is None else problem.factor)[66, -1] = torch.nan
    found = run(engine, problem, grad, index).scores
    bad = torch.zeros(6, 70, dtype=torch.bool)
    bad[1] = bad[:, 66] = True
    bad = bad if index is None else bad.gather(1, index)
    assert torch.equal(found.isnan(), bad)
    assert torch.equal(found[~bad], whole.scores[~bad])


@engines(*ENGINES, scores=[score for score in ALL_SCORES if score != "dot"], quick=("rotate",))
@EITHER
@pytest.mark.parametrize("has_factor", [True, False], ids=["factor", "no factor"])
def test_the_gradient_at_a_distance_of_zero_is_zero(engine, score, is_indexed, has_factor):
    """Products are exact, and angles are 0."""
    facts, dim = get_score(score), 20
    row = torch.randint(-8, 8, (facts.planes * dim,)).float()
    queries, factor = row, None
    if facts.is_rscf:
        factor = torch.full((4, dim), 0.25) if has_factor else None
        move = torch.full((dim,), 0.0 if facts.planes == 2 else 3.0)
        scale = torch.full_like(row, 0.5)
        shift = 0.25 * move if has_factor and facts.planes == 1 else 0.0
        queries = torch.cat([scale * row - shift, scale] + ([move] if has_factor else []))
    table = row.expand(4, -1).clone()
    problem = Sampled(queries.expand(3, -1).clone(), table, score, None, None, "", factor)
    index = an_index(problem) if is_indexed else None
    found = run(engine, problem, torch.ones_like(grad_of(problem, index)), index)
    assert not found.scores.any()
    assert not any(it.any() for it in found[1:] if it is not None)


@engines(*ENGINES, scores=[score for score in SCORES if score != "rotate_interleaved"])
def test_rows_that_no_pair_names_do_not_matter(engine, score):
    """Not even the first one, which lanes past the end of a list once read."""
    problem, _, grad = given_of(score, 3, 9, 5, True)
    problem.queries[0], problem.table[0] = torch.nan, torch.inf
    index = 1 + torch.randint(8, (3, 13), generator=torch.Generator().manual_seed(5))
    part = Sampled(problem.queries[1:], problem.table, score, None, None, "")
    found = run(engine, part, grad[1:], index[1:])
    assert found.queries.isfinite().all()
    assert found.table.isfinite().all()


@EITHER
@engines(*ON_CPU)
@pytest.mark.parametrize("angle", [30.0, 3e3, 1e5])
def test_angles_of_many_turns(engine, is_indexed, angle):
    problem = operands("rscf_rotate", 5, 23, 40, angle=angle)
    problem.factor[3, :20] = 0.0
    problem.factor[5, 20:] *= -2.0
    check(engine, problem, an_index(problem) if is_indexed else None)


@EITHER
@engines(*ON_CPU)
def test_the_largest_angles_may_belong_to_near_phases(engine, is_indexed):
    problem = operands("rscf_rotate", 5, 23, 40)
    problem.queries[:, -40:] = 2.0**20 + torch.arange(40) / 32
    problem.factor[:] = 1 - torch.arange(23.0, 46.0)[:, None] * 2.0**-24
    check(engine, problem, an_index(problem) if is_indexed else None)

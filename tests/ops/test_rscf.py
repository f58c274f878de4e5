"""The filtering scores of pairwise_scores and indexed_scores on the CPU: values and gradients.

The oracle is the reference in float64, which tests/kernels/reference/test_rscf.py holds against
dense complex arithmetic, and gradcheck here.
"""

import pytest
import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.cpu import backward as cpu_backward
from support import flat, oracles
from support.memory import PeakMemory
from support.problems import RSCF_SCORES, cast, strided
from support.sampled import assert_close, threads

EACH_SCORE = pytest.mark.parametrize("score", RSCF_SCORES)
WITH_FACTOR = pytest.mark.parametrize("with_factor", [True, False], ids=["factor", "scale alone"])
needs_extension = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")

Operands = tuple[Tensor, Tensor, Tensor | None]


def operands(
    score: str, with_factor: bool, batch: int = 5, rows: int = 23, dim: int = 17, angle: float = 3.0
) -> Operands:
    """Queries, a table and its factor, around 1, that require gradients."""
    generator = torch.Generator().manual_seed(1)
    planes = 2 if score == "rscf_rotate" else 1

    def normal(count: int, width: int) -> Tensor:
        return torch.randn(count, width, generator=generator)

    parts = [normal(batch, planes * dim), 1 + 0.2 * normal(batch, planes * dim)]
    if with_factor:
        parts.append(angle * normal(batch, dim))
    table, factor = normal(rows, planes * dim), 1 + 0.1 * normal(rows, dim)
    queries = torch.cat(parts, 1)
    leaves = [it.requires_grad_() for it in (queries, table, factor)]
    return leaves[0], leaves[1], leaves[2] if with_factor else None


def an_index(rows: int = 23, batch: int = 5, width: int = 7) -> Tensor:
    """Ids with many duplicates, within rows and across."""
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(rows, (batch, width), generator=generator)
    index[:, 0] = rows - 1
    return index


EITHER = pytest.mark.parametrize("index", [None, an_index()], ids=["pairwise", "indexed"])


def doubles(given: Operands) -> Operands:
    """The same in float64, which the reference serves."""
    queries, table, factor = (
        None if it is None else it.detach().double().requires_grad_() for it in given
    )
    return queries, table, factor


def served(given: Operands, score: str, index: Tensor | None = None, **options) -> Tensor:
    queries, table, factor = given
    if index is None:
        return ops.pairwise_scores(queries, table, score, factor=factor, **options)
    return ops.indexed_scores(queries, table, index, score, factor=factor, **options)


def leaves_of(given: Operands) -> list[Tensor]:
    return [it for it in given if it is not None]


def gradients_of(scores: Tensor, given: Operands) -> tuple[Tensor, ...]:
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(9))
    return torch.autograd.grad(scores, leaves_of(given), weights.to(scores.dtype))


_EXACT: dict[tuple[object, ...], tuple[Tensor, tuple[Tensor, ...]]] = {}


def exact_of(given: Operands, score: str, index: Tensor | None, dims: list[int] | None):
    """Values and gradients in float64; the same for every instruction set, hence kept."""
    contents = [it.detach().numpy().tobytes() for it in leaves_of(given)]
    key = (score, index is None, tuple(dims or ()), *contents)
    if key not in _EXACT:
        exact = doubles(given)
        scores = served(exact, score, index, dims=dims)
        _EXACT[key] = scores.detach(), gradients_of(scores, exact)
    return _EXACT[key]


def check(
    given: Operands, score: str, index: Tensor | None = None, dims: list[int] | None = None
) -> None:
    """Values and gradients against float64."""
    scores = served(given, score, index, dims=dims)
    expected, gradients = exact_of(given, score, index, dims)
    assert scores.dtype == torch.float32
    assert float(((scores.detach() - expected).abs() / expected.abs()).max()) < 1e-5
    for got, wanted in zip(gradients_of(scores, given), gradients, strict=True):
        assert_close(got, wanted)


@EACH_SCORE
@WITH_FACTOR
@EITHER
@pytest.mark.parametrize("dims", [None, [3, 17, 8, 3]], ids=["full", "crops"])
def test_scores_and_gradients_are_those_of_float64(isa, score, with_factor, index, dims):
    check(operands(score, with_factor), score, index, dims=dims)


@pytest.mark.slow
@EACH_SCORE
@EITHER
def test_rows_of_several_runs_and_queries_of_several_tiles(isa, score, index):
    """Crops inside runs of 64 features, at their ends, and past what one lane sums."""
    given = operands(score, True, batch=5 if index is not None else 7, rows=23, dim=1100)
    check(given, score, index, dims=[1100, 64, 65])


@EITHER
@pytest.mark.parametrize("angle", [30.0, 3e3, 1e5])
def test_angles_of_many_turns(isa, index, angle):
    given = operands("rscf_rotate", True, dim=40, angle=angle)
    given[2].data[3, :20] = 0.0
    given[2].data[5, 20:] *= -2.0
    check(given, "rscf_rotate", index)


def test_an_angle_that_only_a_tiny_factor_makes_small(isa):
    given = operands("rscf_rotate", True, dim=40, angle=1e12)
    given[2].data *= 1e-7
    check(given, "rscf_rotate")


@EITHER
def test_angles_that_need_whole_turns_change_no_bit_of_others(isa, index):
    """Those near 0 take a shorter way, alone or between others."""
    given = operands("rscf_rotate", True, rows=24, dim=150, angle=0.1)
    queries, table, factor = (it.detach() for it in given)
    near = torch.arange(0, 24, 2)
    factor[near] = 3 * (factor[near] - 1)  # b - 1 is rounded
    factor[1::2] *= 100
    if index is None:
        alone = served((queries, table[near], factor[near]), "rscf_rotate")
        mixed = served((queries, table, factor), "rscf_rotate")[:, near]
    else:
        own = near.repeat(5, 1)
        alone = served((queries, table, factor), "rscf_rotate", own)
        between = torch.stack([own, own + 1], -1).flatten(1)
        mixed = served((queries, table, factor), "rscf_rotate", between)[:, ::2]
    assert torch.equal(alone, mixed)


@EACH_SCORE
@WITH_FACTOR
@EITHER
def test_a_crop_is_the_score_of_the_cropped_table(isa, score, with_factor, index):
    given = tuple(it if it is None else it.detach() for it in operands(score, with_factor))
    both = served(given, score, index, dims=[4, 17])
    cropped = tuple(
        None if it is None else it.unflatten(1, (-1, 17))[..., :4].flatten(1) for it in given
    )
    assert torch.equal(both[0], served(cropped, score, index))
    assert torch.equal(both[1], served(given, score, index))
    if with_factor:  # it may end where the widest crop does
        narrow = (given[0], given[1], given[2][:, :8])
        assert torch.equal(both[:1], served(narrow, score, index, dims=[4]))


@EACH_SCORE
@EITHER
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_tables_and_factors_of_any_dtype_and_stride(isa, score, index, layout, dtype):
    queries, table, factor = (it.detach() for it in operands(score, True))
    given = (
        strided(queries, layout).requires_grad_(),
        strided(cast(table.double(), dtype), layout).requires_grad_(),
        strided(cast(factor.double(), dtype), layout).requires_grad_(),
    )
    exact = doubles(given)
    scores, expected = served(given, score, index), served(exact, score, index)
    oracles.assert_accurate(scores.detach(), expected.detach())
    pairs = zip(gradients_of(scores, given), gradients_of(expected, exact), given, strict=True)
    for got, wanted, like in pairs:
        assert got.dtype == like.dtype
        assert_close(got, wanted)


@EACH_SCORE
@WITH_FACTOR
@EITHER
def test_the_gradient_at_a_distance_of_zero_is_zero(isa, score, with_factor, index):
    """Of numbers whose products are exact, and of angles of 0; a modulus of 0 comes as 2**-62."""
    queries, table, factor = operands(score, with_factor, dim=20)
    planes = 2 if score == "rscf_rotate" else 1
    row = torch.randint(-8, 8, (planes * 20,)).float()
    scale, move = torch.full((planes * 20,), 0.5), torch.full((20,), 3.0)
    if score == "rscf_rotate":
        move.zero_()
    shift = 0.0 if not with_factor or score == "rscf_rotate" else 3.0 * 0.25
    parts = [scale * row - shift, scale] + ([move] if with_factor else [])
    queries.data[:] = torch.cat(parts)
    table.data[:] = row
    if factor is not None:
        factor.data[:] = 0.25
    scores = served((queries, table, factor), score, index)
    assert float(scores.detach().abs().max()) < 1e-16
    assert not any(it.any() for it in gradients_of(scores, (queries, table, factor)))


@EACH_SCORE
@EITHER
def test_two_runs_are_bit_equal_for_any_number_of_threads(isa, score, index):
    """Pools of 600 come in stripes."""
    given, runs = operands(score, True, rows=600, dim=70), []
    index = None if index is None else an_index(rows=600)
    for count in (1, 2, 2, 3):
        with threads(count):
            scores = served(given, score, index, dims=[70, 5])
            runs.append([scores, *gradients_of(scores, given)])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@needs_extension
@pytest.mark.parametrize("score", ["rscf_rotate", "rscf_l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_queries_and_candidates_in_parts(score, dtype, monkeypatch):
    given = tuple(it.detach() for it in operands(score, True, 50, 300, 6))
    queries, table, factor = given[0], given[1].to(dtype), given[2].to(dtype)
    grad = torch.randn(50, 300, generator=torch.Generator().manual_seed(2))
    whole = flat.cpu.pairwise_backward(grad, queries, table, score, factor)
    monkeypatch.setattr(cpu_backward, "_ROWS", 16)
    monkeypatch.setattr(cpu_backward, "_LENGTH_BYTES", 1)
    parts = flat.cpu.pairwise_backward(grad, queries, table, score, factor)
    for part, full in zip(parts, whole, strict=True):
        assert part.dtype == full.dtype
        assert_close(part, full.double())


@needs_extension
def test_queries_too_many_to_be_turned_beforehand():
    given = operands("rscf_rotate", True, 16_000, 7, 3)
    check(given, "rscf_rotate", an_index(7, 16_000, 1))


@needs_extension
@EACH_SCORE
@EITHER
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_gradient_is_the_same_alone(score, index, wanted):
    given = operands(score, True)
    everything = gradients_of(served(given, score, index), given)
    alone = [it.detach() for it in given]
    alone[wanted].requires_grad_()
    scores = served((alone[0], alone[1], alone[2]), score, index)
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(9))
    (gradient,) = torch.autograd.grad(scores, alone[wanted], weights)
    assert torch.equal(gradient, everything[wanted])


@needs_extension
@EACH_SCORE
def test_a_sparse_gradient_holds_the_rows_of_the_index(score):
    given, index = operands(score, True), an_index()
    dense = gradients_of(served(given, score, index), given)
    sparse = gradients_of(served(given, score, index, sparse=True), given)
    assert sparse[1].indices().tolist() == [index.unique().tolist()]
    for one, other in zip(dense, sparse, strict=True):
        assert torch.equal(one, other.to_dense())


@needs_extension
@EACH_SCORE
@WITH_FACTOR
@EITHER
def test_gradcheck(score, with_factor, index):
    given = doubles(operands(score, with_factor, 3, 6, 3))
    index = None if index is None else index[:3] % 6
    with ops.use_backend("reference"):
        assert torch.autograd.gradcheck(
            lambda *them: served((*them, None)[:3], score, index, dims=[3, 1]), leaves_of(given)
        )


@needs_extension
@EITHER
def test_memory_stays_below_64_mib(index):
    """A broadcast would hold 512 MiB of differences (pool), or gather 256 MiB (own rows)."""
    batch, rows, dim = 256, 2048, 128
    given = operands("rscf_rotate", True, batch, rows, dim)
    if index is not None:
        index = torch.randint(rows, (batch, 1024))
    with PeakMemory("cpu") as peak:
        served(given, "rscf_rotate", index).sum().backward()
    results = 4 * batch * (rows if index is None else index.shape[1]) * 2  # and their gradient
    assert peak.bytes < results + sum(4 * it.numel() for it in given) + (64 << 20)


@needs_extension
@EACH_SCORE
def test_losses_without_a_factor(score):
    queries, table, _ = operands(score, False)
    bias, targets = torch.tensor([2.0]), torch.arange(5)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [it.detach().to(dtype).requires_grad_() for it in (queries, table)]
        rows = ops.bce(*leaves, bias, torch.arange(6), targets, 0.9, 0.1, score)
        rows = rows + ops.cross_entropy(*leaves, bias, targets, 0.1, score)
        results.append((rows.detach(), *torch.autograd.grad(rows.sum(), leaves)))
    for got, exact in zip(*results, strict=True):
        oracles.assert_accurate(got, exact)


BAD = {
    "no angles": (
        {"queries": torch.zeros(2, 8)},
        ValueError,
        "queries must have 10 columns, query,",
    ),
    "angles without a factor": ({"factor": None}, ValueError, "queries must have 8 columns, query"),
    "factor of another table": (
        {"factor": torch.zeros(5, 2)},
        ValueError,
        r"shape \[6, 2\]; got \[5",
    ),
    "factor too narrow": ({"factor": torch.zeros(6, 1)}, ValueError, r"must have shape \[6, 2\]"),
    "factor as wide as a row": (
        {"factor": torch.zeros(6, 4)},
        ValueError,
        r"must have shape \[6, 2\]",
    ),
    "flat factor": ({"factor": torch.zeros(12)}, ValueError, r"must have shape \[6, 2\]"),
    "integer factor": ({"factor": torch.zeros(6, 2).int()}, TypeError, "factor must be a floating"),
    "odd rows": ({"table": torch.zeros(6, 3)}, ValueError, "needs rows of pairs re, im"),
    "too many turns": (
        {"factor": torch.full((6, 2), 2.0**12)},
        ValueError,
        r"angles up to 1.68e\+07 radians; at most 2\^20",
    ),
    "a score that takes none": ({"score": "rotate"}, ValueError, "score rotate takes none"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    change, error, message = BAD[name]
    given = {
        "queries": torch.full((2, 10), 2.0**12),
        "table": torch.zeros(6, 4),
        "factor": torch.zeros(6, 2),
        "score": "rscf_rotate",
    } | change
    with pytest.raises(error, match=message):
        ops.indexed_scores(index=torch.zeros(2, 3, dtype=torch.int64), **given)
    given["candidates"] = given.pop("table")
    with pytest.raises(error, match=message):
        ops.pairwise_scores(**given)

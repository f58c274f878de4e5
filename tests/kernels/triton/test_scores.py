"""Scores of pairs, and pulls of their gradients, on Triton: chunks, ranges, lists, orders.

Values and gradients of any problem: ``tests/kernels/test_gradients.py``.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from kgfast.kernels.operands import NamedRows, Need, Operands, Prepared
from kgfast.kernels.scores import get_score
from support.engines import CAN_RUN, DEVICE, INTERPRETED, engines
from support.flat import triton
from support.gradients import check
from support.interpreter import shuffled_programs
from support.problems import SCORES
from support.sampled import Sampled

pytest.importorskip("triton")

import triton.language as tl
from triton import jit
from triton.runtime import interpreter

if CAN_RUN:
    from kgfast.kernels.triton.device.arguments import RowView, plane_at

    @jit
    def store_plane_at(rows, p_out):
        """Store the beginning of the fifth plane."""
        tl.store(p_out, plane_at(rows, 4))


LAYOUTS = [score for score in SCORES if score != "rotate_interleaved"]  # one of each kernel
DISTANCES = [score for score in LAYOUTS if score != "dot"]


def rows(score: str, count: int, dim: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim * get_score(score).planes, generator=rng).to(dtype)


def operands(
    score: str, queries: int, others: int, dim: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Draw queries and a table, of which one row equals a query."""
    q, c = rows(score, queries, dim, 0), rows(score, others, dim, 1, dtype)
    q[0] = c[-1].float()
    return q, c


def problem_of(score: str, *sizes: Any, dims: list[int] | None = None) -> Sampled:
    return Sampled(*operands(score, *sizes), score, None, dims, "")


@engines("triton", scores=LAYOUTS)
def test_many_blocks(engine, score, monkeypatch) -> None:
    from kgfast.kernels.triton import pairwise
    from kgfast.kernels.triton.host import pull

    row_bytes = 4 * 2 * get_score(score).planes
    monkeypatch.setattr(pairwise, "BLOCK_PAIRS", 9 * 512)  # 9 rows of a block, 2 copies
    monkeypatch.setattr(pull, "_programs", lambda operands: 4)
    monkeypatch.setattr(pull, "PARTIAL_BYTES", 9 * 4 * 2 * row_bytes)  # 9 queries, 4 programs
    monkeypatch.setattr(pairwise, "TOTAL_BYTES", 40 * row_bytes)  # 40 columns
    monkeypatch.setattr(pairwise, "QUERY_BYTES", 32 * row_bytes)
    monkeypatch.setattr(pairwise, "CANDIDATE_BYTES", 64 * row_bytes)
    check(engine, problem_of(score, 34, 70, 2, torch.float16))


@pytest.mark.parametrize("programs", [1, 3, 1056])
@engines("triton", scores=DISTANCES, quick=("rotate",))
def test_ranges_of_tiles_and_splits_of_queries(engine, score, programs, monkeypatch) -> None:
    """Programs that pull several tiles, or one; queries that are split beside few rows."""
    from kgfast.kernels.triton.host import pull

    monkeypatch.setattr(pull, "_programs", lambda operands: programs)
    monkeypatch.setattr(pull, "_LEAST_SPLIT", 2)
    monkeypatch.setattr(pull, "ROWS", 2)  # tiles of 16 rows, or 32
    check(engine, problem_of(score, 5, 50, 3, torch.float16))


@engines("triton")
@pytest.mark.skipif(not INTERPRETED, reason="a GPU orders programs as it likes")
def test_programs_in_any_order(engine, monkeypatch) -> None:
    """Gradients have the same bits; the interpreter is asked whether the order was another."""
    q, c = engine.there(operands("rotate", 17, 40, 2))
    grad = rows("l1", 17, 40, 2).to(DEVICE)
    builder, places = interpreter.interpreter_builder, []
    set_index = builder.set_grid_idx
    monkeypatch.setattr(builder, "set_grid_idx", lambda *at: (places.append(at), set_index(*at)))
    made = triton.pairwise_backward(grad, q, c, "rotate")
    in_order = places.copy()
    places.clear()
    with shuffled_programs(1):
        again = triton.pairwise_backward(grad, q, c, "rotate")
    assert all(torch.equal(a, b) for a, b in zip(made[:2], again[:2], strict=True))
    assert sorted(places) == sorted(in_order)
    assert places != in_order


@engines("triton")
@pytest.mark.parametrize("plane", [1, 7, 2**29, 2**31 - 1])
def test_planes_begin_beyond_32_bits(engine, plane) -> None:
    """Transposed queries of five planes begin beyond 32 bits from D B = 2**29 on."""
    found = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    store_plane_at[(1,)](RowView(found, 1, plane, 1), found)
    assert found.tolist() == [4 * plane]


@engines("triton")
@pytest.mark.parametrize("pieces", [2, 256])
@pytest.mark.parametrize(
    ("score", "dtype"),
    [("rotate", torch.float32), ("l1", torch.float16), ("rscf_rotate", torch.float32)],
)
def test_lists_whose_number_the_host_does_not_know(
    engine, score, dtype, pieces, monkeypatch
) -> None:
    """Launch a program for each pair, of which spare ones write nothing; cut or whole."""
    from kgfast.kernels.triton.host import gradients

    monkeypatch.setattr(gradients, "PIECE_PAIRS", pieces)
    facts = get_score(score)
    has_factor = facts.is_rscf
    c = rows("l1", 9, 3 * facts.planes, 1, dtype).to(DEVICE)
    factor = rows("l1", 9, 3, 3).to(DEVICE) if has_factor else None
    q = rows("l1", 4, 3 * facts.query_planes(has_factor), 2).to(DEVICE)
    index = torch.tensor([[0, 8, 8], [8, 8, 3], [3, 8, 2], [8, 0, 2]], device=DEVICE)
    problem = Operands(q, Prepared(c, facts, None, factor))
    grad, need = rows("l1", 4, 3, 2).to(DEVICE), Need(True, True, has_factor)
    whole = triton.backend.backward(problem, grad, index, need=need)
    some = triton.backend.backward(problem, grad, index, need=need, rows=NamedRows())
    assert some.ids.tolist() == [0, 2, 3, *[8] * 6]  # a place for each row of the table
    assert not some.table[4:].any()
    assert bool(some.table[:4].any(1).all())
    spread = some.spread(problem, need)
    for found, expected in zip(spread[:3], whole[:3], strict=True):
        assert found is expected is None or torch.equal(found, expected)
    more = some.of_rows(NamedRows(torch.tensor([7, 2, 1], device=DEVICE)))
    assert more.ids.tolist() == [0, 1, 2, 2, 3, 7, *[8] * 6]
    for found, expected in zip(more.spread(problem, need)[1:3], whole[1:3], strict=True):
        assert found is expected is None or torch.equal(found, expected)


@engines("triton")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_lists_are_cut(engine, dtype, monkeypatch) -> None:
    from kgfast.kernels.triton.host import gradients

    monkeypatch.setattr(gradients, "PIECE_PAIRS", 4)
    problem = problem_of("rotate", 3, 9, 5, dtype, dims=[2, 5])
    index = torch.randint(9, (3, 11), generator=torch.Generator().manual_seed(5))
    index[:, 2:9] = 7  # a hot id
    check(engine, problem, index)
    problem.score, problem.dims = "l1", None
    check(engine, problem, torch.full_like(index, 8))

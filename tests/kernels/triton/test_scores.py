"""Scores of pairs, and pulls of their gradients, on Triton: chunks, stripes, lists, orders.

Values and gradients of any problem: ``tests/kernels/test_gradients.py``.
"""

import pytest
import torch
from torch import Tensor

from kgfast.kernels.operands import Need, Operands, Prepared
from kgfast.kernels.scores import get_score
from support.engines import CAN_RUN, DEVICE, INTERPRETED, engines
from support.flat import reference, triton
from support.interpreter import shuffled_programs
from support.problems import SCORES
from support.triton_scores import assert_close, exact, narrow_bits, operands, rows

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


def check_pairwise(queries, candidates, score, bias=None, dims=None, runs=2) -> None:
    scores = triton.pairwise_scores(queries, candidates, score, bias, None, dims)
    assert scores.dtype == torch.float32
    operands = exact(queries), exact(candidates), score
    assert_close(scores, reference.pairwise_scores(*operands, exact(bias), None, dims))
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    actual = triton.pairwise_backward(grad, queries, candidates, score, None, dims)
    expected = reference.pairwise_backward(exact(grad), *operands, None, dims)
    assert actual[0].dtype == queries.dtype
    assert actual[1].dtype == candidates.dtype
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1], narrow_bits(candidates.dtype))
    for _ in range(1, runs):
        again = triton.pairwise_backward(grad, queries, candidates, score, None, dims)
        assert all(torch.equal(a, b) for a, b in zip(actual[:2], again[:2], strict=True))
        assert actual[2] is again[2] is None  # no factor


def check_indexed(queries, table, index, score, bias=None, dims=None) -> None:
    scores = triton.indexed_scores(queries, table, index, score, bias, None, dims)
    operands = exact(queries), exact(table), index.cpu(), score
    assert_close(scores, reference.indexed_scores(*operands, exact(bias), None, dims))
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    actual = triton.indexed_backward(grad, queries, table, index, score, None, dims)
    expected = reference.indexed_backward(exact(grad), *operands, None, dims)
    assert actual[1][1].dtype == table.dtype
    assert torch.equal(actual[1][0].cpu(), expected[1][0])
    assert_close(actual[0], expected[0])
    assert_close(actual[1][1], expected[1][1], narrow_bits(table.dtype))
    again = triton.indexed_backward(grad, queries, table, index, score, None, dims)
    assert torch.equal(actual[0], again[0])
    assert torch.equal(actual[1][1], again[1][1])


def random_index(queries: int, count: int, num_entities: int) -> Tensor:
    rng = torch.Generator().manual_seed(5)
    return torch.randint(num_entities, (queries, count), generator=rng).to(DEVICE)


@engines("triton", scores=LAYOUTS)
def test_many_blocks(engine, score, monkeypatch) -> None:
    from kgfast.kernels.triton import pairwise
    from kgfast.kernels.triton.host import gradients, pull

    row_bytes = 4 * 2 * get_score(score).planes
    monkeypatch.setattr(pairwise, "BLOCK_PAIRS", 9 * 512)  # 9 rows of a block, 2 copies
    monkeypatch.setattr(pull, "PROGRAMS", 4)
    monkeypatch.setattr(pull, "PARTIAL_BYTES", 9 * 4 * 2 * row_bytes)  # 9 queries, 4 programs
    monkeypatch.setattr(gradients, "TOTAL_BYTES", 40 * row_bytes)  # 40 columns
    monkeypatch.setattr(pairwise, "QUERY_BYTES", 32 * row_bytes)
    monkeypatch.setattr(pairwise, "CANDIDATE_BYTES", 64 * row_bytes)
    monkeypatch.setattr(gradients, "MATMUL_BYTES", 20 * row_bytes)
    check_pairwise(*operands(score, 34, 70, 2, torch.float16), score, runs=1)


@pytest.mark.parametrize("programs", [1, 3, 1056])
@engines("triton", scores=DISTANCES, quick=("rotate",))
def test_stripes_of_tiles_and_splits_of_queries(engine, score, programs, monkeypatch) -> None:
    """Programs that pull several tiles, or one; queries that are split beside few rows."""
    from kgfast.kernels.triton.host import pull

    monkeypatch.setattr(pull, "PROGRAMS", programs)
    monkeypatch.setattr(pull, "_LEAST_SPLIT", 2)
    monkeypatch.setattr(pull, "ROWS", 2)  # tiles of 16 rows, or 32
    check_pairwise(*operands(score, 5, 50, 3, torch.float16), score, runs=1)


@engines("triton")
def test_sums_of_queries_wait_for_the_last_chunk(engine) -> None:
    from kgfast.kernels.triton.host.launch import architecture
    from kgfast.kernels.triton.host.pull import QuerySums, RowSums, SlopeFactors, pull

    q, c = operands("rotate", 3, 70, 4)
    grad, arch = rows("l1", 3, 70, 2), architecture(q.device)
    of_queries, of_table, _ = triton.pairwise_backward(grad, q, c, "rotate")
    problem = Operands(q, Prepared(c, get_score("rotate")))
    sums = None
    made, part = torch.full_like(c, torch.nan), torch.full_like(q, torch.nan)
    for chunk in (slice(0, 64), slice(64, 70)):
        block = problem.of_rows(chunk)
        sums = sums or QuerySums(block, 0, 4, arch)
        of_rows = RowSums(made[chunk], is_single=True)
        pull(
            block,
            SlopeFactors(0, 4, grad[:, chunk]),
            sums,
            (of_rows, None),
            arch,
            is_first=True,
        )
        of_rows.finish()
    sums.finish(part, adds=False)
    assert_close(part, of_queries)
    assert_close(made, of_table)


@engines("triton")
@pytest.mark.skipif(not INTERPRETED, reason="a GPU orders programs as it likes")
def test_programs_in_any_order(engine, monkeypatch) -> None:
    """Gradients have the same bits; the interpreter is asked whether the order was another."""
    q, c = operands("rotate", 17, 40, 2)
    grad = rows("l1", 17, 40, 2)
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
def test_rows_too_long_for_the_scratch(engine, monkeypatch) -> None:
    from kgfast.kernels.triton import pairwise

    monkeypatch.setattr(pairwise, "QUERY_BYTES", 64)
    check_pairwise(*operands("rotate", 3, 20, 4), "rotate", None, [2, 4])


@engines("triton")
def test_autocast_leaves_products_alone(engine) -> None:
    q, c = operands("dot", 3, 20, 8)
    expected = triton.pairwise_scores(q, c, "dot")
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(triton.pairwise_scores(q, c, "dot"), expected)
        gradients = triton.pairwise_backward(expected, q, c, "dot")
    plain = triton.pairwise_backward(expected, q, c, "dot")
    assert all(torch.equal(a, b) for a, b in zip(gradients[:2], plain[:2], strict=True))


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
    from kgfast.kernels.triton import indexed
    from kgfast.kernels.triton.host import gradients

    monkeypatch.setattr(gradients, "PIECE_PAIRS", pieces)
    facts = get_score(score)
    has_factor = facts.is_rscf
    c = rows("l1", 9, 3 * facts.planes, 1, dtype)
    factor = rows("l1", 9, 3, 3) if has_factor else None
    q = rows("l1", 4, 3 * facts.query_planes(has_factor), 2)
    index = torch.tensor([[0, 8, 8], [8, 8, 3], [3, 8, 2], [8, 0, 2]], device=DEVICE)
    problem = Operands(q, Prepared(c, facts, None, factor))
    grad, need = rows("l1", 4, 3, 2), Need(True, True, has_factor)
    spare = triton.backend.backward(problem, grad, index, need=need)
    monkeypatch.setattr(indexed, "SPARE_BYTES", 0)
    counted = triton.backend.backward(problem, grad, index, need=need)
    for found, expected in zip(spare, counted, strict=True):
        assert found is expected is None or torch.equal(found, expected)
    assert bool(spare.table[[0, 2, 3, 8]].any(1).all())
    assert not spare.table[[1, 4, 5, 6, 7]].any()


@engines("triton")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_lists_are_cut(engine, dtype, monkeypatch) -> None:
    from kgfast.kernels.triton.host import gradients

    monkeypatch.setattr(gradients, "PIECE_PAIRS", 4)
    q, table = operands("rotate", 3, 9, 5, dtype)
    index = random_index(3, 11, 9)
    index[:, 2:9] = 7  # a hot id
    check_indexed(q, table, index, "rotate", None, [5, 2])
    check_indexed(q, table, torch.full_like(index, 8), "l1")


@engines("triton")
def test_the_lists_of_an_index(engine) -> None:
    from kgfast.kernels.triton.host.pair_lists import lists_of_ids

    index = torch.tensor([[5, 2, 5, 5], [5, 9, 2, 5]], device=DEVICE)
    lists = lists_of_ids(index, 2)
    assert lists.order.tolist() == [1, 6, 0, 2, 3, 4, 7, 5]
    assert lists.others.tolist() == [0, 1, 0, 0, 0, 1, 1, 1]
    assert lists.starts.tolist() == [0, 2, 4, 6, 7, 8]
    assert lists.owners.tolist() == [2, 5, 5, 5, 9]
    assert lists.target.tolist() == [0, -1, -2, -3, 2]
    assert lists.first_extra.tolist() == [0, 0, 3, 3]
    assert lists.ids.tolist() == [2, 5, 9]
    assert lists.is_cut

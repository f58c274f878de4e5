"""Scores, gradients and losses of the Triton backend, against the reference in float64.

As in test_rank.py, the classes run in a subprocess with ``TRITON_INTERPRET=1`` where there
is no GPU: ``TRITON_INTERPRET=1 pytest tests/kernels/triton/test_losses.py`` shows them one by one.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels.labels import Labels, LossChecks, LossNeed
from kgfast.kernels.operands import Need, Operands, Prepared
from kgfast.kernels.scores import get_score
from support.flat import operands_of, reference, triton
from support.interpreted import fast_and_slow, others_are_slow, run_interpreted
from support.interpreter import shuffled_programs
from support.problems import SCORES

pytest.importorskip("triton")

import triton.language as tl
from triton import jit
from triton.runtime import interpreter

from support.triton_ranks import CAN_RUN, DEVICE, INTERPRETED, few, on_gpu

if CAN_RUN:
    from kgfast.kernels.triton.device.arguments import Rows, plane_at

    @jit
    def store_plane_at(rows, p_out):
        """Where the fifth plane begins."""
        tl.store(p_out, plane_at(rows, 4))


LAYOUTS = [score for score in SCORES if score != "rotate_interleaved"]  # one of each kernel
DISTANCES = [score for score in LAYOUTS if score != "dot"]


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@fast_and_slow
@pytest.mark.parametrize(
    "group", ["TestPairwise", "TestLosses", pytest.param("TestIndexed", marks=pytest.mark.slow)]
)
def test_in_the_interpreter(group: str, marks: str) -> None:
    run_interpreted(__file__, group, marks)


def rows(score: str, count: int, dim: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(count, dim * get_score(score).planes, generator=rng)
    return values.to(dtype).to(DEVICE)


def operands(score: str, queries: int, others: int, dim: int, dtype: torch.dtype = torch.float32):
    """Queries and a table, of which one row equals a query."""
    q, c = rows(score, queries, dim, 0), rows(score, others, dim, 1, dtype)
    q[0] = c[-1].float()
    return q, c


def exact(value):
    """What the reference gets: the same numbers, in float64."""
    return value.double().cpu() if torch.is_tensor(value) and value.is_floating_point() else value


def assert_close(actual: Tensor | None, expected: Tensor | None, rel: float = 1e-5) -> None:
    """Within ``rel`` of the largest number: one that cancelled may be far below its terms."""
    if expected is None:
        assert actual is None
        return
    assert actual is not None
    assert actual.shape == expected.shape
    scale = expected.abs().max() if expected.numel() else expected
    error = (actual.double().cpu() - expected.double().cpu()).abs()
    assert bool((error <= rel * scale + 1e-30).all()), float(error.max() / scale)


def narrow_bits(dtype: torch.dtype) -> float:
    """The relative error of a gradient of this dtype; the interpreter truncates bfloat16."""
    return {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]


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


@on_gpu
class TestPairwise:
    __test__ = CAN_RUN

    @given(
        score=st.sampled_from(list(SCORES)),
        shape=st.tuples(st.integers(1, 20), st.integers(1, 70), st.integers(1, 5)),
        dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
        has_bias=st.booleans(),
        has_dims=st.booleans(),
    )
    @few
    def test_random_tables(self, score, shape, dtype, has_bias, has_dims) -> None:
        count, others, dim = shape
        q, c = operands(score, count, others, dim, dtype)
        bias = rows("l1", others, 1, 3)[:, 0] if has_bias else None
        check_pairwise(q, c, score, bias, [dim, 1, (dim + 1) // 2, dim] if has_dims else None)

    @pytest.mark.parametrize("score", others_are_slow(LAYOUTS, "rotate", "dot"))
    def test_sums_of_several_parts(self, score) -> None:  # features, others, splits, tails
        bias = torch.ones(1, device=DEVICE)
        check_pairwise(*operands(score, 2, 130, 66), score, bias, [66, 2, 65], runs=1)

    @pytest.mark.parametrize("score", others_are_slow(LAYOUTS, "rotate", "dot"))
    def test_many_blocks(self, score, monkeypatch) -> None:
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
    @pytest.mark.parametrize("score", others_are_slow(DISTANCES, "rotate"))
    def test_stripes_of_tiles_and_splits_of_queries(self, score, programs, monkeypatch) -> None:
        """Programs that pull several tiles, or one; queries that are split beside few rows."""
        from kgfast.kernels.triton.host import pull

        monkeypatch.setattr(pull, "PROGRAMS", programs)
        monkeypatch.setattr(pull, "_LEAST_SPLIT", 2)
        monkeypatch.setattr(pull, "ROWS", 2)  # tiles of 16 rows, or 32
        check_pairwise(*operands(score, 5, 50, 3, torch.float16), score, runs=1)

    def test_sums_of_queries_wait_for_the_last_chunk(self) -> None:
        from kgfast.kernels.triton.host.launch import architecture
        from kgfast.kernels.triton.host.pull import QuerySums, RowSums, Slopes, pull

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
            pull(block, Slopes(0, 4, grad[:, chunk]), sums, (of_rows, None), arch, is_first=True)
            of_rows.finish()
        sums.finish(part, adds=False)
        assert_close(part, of_queries)
        assert_close(made, of_table)

    @pytest.mark.parametrize("score", others_are_slow(LAYOUTS, "rotate", "dot"))
    def test_a_crop_is_the_cropped_table(self, score) -> None:
        q, c = operands(score, 4, 40, 80)
        crops = triton.pairwise_scores(q, c, score, dims=[80, 64, 70])
        for dim, scores in zip([80, 64, 70], crops, strict=True):
            q_crop, c_crop = (reference_crop(side, score, dim) for side in (q, c))
            assert torch.equal(triton.pairwise_scores(q_crop, c_crop, score, dims=[dim])[0], scores)
            if score != "dot":  # which is a GEMM without crops
                assert torch.equal(triton.pairwise_scores(q_crop, c_crop, score), scores)

    @pytest.mark.skipif(not INTERPRETED, reason="a GPU orders programs as it likes")
    def test_programs_in_any_order(self, monkeypatch) -> None:
        """Gradients have the same bits; the interpreter is asked whether the order was another."""
        q, c = operands("rotate", 17, 40, 2)
        grad = rows("l1", 17, 40, 2)
        builder, places = interpreter.interpreter_builder, []
        set_index = builder.set_grid_idx
        monkeypatch.setattr(
            builder, "set_grid_idx", lambda *at: (places.append(at), set_index(*at))
        )
        made = triton.pairwise_backward(grad, q, c, "rotate")
        in_order = places.copy()
        places.clear()
        with shuffled_programs(1):
            again = triton.pairwise_backward(grad, q, c, "rotate")
        assert all(torch.equal(a, b) for a, b in zip(made[:2], again[:2], strict=True))
        assert sorted(places) == sorted(in_order)
        assert places != in_order

    @pytest.mark.parametrize("score", others_are_slow(DISTANCES, "rotate"))
    def test_no_gradient_where_rows_are_equal(self, score) -> None:
        q = rows(score, 2, 3, 0)
        grad = torch.ones(2, 2, device=DEVICE)
        same = q[:1].repeat(2, 1)
        for result in triton.pairwise_backward(grad, same, same.clone(), score)[:2]:
            assert torch.equal(result, torch.zeros_like(q))
        index = torch.tensor([[0, 0], [1, 1]], device=DEVICE)
        grad_queries, (_, grad_rows), _ = triton.indexed_backward(grad, q, q.clone(), index, score)
        assert not grad_queries.any()
        assert not grad_rows.any()

    @pytest.mark.parametrize("score", ["dot", "rotate"])
    def test_views_of_any_strides(self, score) -> None:
        width = 4 * get_score(score).planes
        q = rows("l1", 9, width + 1, 0)[::3, 1:]  # misaligned
        c = rows("l1", width, 31, 1).T  # columns
        check_pairwise(q, c, score)
        check_pairwise(q, c[:1].expand(20, -1), score)  # stride 0
        check_pairwise(q, rows("l1", 20, 2 * width, 1)[:, ::2], score)

    @pytest.mark.parametrize(
        "need", [(True, False, False), (False, True, False), (False, False, False)]
    )
    def test_only_what_is_needed(self, need) -> None:
        q, c = operands("rotate", 2, 5, 3)
        grad = torch.ones(2, 5, device=DEVICE)
        both = triton.pairwise_backward(grad, q, c, "rotate")
        actual = triton.pairwise_backward(grad, q, c, "rotate", need=need)
        for is_needed, a, b in zip(need, actual, both, strict=True):
            assert torch.equal(a, b) if is_needed else a is None
        index = torch.arange(5, device=DEVICE).repeat(2, 1)
        actual = triton.indexed_backward(grad, q, c, index, "rotate", need=need)
        assert [part is not None for part in actual] == list(need)

    @pytest.mark.parametrize("plane", [1, 7, 2**29, 2**31 - 1])
    def test_planes_begin_beyond_32_bits(self, plane) -> None:
        """Of transposed queries of five planes, from D B = 2**29 on."""
        found = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        store_plane_at[(1,)](Rows(found, 1, plane, 1), found)
        assert found.tolist() == [4 * plane]

    def test_rows_too_long_for_the_scratch(self, monkeypatch) -> None:
        from kgfast.kernels.triton import pairwise

        monkeypatch.setattr(pairwise, "QUERY_BYTES", 64)
        check_pairwise(*operands("rotate", 3, 20, 4), "rotate", None, [2, 4])

    def test_autocast_leaves_products_alone(self) -> None:
        q, c = operands("dot", 3, 20, 8)
        expected = triton.pairwise_scores(q, c, "dot")
        with torch.autocast(DEVICE, torch.bfloat16):
            assert torch.equal(triton.pairwise_scores(q, c, "dot"), expected)
            gradients = triton.pairwise_backward(expected, q, c, "dot")
        plain = triton.pairwise_backward(expected, q, c, "dot")
        assert all(torch.equal(a, b) for a, b in zip(gradients[:2], plain[:2], strict=True))

    @pytest.mark.parametrize(("queries", "others"), [(0, 3), (3, 0), (0, 0)])
    def test_nothing_to_score(self, queries, others) -> None:
        q, c = rows("rotate", queries, 2, 0), rows("rotate", others, 2, 1)
        grad = triton.pairwise_scores(q, c, "rotate")
        assert grad.shape == (queries, others)
        actual = triton.pairwise_backward(grad, q, c, "rotate")
        for result, side in zip(actual[:2], (q, c), strict=True):
            assert torch.equal(result, torch.zeros_like(side))


def reference_crop(values: Tensor, score: str, dim: int) -> Tensor:
    from kgfast.kernels.reference.canonical import crop

    return crop(values, get_score(score), dim)


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


@on_gpu
class TestIndexed:
    __test__ = CAN_RUN

    @pytest.mark.parametrize("pieces", [2, 256])
    @pytest.mark.parametrize(
        ("score", "dtype"),
        [("rotate", torch.float32), ("l1", torch.float16), ("rscf_rotate", torch.float32)],
    )
    def test_lists_whose_number_the_host_does_not_know(
        self, score, dtype, pieces, monkeypatch
    ) -> None:
        """As many as pairs, of which those to spare write nothing; cut or whole."""
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

    @given(
        score=st.sampled_from(list(SCORES)),
        shape=st.tuples(st.integers(1, 6), st.integers(1, 40), st.integers(1, 30)),
        dim=st.integers(1, 70),
        dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
        has_bias=st.booleans(),
    )
    @few
    def test_random_indices(self, score, shape, dim, dtype, has_bias) -> None:
        queries, count, entities = shape
        q, table = operands(score, queries, entities, dim, dtype)
        bias = rows("l1", entities, 1, 3)[:, 0] if has_bias else None
        check_indexed(q, table, random_index(queries, count, entities), score, bias)

    @pytest.mark.parametrize("score", others_are_slow(SCORES, "rotate", "dot"))
    def test_crops(self, score) -> None:
        q, table = operands(score, 3, 12, 70)
        check_indexed(q, table, random_index(3, 9, 12), score, None, [66, 2, 70, 2])

    @pytest.mark.parametrize("score", others_are_slow(LAYOUTS, "rotate", "dot"))
    def test_rows_that_no_pair_names_do_not_matter(self, score) -> None:
        """Not even the first one, which lanes past the end of a list once read."""

        q, table = operands(score, 3, 9, 5)
        q[0], table[0] = torch.nan, torch.inf
        index = 1 + random_index(3, 5, 8)
        grad = rows("l1", 3, 5, 2)
        grad_queries, (_, grad_rows), _ = triton.indexed_backward(
            grad[1:], q[1:], table, index[1:], score
        )
        assert grad_queries.isfinite().all()
        assert grad_rows.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_long_lists_are_cut(self, dtype, monkeypatch) -> None:
        from kgfast.kernels.triton.host import gradients

        monkeypatch.setattr(gradients, "PIECE_PAIRS", 4)
        q, table = operands("rotate", 3, 9, 5, dtype)
        index = random_index(3, 11, 9)
        index[:, 2:9] = 7  # a hot id
        check_indexed(q, table, index, "rotate", None, [5, 2])
        check_indexed(q, table, torch.full_like(index, 8), "l1")

    def test_views_of_any_strides(self) -> None:
        q = rows("l1", 6, 9, 0)[::2, 1:]
        table = rows("l1", 8, 31, 1).T
        check_indexed(q, table, random_index(7, 3, 31).T, "rotate")
        check_indexed(q, table, random_index(1, 1, 31).expand(3, 4), "dot")

    def test_it_scores_as_pairwise_does(self) -> None:
        q, table = operands("l2", 3, 20, 6)
        index = torch.arange(20, device=DEVICE).repeat(3, 1)
        assert_close(
            triton.indexed_scores(q, table, index, "l2"), triton.pairwise_scores(q, table, "l2")
        )

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
    def test_nothing_to_score(self, shape) -> None:
        q, table = rows("rotate", shape[0], 2, 0), rows("rotate", 5, 2, 1)
        index = torch.empty(shape, dtype=torch.int64, device=DEVICE)
        grad = triton.indexed_scores(q, table, index, "rotate")
        assert grad.shape == shape
        grad_queries, (ids, grad_rows), _ = triton.indexed_backward(grad, q, table, index, "rotate")
        assert torch.equal(grad_queries, torch.zeros_like(q))
        assert ids.shape == (0,)
        assert grad_rows.shape == (0, 4)

    def test_the_lists_of_an_index(self) -> None:
        from kgfast.kernels.triton.host.lists import lists_of_ids

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


LOSS_SCORES = [
    "dot",  # on tensor cores
    "rotate",
    pytest.param("l2", marks=pytest.mark.slow),  # a root
    pytest.param("rscf_l1", marks=pytest.mark.slow),
]


def loss_problem(score: str, dtype: torch.dtype = torch.float32) -> tuple:
    """Queries of two blocks, a table of two tiles, a bias, and labels that occur twice."""
    q, c = operands(score, 17, 70, 3, dtype)
    facts = get_score(score)
    if facts.is_rscf:
        q = torch.cat([q, 1 + 0.1 * rows("l1", 17, q.shape[1], 5)], 1)
    rng = torch.Generator().manual_seed(6)
    lengths = torch.randint(1, 4, (17,), generator=rng)
    lengths[3] = 9  # of six
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(70, (int(indptr[-1]),), generator=rng)
    first = int(indptr[3])
    indices[first : first + 9] = torch.tensor([64, 0, 63, 69, 0, 5, 64, 0, 2])
    return q, c, rows("l1", 70, 1, 3)[:, 0], indptr.to(DEVICE), indices.to(DEVICE)


WRONG_WITH_A_MASK = {  # of a table, its bias, the targets
    "a label of all candidates": lambda c, bias, targets: None,
    "a target": lambda c, bias, targets: targets[5:6].fill_(3),
    "a NaN among biases": lambda c, bias, targets: bias[66:67].fill_(torch.nan),
    "an infinity among biases": lambda c, bias, targets: bias[66:67].fill_(torch.inf),
    "a NaN that is left out": lambda c, bias, targets: c[7].fill_(torch.nan),
    "an infinity that is left out": lambda c, bias, targets: c[7].fill_(torch.inf),
}


@on_gpu
class TestLosses:
    __test__ = CAN_RUN

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch) -> None:
        """Two blocks of queries, chunks of one tile, sums that are added up on the way."""
        from kgfast.kernels.triton import loss_tiles, losses

        monkeypatch.setattr(loss_tiles, "CHUNK_BYTES", 4 * 17 * 70)
        monkeypatch.setattr(loss_tiles, "QUERY_BYTES", 0)
        monkeypatch.setattr(losses, "SUM_BYTES", 4 * 3 * 17)

    @pytest.mark.parametrize("score", LOSS_SCORES)
    def test_bce(self, score) -> None:
        q, c, bias, indptr, indices = loss_problem(score)
        labels = 0.9, 0.01, score
        index = indptr.cpu(), indices.cpu()
        grad = rows("l1", 17, 1, 4)[:, 0]
        row_losses, linear = triton.bce(q, c, bias, indptr, indices, *labels)
        assert row_losses.dtype == torch.float32
        inputs = exact(q), exact(c), exact(bias)
        expected = reference.bce(*inputs, *index, *labels)
        assert_close(row_losses, expected[0])
        assert_close(linear, expected[1])
        actual = triton.bce_backward(grad, q, c, bias, indptr, indices, *labels)
        expected = reference.bce_backward(exact(grad), *inputs, *index, *labels)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y)

    @pytest.mark.parametrize("score", ["dot", pytest.param("rotate", marks=pytest.mark.slow)])
    def test_a_total_has_the_bits_of_its_parts(self, score) -> None:
        q, c, bias, indptr, indices = loss_problem(score)
        labels = indptr, indices, 0.9, 0.01, score
        total, _, gradients = triton.bce_total(q, c, bias, *labels, divisor=1.0)
        assert torch.equal(total, triton.bce(q, c, bias, *labels)[0].sum())
        ones = torch.ones(17, device=DEVICE)
        parts = triton.bce_backward(ones, q, c, bias, *labels)
        assert all(torch.equal(x, y) for x, y in zip(gradients, parts, strict=True))
        halved, _, of_half = triton.bce_total(q, c, bias, *labels, divisor=2.0)
        assert torch.equal(2 * halved, total)
        assert all(torch.equal(2 * x, y) for x, y in zip(of_half, parts, strict=True))

    @pytest.mark.parametrize("score", LOSS_SCORES)
    def test_cross_entropy(self, score) -> None:
        q, c, bias, _, indices = loss_problem(score, torch.bfloat16)
        targets, grad = indices[-17:], rows("l1", 17, 1, 4)[:, 0]
        actual = triton.cross_entropy(q, c, bias, targets, 0.1, score)
        inputs = exact(q), exact(c), exact(bias), targets.cpu(), 0.1, score
        expected = reference.cross_entropy(*inputs)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y)
        gradients = triton.cross_entropy_backward(grad, actual[1], q, c, bias, targets, 0.1, score)
        references = reference.cross_entropy_backward(exact(grad), expected[1], *inputs)
        assert gradients[1].dtype == torch.bfloat16
        for x, y, rel in zip(gradients, references, (1e-5, 8e-3, 1e-5), strict=True):
            assert_close(x, y, rel)

    @pytest.mark.skipif(not INTERPRETED, reason="a GPU orders programs as it likes")
    @pytest.mark.parametrize("score", ["dot", pytest.param("rotate", marks=pytest.mark.slow)])
    def test_losses_in_any_order_of_programs(self, score) -> None:
        q, c, bias, indptr, indices = loss_problem(score)
        targets, grad = indices[-17:], rows("l1", 17, 1, 4)[:, 0]

        def everything() -> list[Tensor]:
            total = triton.bce_total(q, c, bias, indptr, indices, 0.9, 0.01, score, divisor=3.0)
            softmax = triton.cross_entropy(q, c, bias, targets, 0.1, score)
            made = softmax[1], q, c, bias, targets, 0.1, score
            back = triton.cross_entropy_backward(grad, *made)
            return [total[0], total[1], *total[2], *softmax, *back]

        made = everything()
        with shuffled_programs(7):
            again = everything()
        assert all(torch.equal(x, y) for x, y in zip(made, again, strict=True))

    @pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
    def test_small_and_large_scores_keep_their_digits(self, shift) -> None:
        """A softplus of 1e-13 is no zero, a sigmoid no one."""
        q, c, _, indptr, indices = loss_problem("dot")
        bias = torch.full((1,), shift, device=DEVICE)
        labels = indptr, indices, 0.0 if shift < 0 else 1.0, 0.0, "dot"
        given = exact(q), exact(c), exact(bias), indptr.cpu(), indices.cpu(), *labels[2:]
        assert_close(triton.bce(q, c, bias, *labels)[0], reference.bce(*given)[0])
        ones = torch.ones(17, device=DEVICE)
        expected = reference.bce_backward(exact(ones), *given)
        for x, y in zip(triton.bce_backward(ones, q, c, bias, *labels), expected, strict=True):
            assert_close(x, y)

    def test_a_mask_leaves_candidates_out(self) -> None:
        """Whole tiles of them, too."""
        q, c, bias, *_ = loss_problem("rotate")
        bias[:64] = -torch.inf
        targets = 65 + torch.arange(17, device=DEVICE) % 5
        inputs = exact(q), exact(c), exact(bias)
        labels = torch.arange(18, device=DEVICE), targets, 1.0, 0.0, "rotate"
        actual = triton.bce_backward(torch.ones(17, device=DEVICE), q, c, bias, *labels)
        index = labels[0].cpu(), targets.cpu(), *labels[2:]
        expected = reference.bce_backward(torch.ones(17).double(), *inputs, *index)
        for x, y in zip(actual, expected, strict=True):
            assert_close(x, y)
        assert not actual[1][:64].any()
        row_losses, lse, _ = triton.cross_entropy(q, c, bias, targets, 0.0, "rotate")
        expected = reference.cross_entropy(*inputs, targets.cpu(), 0.0, "rotate")
        assert_close(row_losses, expected[0])
        assert_close(lse, expected[1])

    @pytest.mark.parametrize("score", ["dot", pytest.param("rotate", marks=pytest.mark.slow)])
    @pytest.mark.parametrize("wrong", [None, *WRONG_WITH_A_MASK])
    def test_the_host_looks_closer_for_what_is_wrong_alone(self, score, wrong) -> None:
        """A mask is not: of a NaN beside it, also in a row that it leaves out, the host hears."""
        q, c, bias, *_ = loss_problem(score)
        bias[:64] = -torch.inf
        targets = 65 + torch.arange(17, device=DEVICE) % 5
        if wrong is not None:
            WRONG_WITH_A_MASK[wrong](c, bias, targets)
        every = 0.1 if wrong == "a label of all candidates" else 0.0
        labels = Labels(torch.arange(18, device=DEVICE), targets, 1.0, every)
        looked: list[str] = []
        checks = LossChecks(lambda: looked.append("labels"), lambda sums: looked.append("scores"))
        problem, backend = operands_of(q, c, score, bias), triton.backend.losses
        need = LossNeed(queries=True, table=True, bias=True)
        for look in (
            lambda: backend.bce(problem, labels, checks),
            lambda: backend.bce_total(problem, labels, 2.0, need, checks),
            lambda: backend.cross_entropy(problem, targets, every, checks),
        ):
            looked.clear()
            look()
            assert looked == ([] if wrong is None else ["labels", "scores"])

    def test_products_of_any_strides(self) -> None:
        q = rows("l1", 9, 6, 0)[::3, 1:]  # misaligned
        c = rows("l1", 5, 31, 1).T  # columns
        targets = torch.tensor([3, 30, 0], device=DEVICE)
        given = exact(q), exact(c), None, targets.cpu(), 0.1, "dot"
        actual = triton.cross_entropy(q, c, None, targets, 0.1, "dot")
        expected = reference.cross_entropy(*given)
        assert_close(actual[0], expected[0])
        grad = rows("l1", 3, 1, 4)[:, 0]
        need = True, True, False
        made = actual[1], q, c, None, targets, 0.1, "dot", need
        of_reference = reference.cross_entropy_backward(exact(grad), expected[1], *given, need)
        for x, y in zip(triton.cross_entropy_backward(grad, *made), of_reference, strict=True):
            assert_close(x, y)

    @pytest.mark.parametrize("score", ["dot", "l1"])
    @pytest.mark.parametrize("wanted", [0, 1, 2])
    def test_only_what_is_needed(self, score, wanted) -> None:
        q, c, bias, _, indices = loss_problem(score)
        targets, grad = indices[-17:], torch.ones(17, device=DEVICE)
        _, lse, _ = triton.cross_entropy(q, c, bias, targets, 0.0, score)
        made = grad, lse, q, c, bias, targets, 0.0, score
        need = [i == wanted for i in range(3)]
        actual = triton.cross_entropy_backward(*made, need)
        assert [part is not None for part in actual] == need
        assert_close(actual[wanted], triton.cross_entropy_backward(*made)[wanted])

    @pytest.mark.parametrize(("queries", "others"), [(0, 3), (0, 0)])
    def test_no_pairs(self, queries, others) -> None:
        q, c = rows("rotate", queries, 2, 0), rows("rotate", others, 2, 1)
        indptr = torch.zeros(queries + 1, dtype=torch.int64, device=DEVICE)
        labels = indptr, indptr[:0], 1.0, 0.0, "rotate"
        total, linear, gradients = triton.bce_total(q, c, None, *labels, divisor=2.0)
        assert float(total) == 0
        assert linear.shape == (0,)
        for made, like in zip(gradients, (q, c, c[:, 0]), strict=True):
            assert torch.equal(made, torch.zeros_like(like))
        assert triton.cross_entropy(q, c, None, indptr[:0], 0.0, "rotate")[0].shape == (0,)

    @pytest.mark.parametrize("factor", [1.0, -2.5])
    def test_gradients_are_scaled_in_place(self, factor) -> None:
        values = [rows("l1", 70, 91, 0), rows("l1", 0, 3, 1), rows("l1", 3, 1, 2)]
        given = [it.clone() for it in values]
        triton.backend.losses.scale(values, torch.tensor(factor, device=DEVICE))
        assert all(torch.equal(x, factor * y) for x, y in zip(values, given, strict=True))

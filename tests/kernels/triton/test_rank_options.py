"""Options, views and bad input of the Triton backend's ranks; run as test_rank.py is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kgfast import ops
from kgfast.kernels.scores import get_score
from support.flat import triton
from support.interpreted import run_interpreted
from support.problems import SCORES
from support.target_scores import assert_blocks_sum_to_the_whole

pytest.importorskip("triton")

from support.triton_ranks import (
    CAN_RUN,
    DEVICE,
    INTERPRETED,
    compare,
    few,
    few_are_packed,  # noqa: F401
    known_ids,
    on_gpu,
    packed,
    query_dtype,
    table,
)


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_in_the_interpreter() -> None:
    run_interpreted(__file__, "TestOptions or TestOperator")


@on_gpu
class TestOptions:
    __test__ = CAN_RUN

    @given(
        step=st.integers(1, 3),
        offset=st.integers(0, 3),
        is_transposed=st.booleans(),
        score=st.sampled_from(list(SCORES)),
    )
    @few
    def test_strided_and_misaligned_views(self, step, offset, is_transposed, score) -> None:
        width = 5 * get_score(score).planes

        def view(rows: int, seed: int) -> Tensor:
            rng = torch.Generator().manual_seed(seed)
            if is_transposed:
                return torch.randn(width + offset, rows, generator=rng)[offset:].T
            return torch.randn(rows, width * step + offset, generator=rng)[:, offset::step][
                :, :width
            ]

        compare(view(3, 0), view(21, 1), *known_ids(3, 21), score)

    @given(count=st.integers(0, 30), has_bias=st.booleans(), nan_worst=st.booleans())
    @few
    def test_candidate_ids(self, count, has_bias, nan_worst) -> None:
        rng = torch.Generator().manual_seed(count)
        candidates = table("rotate", 30, 3, torch.float32, 0, 1.0)
        queries = table("rotate", 5, 3, torch.float32, 1, 1.0)
        if nan_worst:
            queries[1, 0] = candidates[2, 1] = torch.nan
        compare(
            queries,
            candidates,
            *known_ids(5, 30, 3),
            "rotate",
            bias=torch.randn(30, generator=rng).round() if has_bias else None,
            candidate_ids=torch.randperm(30, generator=rng)[:count],
            nan_worst=nan_worst,
        )

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_one_bias_for_all(self, dtype) -> None:
        candidates = table("dot", 20, 4, torch.float32, 0, 1.0)
        queries = table("dot", 3, 4, torch.float32, 1, 1.0)
        compare(queries, candidates, *known_ids(3, 20), "dot", bias=torch.tensor([0.1]).to(dtype))

    @pytest.mark.parametrize("is_packed", [False, True])
    @pytest.mark.parametrize("dims", [None, [3, 1]])
    def test_blocks_against_targets_that_are_given(self, is_packed, dims) -> None:
        args = (
            table("rotate", 5, 3, torch.float32, 1, 1.0),
            table("rotate", 30, 3, torch.float32, 0, 1.0),
            *known_ids(5, 30, 3),
            "rotate",
        )
        with packed(is_packed):
            assert_blocks_sum_to_the_whole(triton, args, {"dims": dims}, 2, lambda v: v.to(DEVICE))

    @pytest.mark.parametrize("is_packed", [False, True])
    def test_given_targets_and_queries_that_are_not_finite(self, is_packed) -> None:
        queries = table("l1", 4, 3, torch.float32, 1, 1.0)
        queries[1, 0] = torch.nan
        candidates = table("l1", 9, 3, torch.float32, 0, 1.0)
        args = (queries, candidates, *known_ids(4, 9), "l1")
        with packed(is_packed):
            assert_blocks_sum_to_the_whole(
                triton, args, {"nan_worst": True}, 1, lambda v: v.to(DEVICE)
            )
            there = [value.to(DEVICE) for value in args[:5]]
            scores = torch.zeros(1, 4, dtype=torch.float64, device=DEVICE)
            with pytest.raises(ValueError, match="queries: row 1"):
                triton.rank_counts(*there, "l1", target_scores=scores)

    def test_a_bias_decides_what_the_embedding_does_not(self) -> None:
        candidates = torch.ones(40, 3)
        bias = torch.arange(40.0) * 2.0**-20
        compare(torch.zeros(2, 3), candidates, *known_ids(2, 40), "l1", bias=bias)

    def test_sorted_known_ids(self) -> None:
        indptr = torch.tensor([0, 4, 4, 6])
        indices = torch.tensor([1, 3, 3, 9, 0, 19])
        candidates = table("rotate", 20, 3, torch.float32, 0, 1.0)
        queries = table("rotate", 3, 3, torch.float32, 1, 1.0)
        compare(queries, candidates, torch.tensor([3, 0, 2]), indptr, indices, "rotate")

    def test_more_known_ids_than_a_band_holds(self, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 1024)
        indptr, indices = torch.tensor([0, 600, 1100]), torch.arange(1100) % 40
        candidates = table("l2", 40, 3, torch.float32, 0, 1.0)
        queries = table("l2", 2, 3, torch.float32, 1, 1.0)
        compare(queries, candidates, torch.tensor([3, 0]), indptr, indices, "l2")

    @pytest.mark.parametrize("score", ["dot", "rotate"])
    def test_many_passes_and_chunks(self, score, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        row_bytes = 4 * 3 * get_score(score).planes
        monkeypatch.setattr(configs, "QUERY_BYTES", 32 * row_bytes)
        monkeypatch.setattr(configs, "PACKED_BYTES", 100 * row_bytes + 8 * 64)
        candidates = table(score, 150, 3, torch.float32, 0, 1.0)
        queries = table(score, 70, 3, torch.float32, 1, 1.0)
        ids = torch.randperm(150)[:140]
        compare(queries, candidates, *known_ids(70, 150), score, candidate_ids=ids)

    @pytest.mark.usefixtures("few_are_packed")
    @pytest.mark.parametrize("has_ids", [False, True])
    def test_rows_too_long_for_the_scratch(self, has_ids, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "PACKED_BYTES", 64)
        monkeypatch.setattr(configs, "BAND_PAIRS", 32)
        candidates = table("rotate", 20, 3, torch.float32, 0, 1.0)
        queries = table("rotate", 4, 3, torch.float32, 1, 1.0)
        ids = torch.randperm(20)[:11] if has_ids else None
        compare(queries, candidates, *known_ids(4, 20), "rotate", candidate_ids=ids)

    @pytest.mark.usefixtures("few_are_packed")
    def test_numbers_that_are_not_finite_in_long_rows(self, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "PACKED_BYTES", 64)
        candidates = torch.ones(50, 160, device=DEVICE)
        candidates[3:] = 9.0  # all lose after 64 features
        candidates[40, 75] = torch.nan
        none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        index = [part.to(DEVICE) for part in (torch.zeros(1, dtype=torch.int64), *none)]
        with pytest.raises(ValueError, match="candidates: row 40 holds"):
            triton.rank_counts(candidates[:1], candidates, *index, "rotate")

    def test_larger_tiles(self) -> None:
        candidates = table("rotate", 300, 2, torch.float32, 0, 2.0)
        queries = table("rotate", 260, 2, torch.float32, 1, 2.0)
        targets, _, _ = known_ids(260, 300)
        indptr = torch.cat([torch.zeros(200, dtype=torch.int64), torch.full((61,), 20)])
        compare(queries, candidates, targets, indptr, torch.arange(20), "rotate")

    @pytest.mark.parametrize("score", ["l1", "rotate"])
    def test_subnormals_while_the_caller_flushes_them(self, score) -> None:
        rng = torch.Generator().manual_seed(0)
        values = torch.randint(50, (80, 4), generator=rng).double() * 1e-310
        bias = torch.randint(50, (70,), generator=rng).float() * 1e-42
        args = (values[70:], values[:70], *known_ids(10, 70), score)
        assert torch.set_flush_denormal(True)
        try:
            compare(*args)
            compare(*args, bias=bias)
        finally:
            torch.set_flush_denormal(False)

    def test_no_queries(self) -> None:
        compare(torch.empty(0, 4), torch.randn(5, 4), *known_ids(0, 5), "dot")
        compare(torch.empty(0, 4), torch.empty(0, 4), *known_ids(0, 1), "dot")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
    @pytest.mark.parametrize("value", [float("nan"), -float("inf")])
    @pytest.mark.parametrize("is_packed", [False, True])
    def test_numbers_that_are_not_finite(self, dtype, value, is_packed) -> None:
        with packed(is_packed):
            self.check_numbers_that_are_not_finite(dtype, value)

    def check_numbers_that_are_not_finite(self, dtype, value) -> None:
        none = torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        none = tuple(tensor.to(DEVICE) for tensor in none)
        targets = torch.tensor([0, 1, 2], device=DEVICE)
        good = torch.ones(9, 4, dtype=dtype, device=DEVICE)
        queries = torch.ones(3, 4, dtype=query_dtype(dtype), device=DEVICE)
        bad, bad_query = good.clone(), queries.clone()
        bad[7, 3] = bad[8, 0] = bad_query[1, 2] = value
        with pytest.raises(ValueError, match="queries: row 1 holds"):
            triton.rank_counts(bad_query, bad, targets, *none, "rotate")
        with pytest.raises(ValueError, match="candidates: row 7 holds"):
            triton.rank_counts(queries, bad, targets, *none, "rotate")
        subset = torch.tensor([0, 3], device=DEVICE)
        triton.rank_counts(queries, bad, targets, *none, "rotate", candidate_ids=subset)
        with pytest.raises(ValueError, match="candidates: row 7 holds"):  # a target outside it
            triton.rank_counts(queries, bad, targets + 5, *none, "rotate", candidate_ids=subset)
        triton.rank_counts(queries, bad, targets, *none, "rotate", dims=[1], candidate_ids=subset)

    def test_other_devices_are_refused(self) -> None:
        from kgfast.kernels.triton.host.launch import architecture

        with pytest.raises(ValueError, match=r"serves CUDA and ROCm tensors.*meta"):
            architecture(torch.device("meta"))


@on_gpu
class TestOperator:
    """Checks that wait until the bands are read raise what they would raise at once."""

    __test__ = CAN_RUN

    @pytest.mark.parametrize(
        "bad",
        [
            {"targets": [0, 9, 1]},
            {"targets": [-(2**62), 0, 1]},
            {"indices": [3, -1, 2]},
            {"indices": [3, 2**40, 2]},
            {"indptr": [0, 1, 2, 2]},
            {"indptr": [1, 1, 2, 3]},
            {"indptr": [0, 3, 1, 3]},
            {"indptr": [0, 2**40, 3, 3]},
            {"candidate_ids": [0, 9]},
            {"candidate_ids": [5, 0, 5]},
            {"candidate_ids": [0, 0, 9]},
            {"bias": [0.0] * 8 + [float("nan")]},
            {"targets": [0, 9, 1], "indices": [3, -1, 2]},
            {"queries": 1},
            {"candidates": 4},
            {"queries": 2, "bias": [float("inf")]},
        ],
    )
    @pytest.mark.parametrize("dims", [None, [1, 2]])
    def test_errors_are_those_of_the_cpu(self, bad, dims) -> None:
        queries, candidates = torch.zeros(3, 4), torch.ones(9, 4)
        if "queries" in bad:
            queries[bad["queries"], 0] = torch.nan
        if "candidates" in bad:
            candidates[bad["candidates"], 2] = torch.inf
        arguments = [
            queries,
            candidates,
            torch.tensor(bad.get("targets", [0, 1, 2])),
            torch.tensor(bad.get("indptr", [0, 1, 1, 3])),
            torch.tensor(bad.get("indices", [3, 1, 4])),
        ]
        options = {
            name: torch.tensor(bad[name]) for name in ("bias", "candidate_ids") if name in bad
        }
        with ops.use_backend("reference"), pytest.raises(ValueError, match=r"\w") as expected:
            ops.rank_counts(*arguments, "rotate", dims=dims, **options)
        moved = {name: value.to(DEVICE) for name, value in options.items()}
        with ops.use_backend("triton"), pytest.raises(ValueError, match=r"\w") as actual:
            ops.rank_counts(*(part.to(DEVICE) for part in arguments), "rotate", dims=dims, **moved)
        assert str(actual.value) == str(expected.value)

    @pytest.mark.parametrize("dims", [None, [1, 2]])
    def test_an_empty_subset(self, dims) -> None:
        candidates = torch.ones(9, 4, device=DEVICE)
        candidates[1, 0] = torch.nan  # a target's
        ids = torch.arange(3, device=DEVICE)
        options = {"candidate_ids": ids[:0], "dims": dims, "nan_worst": True}
        indptr = torch.tensor([0, 2, 3, 3], device=DEVICE)
        with ops.use_backend("triton"):
            counts = ops.rank_counts(candidates[:3], candidates, ids, indptr, ids, "l1", **options)
            best = ops.topk(candidates[:3], candidates, 2, score="l1", pad=True, **options)
        assert torch.stack(counts).count_nonzero() == 0
        assert bool((best[0] == -torch.inf).all() and (best[1] == -1).all())

    def test_a_table_without_rows(self) -> None:
        ids = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        queries = torch.zeros(1, 4, device=DEVICE)
        with ops.use_backend("triton"), pytest.raises(ValueError, match="there are no candidates"):
            ops.rank_counts(queries, queries[:0], ids[:1], ids, ids[:0], "rotate")

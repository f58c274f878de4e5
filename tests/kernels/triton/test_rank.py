"""The Triton backend returns the integers of the reference.

Triton decides when it decorates a kernel whether to interpret it, so on a machine without a GPU
the classes below run in a subprocess with ``TRITON_INTERPRET=1``, started by
:func:`test_in_the_interpreter`; with a GPU (``-m gpu``) they run on it. To see them one by one:
``TRITON_INTERPRET=1 pytest tests/kernels/triton/test_rank.py``.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels.scores import get_score
from support.interpreted import fast_and_slow, others_are_slow, run_interpreted
from support.problems import SCORES

pytest.importorskip("triton")

from support.triton_ranks import (
    CAN_RUN,
    INTERPRETED,
    PLAIN_SCORES,
    compare,
    few,
    few_are_packed,  # noqa: F401
    known_ids,
    on_gpu,
    packed,
    query_dtype,
    table,
)

# Values that make ties, that vanish in float32 products, and that overflow them.
EVIL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.0000001, 1e-40, -1e-40, 1e-23, 3e-20, 1e30, -1e30, 2e38]


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(600)
@fast_and_slow
@pytest.mark.parametrize("group", ["TestScores", pytest.param("TestSums", marks=pytest.mark.slow)])
def test_in_the_interpreter(group: str, marks: str) -> None:
    run_interpreted(__file__, group, marks)


@on_gpu
@pytest.mark.parametrize("score", others_are_slow(SCORES, "rotate", "dot"))
class TestScores:
    __test__ = CAN_RUN

    @given(
        shape=st.tuples(st.integers(1, 20), st.integers(1, 70), st.integers(1, 5)),
        dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
        grid=st.sampled_from([0.0, 1.0, 4.0]),
        has_bias=st.booleans(),
        is_packed=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_random_tables(self, score, shape, dtype, grid, has_bias, is_packed, seed) -> None:
        num_queries, num_entities, dim = shape
        candidates = table(score, num_entities, dim, dtype, seed, grid)
        queries = table(score, num_queries, dim, query_dtype(dtype), seed + 1, grid)
        bias = table("l1", num_entities, 1, dtype, seed + 2, grid)[:, 0] if has_bias else None
        known = known_ids(num_queries, num_entities, seed)
        with packed(is_packed):
            compare(queries, candidates, *known, score, bias=bias)

    @given(
        shape=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 4)),
        nan_worst=st.booleans(),
        is_double=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_adversarial_values(self, score, shape, nan_worst, is_double, seed) -> None:
        num_queries, num_entities, dim = shape
        pool = torch.tensor(
            EVIL
            + ([float("nan"), float("inf"), -float("inf")] if nan_worst else [])
            + ([1e-300, 1e150, 1e300, 1 + 1e-12] if is_double else []),
            dtype=torch.float64 if is_double else torch.float32,
        )
        rng = torch.Generator().manual_seed(seed)
        width = dim * get_score(score).planes

        def draw(rows: int) -> Tensor:
            return pool[torch.randint(len(pool), (rows, width), generator=rng)]

        bias = draw(num_entities)[:, 0] if seed % 2 else None
        known = known_ids(num_queries, num_entities, seed)
        options = {"bias": bias, "nan_worst": nan_worst}
        with packed(seed % 4 > 1):
            compare(draw(num_queries), draw(num_entities), *known, score, **options)

    def test_dims(self, score) -> None:
        candidates = table(score, 30, 11, torch.float32, 0, 2.0)
        queries = table(score, 4, 11, torch.float32, 1, 2.0)
        compare(queries, candidates, *known_ids(4, 30), score, dims=[11, 1, 4])

    def test_rows_that_lie_on_each_other(self, score) -> None:
        width = 3 * get_score(score).planes
        candidates = table(score, 1, 3, torch.float32, 0, 0.0).expand(50, width)
        queries = table(score, 1, 3, torch.float32, 1, 0.0)[:, :1].expand(3, width)
        compare(queries, candidates, *known_ids(3, 50), score)


@on_gpu
@pytest.mark.usefixtures("few_are_packed")
@pytest.mark.parametrize("score", others_are_slow(PLAIN_SCORES, "rotate", "dot"))
class TestSums:
    __test__ = CAN_RUN

    def test_long_rows(self, score) -> None:  # several short accumulators, a tail, abandoned tiles
        candidates = table(score, 90, 140, torch.float32, 0, 0.0)
        targets, indptr, indices = known_ids(20, 90)
        queries = candidates[targets] + 0.1 * table(score, 20, 140, torch.float32, 1, 0.0)
        compare(queries, candidates, targets, indptr, indices, score)

    def test_crops_of_long_rows(self, score) -> None:  # ends between two folds
        candidates = table(score, 60, 140, torch.float32, 0, 0.0)
        targets, indptr, indices = known_ids(5, 60)
        queries = candidates[targets] + 0.1 * table(score, 5, 140, torch.float32, 1, 0.0)
        options = {"bias": torch.linspace(-1, 1, 60), "dims": [130, 5, 140, 65, 130]}
        compare(queries, candidates, targets, indptr, indices, score, **options)

    def test_a_crop_that_is_lost_before_a_wider_one_is_won(self, score) -> None:
        """The first tile is past the limit of the narrow crop, not that of the wide one."""
        rows = torch.zeros(90, 140, get_score(score).planes)
        rows[:89, :64] = 1.0
        rows[89, 64:] = 1.0  # the target
        candidates = rows.transpose(1, 2).reshape(90, -1)
        queries = torch.full_like(candidates[:2], -1.0 if score == "dot" else 0.0)
        none = torch.zeros(3, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        compare(queries, candidates, torch.tensor([89, 89]), *none, score, dims=[64, 140])

    def test_near_ties_are_decided_exactly(self, score) -> None:
        row = table(score, 1, 70, torch.float64, 0, 0.0)
        candidates = row * (1 + 1e-9 * torch.arange(20.0, dtype=torch.float64)[:, None])
        queries = table(score, 2, 70, torch.float64, 1, 0.0)
        compare(queries, candidates, *known_ids(2, 20), score)

    def test_rounding_that_adds_up(self, score) -> None:  # equal terms round the same way
        steps = torch.arange(0, 60, 2, dtype=torch.int32)[:, None]
        values = (torch.tensor(0.1).view(torch.int32) + steps).view(torch.float32)
        candidates = values.expand(30, 130 * get_score(score).planes)
        queries = torch.full_like(candidates[:1], 1.0 if score == "dot" else -0.0)
        none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        compare(queries, candidates, torch.tensor([15]), *none, score)

    def test_a_sum_that_ties_before_its_end(self, score) -> None:
        planes = get_score(score).planes
        rows = torch.zeros(40, 70, planes, dtype=torch.float64)
        rows[:, :64] = 1.0
        rows[1:, 64:] = 1e-10  # after the first look at what can still win
        candidates = rows.transpose(1, 2).reshape(40, -1)
        queries = torch.full_like(candidates[:2], 1.0 if score == "dot" else 0.0)
        known = torch.tensor([0, 3, 3]), torch.tensor([1, 2, 3])
        compare(queries, candidates, torch.tensor([0, 0]), *known, score)

    def test_overflow_in_float32_decides_nothing(self, score) -> None:
        candidates = torch.full((40, 3 * get_score(score).planes), 1e20)
        candidates[5] = 1e25
        queries = torch.full_like(candidates[:1], -1.0 if score == "dot" else 0.0)
        none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        compare(queries, candidates, torch.tensor([5]), *none, score)

    def test_a_band_that_overflows(self, score, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 4096)  # a tile
        candidates = table(score, 1, 3, torch.float32, 0, 0.0).repeat(260, 1)
        candidates[7] *= 0.5
        queries = table(score, 20, 3, torch.float32, 1, 0.0)
        compare(queries, candidates, *known_ids(20, 260), score)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_denormals(self, score, dtype) -> None:
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        scale = smallest * (2.0**40 if score == "dot" else 1.0)
        candidates = (table(score, 30, 2, torch.float64, 0, 1.0) * smallest).to(dtype)
        queries = table(score, 3, 2, torch.float64, 1, 1.0) * scale
        compare(queries.float(), candidates, *known_ids(3, 30), score, bias=candidates[:, 0])

    def test_crops_whose_bands_overflow(self, score, monkeypatch) -> None:
        """Each crop is repaired, and its index sorted, after all of them have run."""
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 4096)  # a tile
        candidates = table(score, 1, 4, torch.float32, 0, 0.0).repeat(260, 1)
        candidates[7] *= 0.5
        queries = table(score, 20, 4, torch.float32, 1, 0.0)
        compare(queries, candidates, *known_ids(20, 260), score, dims=[2, 4, 1])

    def test_infinite_biases(self, score) -> None:
        candidates = table(score, 40, 3, torch.float32, 0, 1.0)
        queries = table(score, 2, 3, torch.float32, 1, 1.0)
        for bias in (-torch.inf, torch.inf):
            biases = torch.full((40,), bias)
            compare(queries, candidates, *known_ids(2, 40), score, bias=biases, nan_worst=True)

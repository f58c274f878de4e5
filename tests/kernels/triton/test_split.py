"""Ranks of dot products by tensor cores, emulated in the interpreter; run as test_rank.py is."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support.interpreted import fast_and_slow, run_interpreted
from support.tensor_cores import tensor_cores

pytest.importorskip("triton")

from support.triton_ranks import CAN_RUN, INTERPRETED, compare, few, known_ids, query_dtype, table
from support.triton_split import split_sweeps, swept_products

EVIL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.0000001, 1e-40, -1e-40, 1e-23, 3e-20, 1e30, -1e30, 2e38]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
emulated = pytest.mark.skipif(not INTERPRETED, reason="tensor cores are emulated")


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(600)
@fast_and_slow
def test_in_the_interpreter(marks: str) -> None:
    run_interpreted(__file__, "TestSplit", marks)


@emulated
class TestSplitRanks:
    __test__ = CAN_RUN

    @pytest.fixture(autouse=True)
    def by_tensor_cores(self) -> Iterator[None]:
        with split_sweeps() as calls:
            yield
        assert calls[0] > 0

    @given(
        shape=st.tuples(st.integers(1, 20), st.integers(2, 40), st.integers(1, 40)),
        dtype=st.sampled_from(DTYPES),
        grid=st.sampled_from([0.0, 1.0, 4.0]),
        has_bias=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_random_tables(self, shape, dtype, grid, has_bias, seed) -> None:
        num_queries, num_entities, dim = shape
        candidates = table("dot", num_entities, dim, dtype, seed, grid)
        queries = table("dot", num_queries, dim, query_dtype(dtype), seed + 1, grid)
        bias = table("l1", num_entities, 1, dtype, seed + 2, grid)[:, 0] if has_bias else None
        compare(queries, candidates, *known_ids(num_queries, num_entities, seed), "dot", bias=bias)

    @given(nan_worst=st.booleans(), is_double=st.booleans(), seed=st.integers(0, 1000))
    @few
    def test_adversarial_values(self, nan_worst, is_double, seed) -> None:
        pool = torch.tensor(
            EVIL
            + ([float("nan"), float("inf"), -float("inf")] if nan_worst else [])
            + ([1e-300, 1e150, 1e300, 1 + 1e-12] if is_double else []),
            dtype=torch.float64 if is_double else torch.float32,
        )
        rng = torch.Generator().manual_seed(seed)

        def draw(rows: int) -> Tensor:
            return pool[torch.randint(len(pool), (rows, 3), generator=rng)]

        bias = draw(30)[:, 0] if seed % 2 else None
        problem = draw(4), draw(30), *known_ids(4, 30, seed), "dot"
        compare(*problem, bias=bias, nan_worst=nan_worst)

    def test_crops_and_a_subset(self) -> None:
        candidates = table("dot", 40, 70, torch.float32, 0, 0.0)
        queries = table("dot", 5, 70, torch.float32, 1, 0.0)
        options = {"dims": [33, 5, 70], "candidate_ids": torch.arange(1, 40, 2).flip(0)}
        compare(queries, candidates, *known_ids(5, 40), "dot", **options)

    def test_near_ties_are_decided_exactly(self) -> None:
        row = table("dot", 1, 70, torch.float64, 0, 0.0)
        candidates = row * (1 + 1e-9 * torch.arange(20.0, dtype=torch.float64)[:, None])
        queries = table("dot", 2, 70, torch.float64, 1, 0.0)
        compare(queries, candidates, *known_ids(2, 20), "dot")

    def test_a_band_that_overflows(self, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 256)
        candidates = table("dot", 1, 3, torch.float32, 0, 0.0).repeat(60, 1)
        candidates[7] *= 0.5
        queries = table("dot", 20, 3, torch.float32, 1, 0.0)
        compare(queries, candidates, *known_ids(20, 60), "dot")

    @pytest.mark.parametrize(
        "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
    )
    def test_the_best_of_each_query(self, dtype) -> None:
        from support.flat import reference, triton

        candidates = table("dot", 90, 40, dtype, 0, 1.0)  # with ties
        queries = table("dot", 20, 40, torch.float32, 1, 1.0)
        problem = queries, candidates, 7, torch.arange(21), torch.arange(20)  # known answers
        bias = table("l1", 90, 1, dtype, 2, 1.0)[:, 0]
        for options in ({"bias": bias}, {"dims": [40, 3]}):
            expected = reference.topk(*problem, score="dot", **options)
            actual = triton.topk(*problem, score="dot", **options)
            assert torch.equal(expected[1], actual[1])
            assert torch.equal(expected[0], actual[0])

    def test_a_number_that_is_not_finite_is_refused(self) -> None:
        from support.flat import triton

        candidates = table("dot", 40, 3, torch.float32, 0, 0.0)
        candidates[17, 2] = torch.nan
        queries = table("dot", 2, 3, torch.float32, 1, 0.0)
        with pytest.raises(ValueError, match=r"candidates.*row 17"):
            triton.rank_counts(queries, candidates, *known_ids(2, 40), "dot")


def adversarial_rows(steps: int, bits: int) -> tuple[Tensor, Tensor]:
    """A product of 1 in every step, and others that are cut to nothing beside it."""
    queries = torch.full((1, 32 * steps), 2.0**-12)
    candidates = torch.full((1, 32 * steps), 2.0 ** (13 - bits) * (1 - 2.0**-8))
    queries[:, ::32] = candidates[:, ::32] = 1.0
    return queries, candidates


@emulated
class TestSplitBound:
    __test__ = CAN_RUN

    @given(
        shape=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 100)),
        scale=st.sampled_from([1.0, 1e-18, 1e15]),
        law=st.sampled_from(["normal", "log-normal", "cauchy", "same sign", "bits"]),
        dtype=st.sampled_from(DTYPES),
        group=st.sampled_from([4, 8, 16]),
        seed=st.integers(0, 1000),
    )
    @few
    def test_the_sweep_stays_within_its_bound(self, shape, scale, law, dtype, group, seed) -> None:
        num_queries, num_entities, dim = shape
        rng = torch.Generator().manual_seed(seed)
        values = torch.randn(num_queries + num_entities, dim, generator=rng).double()
        if law == "log-normal":
            values = values.sign() * (3 * values).exp()
        if law == "cauchy":
            values = (values * 1.5).tan()
        if law == "same sign":
            values = values.abs()
        if law == "bits":  # all that rounding to bfloat16 can take, twice
            values = values.sign() * (1 + 2.0**-8 - 2.0**-16)
        values = values * (1.0 if dtype == torch.float16 else scale)
        queries = values[:num_queries].to(query_dtype(dtype))
        candidates = values[num_queries:].to(dtype)
        with tensor_cores(group):
            swept, allowed = swept_products(queries, candidates)
        exact = -(queries.double() @ candidates.double().T)
        is_finite = swept.isfinite()
        assert bool(((swept.double() - exact).abs() <= allowed)[is_finite].all())
        if scale == 1.0:
            assert bool(is_finite.all())
            size = queries.double().norm(dim=1)[:, None] * candidates.double().norm(dim=1)
            assert bool((allowed <= 2.0**-14 * size + 1e-30).all())  # it says something

    @pytest.mark.parametrize(("bits", "is_covered"), [(25, True), (24, True), (22, False)])
    def test_what_is_cut_off_is_what_is_assumed(self, bits, is_covered) -> None:
        """The bound holds for one bit less than is known of tensor cores, not for three."""
        queries, candidates = adversarial_rows(3, bits)
        with tensor_cores(bits=bits):
            swept, allowed = swept_products(queries, candidates)
        error = (swept.double() + queries.double() @ candidates.double().T).abs()
        assert bool((error > 31 * 3 * 2.0**-bits * 0.9).all())
        assert bool((error <= allowed).all()) == is_covered

    def test_the_parts_are_rounded_to_the_nearest(self) -> None:
        from support.triton_split import packed_parts

        rng = torch.Generator().manual_seed(0)
        rows = torch.randn(16, 40, generator=rng) * 10.0 ** torch.randint(-30, 30, (16, 1))
        rows[3, :4] = torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 2.0 - 2.0**-9, 1e-39])
        high, low, norms = packed_parts(rows)
        assert torch.equal(high, rows.bfloat16().float())
        assert torch.equal(low, (rows - high).bfloat16().float())
        rest = rows.double() - high.double() - low.double()
        for part, norm in zip((rows, low, rest), norms, strict=True):
            exact = part.double().norm(dim=1)
            assert bool(((norm >= exact) & (norm <= exact * (1 + 2.0**-18) + 2.0**-99)).all())


def test_an_emulated_sum_is_cut_towards_zero() -> None:
    import numpy as np

    from support.tensor_cores import multiply

    one, tiny = np.ones((1, 1)), np.full((1, 1), 2.0**-25)
    rows, columns = np.hstack([one, tiny, tiny]), np.ones((3, 1))
    assert multiply(rows, columns, [[0.0]])[0, 0] == 1.0
    assert multiply(rows, columns, [[0.0]], bits=26)[0, 0] == 1.0  # then cut to float32
    assert multiply(-rows, columns, [[0.5]], bits=26)[0, 0] == -0.5 - 2.0**-24
    assert multiply(rows[:, 1:], columns[1:], [[0.0]])[0, 0] == 2.0**-24

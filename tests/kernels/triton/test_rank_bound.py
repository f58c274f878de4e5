"""The sweep of the Triton backend errs by no more than its bound; run as test_rank.py is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast.kernels.scores import get_score
from support.flat import canonical_scores
from support.interpreted import fast_and_slow, others_are_slow, run_interpreted

pytest.importorskip("triton")

from support.triton_ranks import CAN_RUN, DEVICE, INTERPRETED, PLAIN_SCORES, few, on_gpu
from support.triton_sweep import swept_distances


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(600)
@fast_and_slow
def test_in_the_interpreter(marks: str) -> None:
    run_interpreted(__file__, "TestBound", marks)


@on_gpu
@pytest.mark.parametrize("score", others_are_slow(PLAIN_SCORES, "dot", "rotate"))
class TestBound:
    __test__ = CAN_RUN

    @given(
        shape=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 150)),
        scale=st.sampled_from([1.0, 1e-18, 1e15]),
        law=st.sampled_from(["normal", "log-normal", "cauchy", "near"]),
        is_double=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_the_sweep_stays_within_its_bound(
        self, score, shape, scale, law, is_double, seed
    ) -> None:
        num_queries, num_entities, dim = shape
        rng = torch.Generator().manual_seed(seed)
        width = dim * get_score(score).planes
        values = torch.randn(num_queries + num_entities, width, generator=rng).double()
        if law == "log-normal":
            values = values.sign() * (3 * values).exp()
        if law == "cauchy":
            values = (values * 1.5).tan()
        if law == "near":
            values = values[:1] + 1e-5 * values
        values = (values * scale).to(torch.float64 if is_double else torch.float32)
        queries, candidates = values[:num_queries].to(DEVICE), values[num_queries:].to(DEVICE)
        actual, allowed = swept_distances(score, queries, candidates)
        canonical = -canonical_scores(queries[:, None], candidates[None], score)
        finite = actual.isfinite()
        excess = (actual.double() - canonical).abs() - allowed(canonical)
        assert not bool((excess[finite] > 0).any())
        if scale == 1.0 and not is_double:
            assert bool(finite.all())

"""Counts of blocks of a table, against targets that are rows of another: they sum to the whole."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgfast.kernels.checks import NonFiniteError
from support.flat import Flat
from support.problems import make_problem, no_known, rscf_problem
from support.target_scores import assert_blocks_sum_to_the_whole

few = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@given(seed=st.integers(0, 2**31 - 1), nonfinite=st.booleans(), cuts=st.integers(0, 3))
@few
def test_blocks_sum_to_the_whole(backend, seed, nonfinite, cuts):
    problem = make_problem(seed, nonfinite)
    assert_blocks_sum_to_the_whole(Flat(backend), problem.args, problem.kwargs, cuts)


@pytest.mark.parametrize("score", ["rscf_l1", "rscf_rotate"])
def test_blocks_of_moved_queries_sum_to_the_whole(backend, score):
    args, kwargs = rscf_problem(score, seed=3)
    assert_blocks_sum_to_the_whole(Flat(backend), args, kwargs, 2)


def test_a_target_outside_whose_score_is_nan_ranks_below_all(backend):
    table, queries = torch.randn(7, 4), torch.randn(2, 4)
    scores = torch.tensor([[torch.nan, 0.0]], dtype=torch.float64)
    counted = Flat(backend).rank_counts(
        queries, table, torch.tensor([-1, -1]), *no_known(2), "dot", target_scores=scores
    )
    assert int(counted[0][0]) == 7
    assert int(counted[0][1]) == int((queries[1].double() @ table.double().T > 0).sum())


def test_queries_are_checked_where_no_target_is_scored(backend):
    queries = torch.tensor([[1.0, 0.0], [0.0, torch.inf]])
    scores = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(NonFiniteError, match="queries: row 1"):
        Flat(backend).rank_counts(
            queries, torch.randn(5, 2), torch.tensor([-1, 0]), *no_known(2), "dot",
            target_scores=scores,
        )  # fmt: skip


def test_given_scores_decide(backend):
    """Not those of the rows: what is compared is what was given."""
    table = torch.tensor([[1.0], [2.0], [3.0]])
    counted = Flat(backend).rank_counts(
        torch.ones(1, 1), table, torch.tensor([0]), *no_known(1), "dot",
        target_scores=torch.tensor([[2.0]], dtype=torch.float64),
    )  # fmt: skip
    assert [int(part) for part in counted[:2]] == [1, 1]

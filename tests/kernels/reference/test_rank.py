"""The specification of ranks against the oracle."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast.kernels.reference.canonical import rounded_sqrt
from kgfast.kernels.scores import get_score
from support import oracles
from support.engines import bits, examples
from support.flat import canonical_scores, reference
from support.problems import RSCF_SCORES, SCORES, problems


@given(st.one_of(problems(), problems(nonfinite=True)))
@examples(50)
def test_counts_equal_the_oracle(problem):
    queries, table, targets, indptr, indices, score = problem.args
    dims, subset = (problem.kwargs.get(name) for name in ("dims", "candidate_ids"))
    result = torch.stack(reference.rank_counts(*problem.args, **problem.kwargs), -2)
    known = [indices[a:b].tolist() for a, b in pairwise(indptr.tolist())]
    for row, dim in enumerate([None] if dims is None else dims):
        values = oracles.canonical_scores(
            queries, table, score, problem.kwargs.get("bias"), dim=dim
        )
        expected = oracles.counts(
            values, targets.tolist(), known, None if subset is None else subset.tolist()
        )
        assert (result if dims is None else result[row]).tolist() == expected


@pytest.mark.parametrize("has_factor", [False, True], ids=["no factor", "factor"])
@pytest.mark.parametrize("score", [*SCORES, *RSCF_SCORES])
def test_scores_are_those_of_the_oracle_to_the_last_bit(score, has_factor):
    generator, facts = torch.Generator().manual_seed(3), get_score(score)
    has_factor = has_factor and facts.is_rscf
    queries, table, factor = (
        torch.randn(rows, 33 * planes, generator=generator)
        for rows, planes in ((4, facts.query_planes(has_factor)), (9, facts.planes), (9, 1))
    )
    bias, factor = torch.randn(9, generator=generator), factor if has_factor else None
    found = canonical_scores(queries[:, None], table, score, bias, factor)
    expected = torch.from_numpy(oracles.canonical_scores(queries, table, score, bias, factor))
    assert torch.equal(bits(found), bits(expected))


def test_square_roots_are_correctly_rounded():
    values = torch.rand(50_000, dtype=torch.float64) * 10
    assert rounded_sqrt(values).tolist() == [math.sqrt(value) for value in values.tolist()]
    assert rounded_sqrt(torch.tensor(2.0, dtype=torch.float64)).item() == math.sqrt(2.0)

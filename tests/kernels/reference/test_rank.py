"""The specification against plain Python."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings

from kgfast.kernels.reference.canonical import rounded_sqrt
from kgfast.kernels.scores import get_score
from support import oracles
from support.flat import canonical_scores, reference
from support.problems import RSCF_SCORES, SCORES, no_known, problems


def lists_of(indptr: torch.Tensor, indices: torch.Tensor) -> list[list[int]]:
    return [
        indices[a:b].tolist() for a, b in zip(indptr.tolist(), indptr.tolist()[1:], strict=False)
    ]


@given(problems())
@settings(max_examples=60)
def test_counts_equal_the_oracle(problem):
    queries, table, targets, indptr, indices, score = problem.args
    if len(table) * len(queries) * table.shape[1] > 40_000:
        queries, targets, indptr = queries[:1], targets[:1], indptr[:2]
        indices = indices[: int(indptr[-1])]
    kwargs = dict(problem.kwargs)
    dims = kwargs.pop("dims", None)
    kwargs.pop("nan_worst")
    result = reference.rank_counts(
        queries, table, targets, indptr, indices, score, dims=dims, **kwargs
    )
    subset = kwargs.pop("candidate_ids", None)
    for row, dim in enumerate([None] if dims is None else dims):
        expected = oracles.rank_counts(
            queries,
            table,
            targets,
            lists_of(indptr, indices),
            score,
            dim=dim,
            candidate_ids=None if subset is None else subset.tolist(),
            **kwargs,
        )
        counts = torch.stack([it if dims is None else it[row] for it in result], 1)
        assert counts.tolist() == [list(it) for it in expected]


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_those_of_the_oracle_to_the_last_bit(score):
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(4, 66, generator=generator)
    table = torch.randn(9, 66, generator=generator)
    bias = torch.randn(9, generator=generator)
    scores = canonical_scores(queries[:, None], table, score, bias)
    for b in range(4):
        for n in range(9):
            q, c = queries[b].double().tolist(), table[n].double().tolist()
            expected = oracles.canonical(q, c, score, bias[n].double().item())
            assert struct.pack("d", scores[b, n].item()) == struct.pack("d", expected)


@pytest.mark.parametrize("score", RSCF_SCORES)
def test_ranks_of_moved_queries_follow_the_dense_scores(score):
    """Complex arithmetic by the equations of the paper."""
    generator, facts = torch.Generator().manual_seed(0), get_score(score)
    queries, table, factor = (
        torch.randn(rows, 5 * planes, generator=generator, dtype=torch.float64)
        for rows, planes in ((4, facts.query_planes(True)), (9, facts.planes), (9, 1))
    )
    targets = torch.tensor([0, 3, 8, 2])
    for dim in (3, 5):
        exact = oracles.dense_scores(queries[:, None], table, score, dim=dim, factor=factor)
        wanted = (exact > exact.gather(1, targets[:, None])).sum(1)
        given = queries, table, targets, *no_known(4), score
        assert torch.equal(reference.rank_counts(*given, factor=factor, dims=[dim])[0][0], wanted)


def test_square_roots_are_correctly_rounded():
    values = torch.rand(50_000, dtype=torch.float64) * 10
    assert rounded_sqrt(values).tolist() == [math.sqrt(value) for value in values.tolist()]
    assert rounded_sqrt(torch.tensor(2.0, dtype=torch.float64)).item() == math.sqrt(2.0)


def test_flushed_denormals_do_not_change_the_reference():
    table = torch.full((4, 2), 1e-40)
    table[1] = 2e-40
    args = (torch.zeros(1, 2), table, torch.tensor([0]), *no_known(1), "l1")
    before = reference.rank_counts(*args)
    assert [it.item() for it in before] == [0, 2, 0, 0]
    assert torch.set_flush_denormal(True)
    try:
        after = reference.rank_counts(*args)
        still_flushing = torch.tensor(1e-310, dtype=torch.float64) * 1 == 0
    finally:
        torch.set_flush_denormal(False)
    assert [it.item() for it in after] == [it.item() for it in before]
    assert still_flushing

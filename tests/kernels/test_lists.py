"""Candidates that each query names itself: what the specification says of each query alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast.kernels import lists
from kgfast.kernels.operands import Lists
from support.engines import ISAS, assert_same, engines, examples
from support.lists import expected_best, expected_counts, random_lists
from support.problems import RSCF_SCORES, SCORES, make_problem, no_known

SEEDS = st.integers(0, 2**31 - 1)
ENGINES = ("reference", *ISAS, "baseline", "triton")


@engines(*ENGINES, quick=True)
@given(
    seed=SEEDS,
    nonfinite=st.booleans(),
    k=st.sampled_from([1, 4, 300]),
    served=st.sampled_from([SCORES, SCORES, RSCF_SCORES]),
)
@examples(10, 2)
def test_every_engine_gives_what_each_list_alone_gives(engine, seed, nonfinite, k, served):
    problem = make_problem(seed, nonfinite, served=served)
    args, options = problem.args, problem.kwargs
    options.pop("candidate_ids", None)
    queries, table, targets, *known, score = args
    own = random_lists(len(queries), len(table), seed % 1000, targets)
    best_args = (queries, table, k, *known, score)
    counts = expected_counts(args, own, **options)
    best = expected_best(best_args, own, **options)
    assert_same(engine.rank_counts(*args, lists=own, **options), counts, problem)
    found = engine.topk(*best_args, lists=own, **options)
    assert_same(found, best, problem, zeros_have_signs=not engine.is_triton)


@engines(*ISAS, "baseline", scores=SCORES)
def test_every_instruction_set_decides_near_ties(engine, score):
    """Rows within some roundings of the target's: no float32 pass can tell them apart."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(3, 150, generator=generator)
    table = torch.randn(1, 150, generator=generator) + 1e-6 * torch.randn(
        300, 150, generator=generator
    )
    table[::7] = table[1]
    targets = torch.tensor([0, 1, 299])
    own = random_lists(3, 300, 1)
    args = (queries, table, targets, torch.tensor([0, 2, 2, 2]), torch.tensor([5, 7]), score)
    assert_same(engine.rank_counts(*args, lists=own), expected_counts(args, own))


@engines("reference", *ISAS, "triton")
def test_what_is_not_finite_is_named_where_it_takes_part(engine):
    table = torch.zeros(6, 4)
    table[4, 1] = torch.inf
    args = (table[:2], table, torch.tensor([0, 1]), *no_known(2), "l1")
    own = random_lists(2, 4, 0)
    engine.rank_counts(*args, lists=own)
    with pytest.raises(ValueError, match="candidates: row 4 holds a NaN or an infinity"):
        engine.rank_counts(*args, lists=own._replace(indices=own.indices + 1))


@engines("reference", *ISAS)
def test_long_lists_are_counted_in_parts(engine, monkeypatch):
    """Lists have more pairs than are scored together, or than a task of the CPU's holds."""
    monkeypatch.setattr(lists, "PAIRS", 50)
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(-2, 3, (3000, 4), generator=generator).float()
    one, other = (torch.randperm(3000, generator=generator)[:it] for it in (2999, 2990))
    ids = torch.cat([one, torch.tensor([5]), other])
    own = Lists(torch.tensor([0, 2999, 3000, 5990]), ids)
    args = (table[:3], table, torch.tensor([0, 5, 9]), *no_known(3), "l1")
    expected = expected_counts(args, own)
    best = expected_best((*args[:2], 7, *args[3:]), own)
    assert_same(engine.rank_counts(*args, lists=own), expected)
    assert_same(engine.topk(*args[:2], 7, *args[3:], lists=own), best)

"""Candidates that each query names itself: what the specification says of each query alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu, lists
from kgfast.kernels.operands import Lists
from support.flat import Flat
from support.lists import expected_best, expected_counts, random_lists
from support.problems import RSCF_SCORES, SCORES, make_problem, rscf_problem

SEEDS = st.integers(0, 2**31 - 1)
BACKENDS = ["reference", *(["cpu"] if cpu.is_available() else [])]


def check(seed: int, *, nonfinite: bool = False, rscf: str | None = None, k: int = 3) -> None:
    """Both consumers on both backends."""
    if rscf is None:
        problem = make_problem(seed, nonfinite)
        args, options = problem.args, dict(problem.kwargs)
    else:
        args, options = rscf_problem(rscf, seed, nonfinite=nonfinite)
    options.pop("candidate_ids", None)
    queries, table, targets, *known, score = args
    own = random_lists(len(queries), len(table), seed % 1000, targets)
    best_args = (queries, table, k, *known, score)
    counts = expected_counts(args, own, **options)
    best = expected_best(best_args, own, **options)
    for name in BACKENDS:
        found = Flat(name).list_counts(*args, lists=own, **options)
        assert all(map(torch.equal, found, counts)), f"{name}: counts of {seed}"
        scores, ids = Flat(name).list_topk(*best_args, lists=own, **options)
        assert torch.equal(ids, best[1]), f"{name}: ids of {seed}"
        assert scores.dtype == best[0].dtype
        assert torch.equal(scores.nan_to_num(nan=7.0), best[0].nan_to_num(nan=7.0))


@given(seed=SEEDS, k=st.sampled_from([1, 4, 300]))
@settings(max_examples=15)
def test_every_backend_gives_what_each_list_alone_gives(seed, k):
    check(seed, k=k)


@given(seed=SEEDS)
@settings(max_examples=8)
def test_nan_and_infinities_rank_last(seed):
    check(seed, nonfinite=True)


@pytest.mark.parametrize("score", RSCF_SCORES)
@given(seed=SEEDS, nonfinite=st.booleans())
@settings(max_examples=3)
def test_rscf_scores(score, seed, nonfinite):
    check(seed, nonfinite=nonfinite, rscf=score)


@pytest.mark.slow
@given(seed=SEEDS, nonfinite=st.booleans())
@settings(max_examples=300)
def test_many_lists(seed, nonfinite):
    check(seed, nonfinite=nonfinite)


@pytest.mark.parametrize("score", SCORES)
def test_every_instruction_set_decides_near_ties(score, isa):
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
    counts = Flat("cpu").list_counts(*args, lists=own)
    assert all(map(torch.equal, counts, expected_counts(args, own)))


def test_long_lists_are_counted_in_parts(monkeypatch):
    """Of more pairs than are scored together, and of more than a task of the CPU's holds."""
    monkeypatch.setattr(lists, "PAIRS", 50)
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(-2, 3, (3000, 4), generator=generator).float()
    own = Lists(
        torch.tensor([0, 2999, 3000, 5990]),
        torch.cat(
            [
                torch.randperm(3000, generator=generator)[:2999],
                torch.tensor([5]),
                torch.randperm(3000, generator=generator)[:2990],
            ]
        ),
    )
    none = torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    args = (table[:3], table, torch.tensor([0, 5, 9]), *none, "l1")
    expected = expected_counts(args, own)
    best = expected_best((*args[:2], 7, *args[3:]), own)
    for name in BACKENDS:
        assert all(map(torch.equal, Flat(name).list_counts(*args, lists=own), expected))
        found = Flat(name).list_topk(*args[:2], 7, *args[3:], lists=own)
        assert all(map(torch.equal, found, best))

"""Two rankings of the same triples: the table, the p-values against all signs, the refusals."""

import itertools

import pytest
import torch
from scipy import stats

import kgfast
from kgfast.eval import intervals
from kgfast.eval.metrics import METRICS
from kgfast.eval.ranks import Ranks


def ranks_of(greater, sides=("tail",), candidates=50, triples=None):
    greater = torch.as_tensor(greater)
    greater = greater[:, None] if greater.ndim == 1 else greater
    none = torch.zeros_like(greater)
    if triples is None:
        triples = torch.arange(3 * len(greater)).view(-1, 3)
    return Ranks(greater, none, none + candidates, sides, triples)


GENERATOR = torch.Generator().manual_seed(0)
A, B = (torch.randint(0, 30, (60,), generator=GENERATOR) for _ in range(2))


def test_values_and_counts():
    a, b = ranks_of(A), ranks_of(B)
    found = kgfast.compare(a, b, samples=100)
    assert list(found) == [metric.name for metric in METRICS if metric.is_mean]
    for name, it in found.items():
        assert it.a == pytest.approx(a.metrics()[name], rel=1e-12)
        assert it.b == pytest.approx(b.metrics()[name], rel=1e-12)
        assert it.difference == pytest.approx(it.b - it.a, rel=1e-9, abs=1e-15)
        assert it.low <= it.difference <= it.high
    assert (found.better, found.equal, found.worse) == (
        int((B < A).sum()),
        int((A == B).sum()),
        int((B > A).sum()),
    )


def test_p_values_are_those_of_all_signs():
    a, b = torch.randint(0, 9, (10,)), torch.randint(0, 9, (10,))
    difference = 1 / (1 + b.double()) - 1 / (1 + a.double())
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=10)), dtype=torch.float64)
    extreme = (signs @ difference).abs() >= difference.sum().abs() - 1e-12
    found = kgfast.compare(ranks_of(a), ranks_of(b), samples=40_000)["mrr"].p_value
    assert found == pytest.approx(float(extreme.double().mean()), abs=0.02)


def test_a_model_against_itself_and_against_a_better_one():
    same = kgfast.compare(ranks_of(A), ranks_of(A), samples=50)
    assert all(it.p_value == 1.0 and it.difference == 0 for it in same.values())
    better = kgfast.compare(ranks_of(A + 5), ranks_of(A), samples=999)
    assert better["mrr"].p_value == 0.001  # the differences as they are count as a sample
    assert better["mrr"].low > 0
    assert better["mr"].high < 0


def test_the_seed_alone_decides(monkeypatch):
    first = kgfast.compare(ranks_of(A), ranks_of(B), samples=300)
    monkeypatch.setattr(intervals, "_DRAWN", 130)
    assert kgfast.compare(ranks_of(A), ranks_of(B), samples=300) == first
    assert kgfast.compare(ranks_of(A), ranks_of(B), samples=300, seed=1) != first


def test_triples_are_compared_by_names():
    names = [f"e{i}" for i in range(180)]
    old, new, lacking = map(kgfast.Vocabulary, (names, names[::-1], ["new", *names[-2::-1]]))
    ids = torch.arange(180).view(-1, 3)
    one = kgfast.Triples(ids, entities=old, relations=old)
    mixed = kgfast.Triples(179 - ids, entities=new, relations=new)
    found = kgfast.compare(ranks_of(A, triples=one), ranks_of(B, triples=mixed), samples=50)
    assert found == kgfast.compare(ranks_of(A), ranks_of(B), samples=50)
    other = kgfast.Triples(179 - ids, entities=lacking, relations=new)
    with pytest.raises(ValueError, match=r"row 59: the triple is .*179\] in a, .*-1\] in b"):
        kgfast.compare(ranks_of(A, triples=one), ranks_of(B, triples=other), samples=50)


OTHER = torch.arange(180).view(-1, 3).clone()
OTHER[7] = torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (ranks_of(A[:-1]), "a has 60 triples, b 59: rank the same ones with both"),
        (ranks_of(A, ("head",)), "a has the sides tail, b head"),
        (ranks_of(A, triples=OTHER), r"row 7: the triple is \[21, 22, 23\] in a, \[1, 2, 3\] in b"),
        (ranks_of(A, candidates=49), r"number of candidates is \[50\] in a, \[49\] in b"),
    ],
)
def test_what_cannot_be_compared(b, message):
    with pytest.raises(ValueError, match=message):
        kgfast.compare(ranks_of(A), b)


def test_several_runs_are_compared_by_welchs_test():
    groups = [
        [ranks_of(torch.randint(0, most, (60,), generator=GENERATOR)) for _ in range(count)]
        for most, count in ((30, 3), (24, 5))
    ]
    found = kgfast.compare(*groups, confidence=0.9, hits=(1, 10))
    assert list(found) == ["mrr", "mr", "hits@1", "hits@10"]
    for name, row in found.items():
        a, b = ([ranks.metrics()[name] for ranks in runs] for runs in groups)
        welch = stats.ttest_ind(b, a, equal_var=False)
        low, high = welch.confidence_interval(0.9)
        expected = (sum(a) / 3, sum(b) / 5, sum(b) / 5 - sum(a) / 3, low, high, welch.pvalue)
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    a, b = (torch.stack([each.greater for each in runs]).double().mean(0) for runs in groups)
    counts = [int(of.sum()) for of in (b < a, b == a, b > a)]
    assert [found.better, found.equal, found.worse] == counts


def test_runs_without_spread():
    same, other = [ranks_of(A)] * 2, [ranks_of(B)] * 2
    assert kgfast.compare(same, same)["mrr"].p_value == 1.0
    found = kgfast.compare(same, other)["mrr"]
    assert (found.low, found.high, found.p_value) == (found.difference, found.difference, 0.0)


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        ([ranks_of(A)], [ranks_of(B)] * 2, ValueError, "a must have the ranks of two runs or more"),
        ([ranks_of(A[:0])] * 2, [ranks_of(B[:0])] * 2, ValueError, "no triples to compare"),
        ([ranks_of(A)] * 2, ranks_of(B), TypeError, "a must be Ranks; got list"),
        ({4: ranks_of(A)}, {4: ranks_of(B)}, TypeError, "got groups: compare one of each"),
        ([ranks_of(A)] * 2, [ranks_of(B), ranks_of(B[:9])], ValueError, "a has 60 triples, b 9"),
    ],
)
def test_runs_that_do_not_fit(a, b, error, message):
    with pytest.raises(error, match=message):
        kgfast.compare(a, b)

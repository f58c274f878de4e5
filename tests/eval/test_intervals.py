"""Intervals of metrics, against a bootstrap that draws one sample after the other."""

import math
import sys

import numpy as np
import pytest
import torch

from kgfast.eval import intervals
from kgfast.eval.metrics import METRICS
from kgfast.eval.ranks import Ranks
from support.forked import printed_by

NAMES = [metric.name for metric in METRICS if metric.in_tables]


def ranks_of(count, sides=("head", "tail"), seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, len(sides))
    greater = torch.randint(0, 40, shape, generator=generator)
    equal = torch.randint(0, 3, shape, generator=generator)
    candidates = torch.randint(60, 90, shape, generator=generator)
    triples = torch.stack([torch.arange(count), torch.arange(count) % 3, torch.arange(count)], 1)
    return Ranks(greater, equal, candidates, sides, triples)


def one_by_one(ranks, samples, seed, rank_type="realistic"):
    """Metrics of each sample, [samples, metrics], by ranks that repeat their triples."""
    found = []
    for rows in torch.cat(list(intervals.draws(len(ranks), samples, seed))):
        found.append(list(ranks._part(rows).metrics(rank_type).values()))
    return np.array(found)


@pytest.mark.parametrize("sides", [("head", "tail"), ("tail",)])
@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_percentiles_of_the_metrics_of_drawn_triples(count, sides):
    ranks = ranks_of(count, sides)
    found = ranks.intervals(samples=40, seed=3, confidence=0.8)
    assert list(found) == NAMES
    metrics = one_by_one(ranks, 40, 3)
    for column, (name, interval) in enumerate(found.items()):
        low, high = np.quantile(metrics[:, column], [0.1, 0.9])
        assert interval.value == ranks.metrics()[name]
        assert interval.low == pytest.approx(low, rel=1e-12), name
        assert interval.high == pytest.approx(high, rel=1e-12), name


@pytest.mark.parametrize("at_once", [1, 7, 30, 100])
def test_pieces_change_nothing(monkeypatch, at_once):
    ranks = ranks_of(30)
    expected, metrics = ranks.intervals(samples=40), ranks.metrics()
    monkeypatch.setattr(intervals, "_DRAWN", at_once)
    monkeypatch.setattr("kgfast.eval.ranks._ROWS", at_once)
    assert ranks.metrics() == metrics
    for name, interval in ranks.intervals(samples=40).items():
        assert interval == pytest.approx(expected[name], rel=1e-12), name


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark of Linux")
def test_memory_of_a_million_triples():
    """In a process of its own; no rank is there twice."""
    script = """
        import ctypes

        import torch
        from kgfast.eval.ranks import Ranks
        from support.memory import PeakMemory

        torch.set_num_threads(1)
        ctypes.CDLL(None).mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD: freed blocks leave the process
        greater = torch.randperm(2_000_000).view(-1, 2)
        none, candidates = greater * 0, torch.full_like(greater, 2_000_000)
        triples = torch.zeros(1_000_000, 3, dtype=torch.int64)
        ranks = Ranks(greater, none, candidates, ("head", "tail"), triples)
        ranks._part(slice(50)).intervals(samples=5)  # libraries that it loads
        with PeakMemory("cpu") as peak:
            ranks.intervals(samples=6)
        print(peak.bytes)
    """
    large = int(printed_by(script, timeout=300))
    assert large <= 256 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads the high-water mark of Linux")
def test_memory_does_not_grow_with_the_samples():
    script = """
        import ctypes

        import torch
        import kgfast
        from kgfast.eval.ranks import Ranks
        from support.memory import PeakMemory

        torch.set_num_threads(1)
        ctypes.CDLL(None).mallopt(-3, 1 << 17)  # M_MMAP_THRESHOLD: freed blocks leave the process
        greater = torch.randint(0, 1000, (100_000, 2))
        none, candidates = torch.zeros_like(greater), torch.full_like(greater, 1000)
        triples = torch.zeros(100_000, 3, dtype=torch.int64)
        a, b = (Ranks(it, none, candidates, ("head", "tail"), triples) for it in (greater, none))
        for call in (a.intervals, lambda samples: kgfast.compare(a, b, samples=samples)):
            call(samples=10)
            with PeakMemory("cpu") as few:
                call(samples=10)
            with PeakMemory("cpu") as many:
                call(samples=100)
            print(few.bytes, many.bytes)
    """
    for line in printed_by(script, timeout=300).splitlines():
        few, many = map(int, line.split())
        assert many <= few + (8 << 20)


def test_of_no_triples():
    found = ranks_of(0).intervals()
    assert list(found) == NAMES
    assert all(math.isnan(part) for interval in found.values() for part in interval)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"confidence": 1.0}, "confidence must lie between 0 and 1; got 1.0"),
        ({"confidence": float("nan")}, "confidence must lie between 0 and 1; got nan"),
        ({"samples": 1}, "samples must be an integer of at least 2; got 1"),
        ({"rank_type": "best"}, "rank_type must be one of"),
    ],
)
def test_errors(keywords, message):
    with pytest.raises(ValueError, match=message):
        ranks_of(5).intervals(**keywords)


def test_macro_means_count_every_relation_once():
    ranks = ranks_of(31)
    groups = ranks.by("relation")
    macro = groups.macro()
    for name in NAMES:
        assert macro[name] == pytest.approx(
            sum(one.metrics()[name] for one in groups.values()) / 3, rel=1e-15
        )
    assert macro["mrr"] != ranks.mrr
    assert groups.macro("optimistic")["mrr"] > macro["mrr"] > groups.macro("pessimistic")["mrr"]
    with pytest.raises(ValueError, match="no ranks to group by relation"):
        ranks_of(0).by("relation").macro()

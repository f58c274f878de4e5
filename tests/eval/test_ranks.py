"""The result object: metrics by hand, groups, frames and tables."""

import math
import weakref

import numpy as np
import pytest
import torch

from kgfast import KnownTriples, Triples, Vocabulary, compare, rank
from kgfast.eval.ranks import Ranks
from kgfast.models import TransE


def ranks_of(greater, equal=None, candidates=10, sides=("tail",), triples=None) -> Ranks:
    greater = torch.tensor(greater).reshape(-1, len(sides))
    equal = (
        torch.zeros_like(greater) if equal is None else torch.tensor(equal).reshape(-1, len(sides))
    )
    count = torch.full_like(greater, candidates)
    triples = torch.zeros(len(greater), 3, dtype=torch.int64) if triples is None else triples
    return Ranks(greater, equal, count, sides, triples)


def test_metrics_by_hand():
    ranks = ranks_of([0, 1, 4, 9], candidates=19)  # ranks 1, 2, 5, 10
    assert ranks.mrr == pytest.approx((1 + 1 / 2 + 1 / 5 + 1 / 10) / 4)
    assert ranks.mr == 4.5
    metrics = ranks.metrics()
    assert metrics["median_rank"] == 3.5
    assert [ranks.hits(k) for k in (1, 3, 10)] == [0.25, 0.5, 1.0]
    assert metrics["amr"] == pytest.approx(4.5 / 10)
    assert metrics["amri"] == pytest.approx(1 - 3.5 / 9)


def test_rank_types():
    ranks = ranks_of([2], [2])
    assert ranks.metrics("optimistic")["mr"] == 3
    assert ranks.metrics("realistic")["mr"] == 4
    assert ranks.metrics("pessimistic")["mr"] == 5
    assert ranks.hits(3) == 0.0
    assert ranks.hits(3, "optimistic") == 1.0
    with pytest.raises(ValueError, match="rank_type must be one of"):
        ranks.metrics("average")
    with pytest.raises(ValueError, match="k must be at least 1"):
        ranks.hits(0)


def test_memory_goes_when_ranks_go():
    """Without the collector of cycles."""
    ranks = ranks_of([0, 1, 4, 9])
    assert ranks.raw is ranks
    counts = weakref.ref(ranks.greater)
    del ranks
    assert counts() is None


def test_an_empty_result_is_all_nan():
    metrics = ranks_of([]).metrics()
    assert metrics
    assert all(math.isnan(value) for value in metrics.values())


def ranked() -> Ranks:
    entities = Vocabulary(["a", "b", "c", "d"])
    relations = Vocabulary(["likes", "knows"])
    train = [(0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 1, 2)]
    test = Triples([(0, 0, 1), (1, 1, 2), (2, 1, 0)], entities=entities, relations=relations)
    model = TransE(torch.tensor([[0.0], [1.0], [2.0], [4.0]]), torch.zeros(2, 1))
    return rank(model, test, known=KnownTriples(train))


def test_by_relation():
    groups = ranked().by("relation")
    assert list(groups) == ["likes", "knows"]
    assert len(groups["knows"]) == 2
    assert torch.equal(groups["likes"].raw.greater, ranked().raw.greater[:1])
    assert "Ranks by relation" in repr(groups)
    assert "knows" in repr(groups)
    assert groups.metrics()["knows"]["count"] == 4
    assert groups.to_frame().loc["likes", "count"] == 2


def test_by_cardinality():
    groups = ranked().by("cardinality")
    assert {name: len(ranks) for name, ranks in groups.items()} == {"1-1": 2, "1-N": 1}


def test_by_frequency():
    # Known triples touch a: 3, b: 2, c: 2, d: 1 times; every target falls into 1-9.
    groups = ranked().by("frequency")
    assert list(groups) == ["1-9"]
    assert groups["1-9"].greater.numel() == 6
    assert groups["1-9"].mr == pytest.approx(ranked().mr)


def test_groups_that_cannot_be():
    with pytest.raises(ValueError, match="grouping must be one of"):
        ranked().by("entity")
    with pytest.raises(ValueError, match="needs the known triples"):
        ranks_of([0]).by("cardinality")


def test_fronts_take_any_hits():
    """A new metric reaches every front in test_metrics.py."""
    ranks, hits = ranked(), (1, 5)
    for found in (
        ranks.metrics(hits=hits),
        ranks.intervals(samples=5, hits=hits),
        ranks.by("relation").macro(hits=hits),
        ranks.by("cardinality").to_frame(hits=hits),
        compare(ranks, ranks, samples=5, hits=hits),
        ranks._part(slice(0)).intervals(samples=5, hits=hits),
    ):
        assert [name for name in found if name.startswith("hits")] == ["hits@1", "hits@5"]
    for table in (ranks.table(hits=hits), ranks.by("relation").table(hits=hits)):
        assert "hits@5" in table
        assert "hits@10" not in table
    assert list(ranks.metrics(hits=[5, 5, np.int64(1)])) == list(ranks.metrics(hits=(5, 1)))
    for k, kind in {0: ValueError, True: TypeError, 2.0: TypeError, "5": TypeError}.items():
        with pytest.raises(kind, match="k must be"):
            compare(ranks, ranks, hits=[k])
    with pytest.raises(TypeError, match=r"hits must be a sequence of int, such as \(1, 5\); got 5"):
        ranks.metrics(hits=5)

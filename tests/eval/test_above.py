"""above(): its result, and what bad input gets; what it finds is held in test_sources.py."""

import pytest
import torch

from kgfast import AnswersAbove, KnownTriples, TransE, TypeConstraints, above
from kgfast.eval.searches import AboveSoFar
from support.ranked_models import MODELS

NAMES = (["ann", "bob", "cat"], ["near"])
MODEL = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))


def test_a_result_is_listed_by_query_and_by_id():
    found = above(MODEL, torch.tensor([-1.0, 0.5]), heads=[0, 1], relations=0, vocabulary=NAMES)
    assert isinstance(found, AnswersAbove)
    assert (len(found), found.side, found.heads.tolist()) == (2, "tail", [0, 1])
    assert (found.indptr.tolist(), found.ids.tolist()) == ([0, 2, 2], [0, 1])
    assert found[0] == [("ann", -1.0), ("bob", 0.0)]
    assert found[-1] == []
    lines = repr(found).splitlines()
    assert lines == [
        "2 answers to 2 tail queries",
        "(ann, near, ?)  ann -1, bob 0",
        "(bob, near, ?)",
    ]
    with pytest.raises(IndexError):
        found[2]


def test_columns_have_a_row_for_each_answer():
    found = above(MODEL, -1.0, tails=[2, 0], relations="near", vocabulary=NAMES)
    columns = found.columns()
    assert columns["query"] == [0, 0, 1]
    assert list(columns["head"]) == ["bob", "cat", "ann"]
    assert columns["score"].tolist() == [-1.0, -1.0, -1.0]
    frame = pytest.importorskip("pandas") and found.to_frame()
    assert frame.index.tolist() == [0, 0, 1]


def test_known_answers_are_left_out():
    known = KnownTriples([(0, 0, 1)])
    assert above(MODEL, -9.0, heads=0, relations=0, known=known).ids.tolist() == [0, 2]
    types = TypeConstraints.from_triples([(0, 0, 2), (1, 0, 1)])
    assert above(MODEL, -9.0, heads=0, relations=0, candidate_ids=types).ids.tolist() == [1, 2]


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize(
    ("error", "threshold", "options", "message"),
    [
        (ValueError, torch.tensor([0.0, torch.nan]), {}, r"threshold\[1\] must be a number or an"),
        (ValueError, float("nan"), {}, r"threshold\[0\] must be a number or an infinity; got nan"),
        (ValueError, torch.zeros(3), {}, r"threshold must be one number, or have shape \[2\]"),
        (TypeError, torch.zeros(2).long(), {}, "threshold must be floating point"),
        (TypeError, "high", {}, "threshold must be a number, or a tensor of one for each query"),
        (TypeError, 0.0, {"max_results": 1.5}, "max_results must be an int; got 1.5"),
        (ValueError, 0.0, {"candidate_ids": torch.tensor([[0], [1]])}, "takes the same"),
        (ValueError, 0.0, {"max_results": 0}, "max_results must be at least 1; got 0"),
        (ValueError, -9.0, {"max_results": 5}, "at least the number of results, 6; got 5"),
        (ValueError, -9.0, {"max_memory": "1MiB"}, "max_memory is only for models with"),
    ],
)
def test_what_is_wrong_is_named(batch_size, error, threshold, options, message):
    with pytest.raises(error, match=message):
        above(MODEL, threshold, heads=[0, 1], relations=0, batch_size=batch_size, **options)


def test_answers_that_find_no_room_are_counted_and_not_kept(monkeypatch):
    kept = []
    original = AboveSoFar.take

    def take(self, block):
        original(self, block)
        kept.append(sum(len(it.ids) for it in self.pieces))

    monkeypatch.setattr(AboveSoFar, "take", take)
    model = MODELS["distmult"](50, 2, 4, 0)
    asked = {"heads": list(range(20)), "relations": 0, "batch_size": 2, "max_results": 250}
    with pytest.raises(ValueError, match="the number of results, 1,000; got 250"):
        above(model, -1e9, **asked)
    assert kept == [100, 100] + [0] * 8

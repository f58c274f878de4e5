"""Results on a screen of 80 columns."""

import re

import pytest
import torch

import kgfast
from kgfast import Predictions, Triples, Vocabulary, rank, topk
from kgfast.eval.metrics import table_of
from kgfast.eval.ranks import GroupedRanks
from kgfast.text import WIDTH


def model(entities=30, relations=3):
    return kgfast.RotatE.init(entities, relations, 4, seed=0)


def some(count=12):
    generator = torch.Generator().manual_seed(0)
    columns = (torch.randint(n, (count,), generator=generator) for n in (30, 3, 30))
    return torch.stack(list(columns), 1)


def long_names(kind, count):
    return Vocabulary(
        [f"/{kind}/with a <name> that & goes on, on and on/{i}" for i in range(count)]
    )


def widest(value):
    return max(len(line) for line in repr(value).splitlines())


def test_ranks_fit_a_screen_of_80_columns():
    assert widest(rank(model(), some())) <= WIDTH
    large = {"mrr": 0.25, "mr": 123456.7, "median_rank": 123456.5, "hits@1": 0.1, "amri": -0.0123}
    lines = table_of(dict.fromkeys(("head", "x" * 200), large)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0].split() == ["mrr", "mr", "median", "hits@1", "amri"]


def test_a_dict_of_ranks_prints_as_one_table():
    found = rank(model(), some(), dims=[2, 4])
    assert isinstance(found, dict)
    assert list(found) == [2, 4]
    lines = repr(found).splitlines()
    assert lines[0] == "Ranks by dim, raw, realistic"  # no triples are known
    assert [line.split()[0] for line in lines[2:4]] == ["2", "4"]
    assert f"{found[2].mrr:.4f}" in lines[2]
    assert widest(found) <= WIDTH
    assert found.metrics()[4]["mrr"] == found[4].mrr
    assert repr(GroupedRanks("dim", {})) == "No ranks"


CONTROLS = ["\0", "\a", "\b", "\t", "\n", "\r", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u202e"]
CONTROLS += ["\u2066", "\ud800"]


@pytest.mark.parametrize("control", CONTROLS)
def test_control_characters_of_names_are_shown_escaped(control):
    evil = f"a{control}[2Jb"
    names = [Vocabulary([f"{evil}{i}" for i in range(count)]) for count in (30, 3)]
    triples = Triples(some(), entities=names[0], relations=names[1])
    ranks = rank(model(), triples)
    top = topk(model(), heads=range(3), relations=0, k=2, vocabulary=names)
    facts = kgfast.top_facts(model(), k=3, heads=range(3), vocabulary=names)
    same = kgfast.compare(ranks, ranks, names=(evil, "b"), samples=10)
    for found in (ranks.by("relation"), top, facts, same):
        assert control not in repr(found).replace("\n", "")
        assert f"\\u{ord(control):04x}[2Jb" in repr(found)
    assert all(len(line.splitlines()) == 1 for line in repr(top).split("\n"))
    assert control not in repr(names[0])
    assert control in top[0][0][0]
    assert control in facts.columns()["head"][0]


@pytest.mark.parametrize("k", [1, 3, 12])
def test_predictions_fit_a_screen_of_80_columns(k):
    top = topk(model(), heads=range(7), relations=0, k=k)
    names = long_names("entity", 30), long_names("relation", 3)
    named = topk(model(), heads=range(7), relations=0, k=k, vocabulary=names)
    for shown in (top, named, topk(model(), tails=range(7), relations=0, k=k)):
        assert widest(shown) <= WIDTH
        assert all(re.search(r"\)  \S", line) for line in repr(shown).splitlines()[1:6])
    assert (", ..." in repr(top)) == (k > 4)


def test_predictions_that_run_out_of_answers():
    top = Predictions(
        torch.tensor([[1.0, -torch.inf], [-torch.inf, -torch.inf]]),
        torch.tensor([[4, -1], [-1, -1]]),
        torch.tensor([0, 1]),
        torch.tensor([0, 0]),
        "tail",
    )
    assert repr(top).splitlines()[1:] == ["(0, 0, ?)  4 1", "(1, 0, ?)"]

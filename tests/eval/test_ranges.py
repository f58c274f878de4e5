"""Counts of ranges against rank(): whoever counts them, in whatever order."""

import copy
from functools import partial

import pytest
import torch

import kgfast
from kgfast.distributed import count_range, merge
from kgfast.eval import rows
from kgfast.tables import Shard
from support.shared_out import FileTable, example, model_of
from support.streamed import same

SPANS = [(0, 13), (13, 13), (13, 90), (90, 97)]


def test_only_known_answers_of_the_range_are_asked_for(monkeypatch):
    asked = []

    def exclude(self, *args, within=None, **others):
        asked.append(within)
        return original(self, *args, within=within, **others)

    original = kgfast.KnownTriples.exclude
    monkeypatch.setattr(kgfast.KnownTriples, "exclude", exclude)
    graph, model = example(), model_of("DistMult")
    count_range(model, graph.hrt, 13, 90, known=graph.known)
    assert set(asked) == {(13, 90)}


def test_rows_of_a_file_are_read_in_blocks(monkeypatch):
    graph, model = example(), model_of("ComplEx")
    table = FileTable(model.entity.detach())
    monkeypatch.setattr(rows, "PART_BYTES", 10 * 8 * 4)
    own = kgfast.ComplEx(table, model.relation)
    parts = [count_range(own, graph.hrt, *span, known=graph.known) for span in SPANS]
    same(merge(parts), kgfast.rank(model, graph.hrt, known=graph.known))
    assert 0 < table.longest <= 10


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 50), (60, 97)], "no process holds rows 50 .. 59 of 97"),
        ([(0, 50), (50, 90)], "no process holds rows 90 .. 96 of 97"),
        ([(0, 50), (40, 97)], "rows 40 .. 49 of 97 are in two parts"),
        ([(0, 97), (20, 30)], "rows 20 .. 29 of 97 are in two parts"),
        ([], "at least one range"),
    ],
)
def test_ranges_that_do_not_cover_the_table(spans, message):
    graph, model = example(), model_of("TransE")
    parts = [count_range(model, graph.hrt[:3], *span) for span in spans]
    with pytest.raises(ValueError, match=message):
        merge(parts)


def test_ranges_of_two_rankings_are_not_merged():
    graph, model = example(), model_of("TransE")
    count = partial(count_range, model, graph.hrt[:3])
    trained = copy.deepcopy(model)
    with torch.no_grad():
        trained.relation += 1
    others = kgfast.KnownTriples(graph.hrt[:3])
    for one, other in (
        (count(0, 50), count_range(model, graph.hrt[:4], 50, 97)),
        (count(0, 50), count(50, 97, sides=("tail",))),
        (count(0, 50), count(50, 97, candidate_ids=[3])),
        (count(0, 50), count(50, 97, dims=2)),
        (count(0, 50), count(50, 97, nan="worst")),
        (count(0, 50), count(50, 97, known=graph.known)),
        (count(0, 50, known=others), count(50, 97, known=graph.known)),
        (count(0, 50), count_range(trained, graph.hrt[:3], 50, 97)),
    ):
        with pytest.raises(ValueError, match="not of one ranking"):
            merge([one, other])


def test_bad_arguments():
    graph, model = example(), model_of("TransE")
    count = partial(count_range, model, graph.hrt)
    part = kgfast.TransE(Shard(model.entity[:50], total_rows=97), model.relation)
    scorer = kgfast.BlockScorer(lambda *_: None, num_entities=97, num_relations=5)
    for error, message, call in (
        (ValueError, "range within 0 .. 97", lambda: count(5, 98)),
        (ValueError, "shard holds rows 0 .. 49 of 97", lambda: count_range(part, graph.hrt, 0, 5)),
        (ValueError, "of 'head' and 'tail'", lambda: count_range(model, [], 0, 5, sides=["x"])),
        (ValueError, "nan must be", lambda: count(0, 5, nan="x")),
        (
            ValueError,
            "'tail' is ranked and has none",
            lambda: count(0, 5, candidate_ids={"head": [1]}),
        ),
        (ValueError, "candidate_ids", lambda: count(0, 5, candidate_ids=[1, 1])),
        (TypeError, "a function that scores has no", lambda: count_range(scorer, graph.hrt, 0, 5)),
    ):
        with pytest.raises(error, match=message):
            call()

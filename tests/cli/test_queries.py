"""``kgfast predict``: files of queries, and answers that are restricted."""

import json

import numpy as np
import pytest

import kgfast
from support.commands import error_of, lines_of, run

NEXT = ("--relation", "next")


@pytest.fixture
def asked(tmp_path):
    """Write a file of queries, and return the words of the command."""

    def words(text, name="queries.tsv"):
        (tmp_path / name).write_text(text)
        return "--queries", tmp_path / name, "--k", 4

    return words


def rows_of(path):
    return list(map(json.loads, path.read_text().splitlines()))


@pytest.mark.parametrize(
    ("text", "singles"),
    [
        ("e1\tnext\n\ne3\tprevious\r\n", [("e1", "next", None), ("e3", "previous", None)]),
        ("note\ttail\trelation\nx\te1\tnext\n", [(None, "next", "e1")]),
        ("head\ttail\ne1\te2\n", [("e1", None, "e2")]),
        (
            "head\trelation\ttail\ne1\tnext\t\n\tnext\te2\ne3\t\te4\ne5\tnext\t\n",
            [("e1", "next", None), (None, "next", "e2"), ("e3", None, "e4"), ("e5", "next", None)],
        ),
    ],
    ids=["two columns", "a header", "relations", "all sides"],
)
def test_a_file_is_answered_as_its_queries_one_by_one(trained, asked, tmp_path, text, singles):
    words, expected = asked(text), []
    for query in singles:
        named = zip(("--head", "--relation", "--tail"), query, strict=True)
        one = [word for name, value in named if value for word in (name, value)]
        expected += lines_of("predict", trained, *one, "--k", 4)
    assert lines_of("predict", trained, *words) == expected
    out = tmp_path / "a.jsonl"
    assert run("predict", trained, *words, "--out", out).exit_code == 0
    assert sorted({row["query"] for row in rows_of(out)}) == list(range(len(singles)))
    assert [row["query"] for row in rows_of(out)] == sorted(row["query"] for row in rows_of(out))


def test_a_side_is_one_call(trained, asked, monkeypatch):
    calls, topk = [], kgfast.eval.prediction.topk
    monkeypatch.setattr(
        "kgfast.eval.prediction.topk", lambda *a, **more: calls.append(more) or topk(*a, **more)
    )
    lines_of("predict", trained, *asked("head\trelation\ttail\n" + "e1\tnext\t\n\tnext\te2\n" * 5))
    assert [len(call["relations"]) for call in calls] == [5, 5]


def test_ids_of_a_model_without_names(asked, tmp_path):
    kgfast.save(kgfast.TransE.init(6, 2, 8, seed=0), tmp_path / "it")
    found = lines_of("predict", tmp_path / "it", *asked("5\t1\n"))
    assert [row["head"] for row in found] == [5] * 4
    line = error_of("predict", tmp_path / "it", *asked("5\t1\n6\t1\n"))
    assert line.endswith("queries.tsv:2: id 6 is outside 0..5: '6\\t1'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e1\tnext\n\ne33\tnext\n", "queries.tsv:3: unknown name 'e33' (of 12 names); did you"),
        ("head\trelation\ne1\tnexd\n", "queries.tsv:2: unknown name 'nexd' (of 2 names); did you"),
        ("head\trelation\ttail\ne1\tnext\te2\n", "queries.tsv:2: a query has two of head"),
        ("head\trelation\ttail\ne1\t\t\n", "queries.tsv:2: a query has two of head"),
        ("e1\tnext\ne2\n", "queries.tsv:2: expected 2 tab-separated fields, found 1: 'e2'"),
        ("e1,next\n", "queries.tsv:1: expected 2 tab-separated fields, found 1: 'e1,next'"),
        ("", "queries.tsv: holds no names"),
        ("head\trelation\n", "queries.tsv: holds no queries"),
    ],
)
def test_bad_queries_are_named(trained, asked, tmp_path, text, message):
    before = set(tmp_path.iterdir())
    words = asked(text)
    line = error_of("predict", trained, *words, "--out", tmp_path / "a.tsv")
    assert message in line
    assert set(tmp_path.iterdir()) - before == {tmp_path / "queries.tsv"}


def test_candidates_of_a_file(trained, asked, tmp_path):
    (tmp_path / "few.txt").write_text("e7\ne5\n\ne7\n")
    few = "--candidates", tmp_path / "few.txt"
    found = lines_of("predict", trained, "--head", "e1", *NEXT, *few)
    every = lines_of("predict", trained, "--head", "e1", *NEXT, "--k", 12)
    assert found == [row for row in every if row["tail"] in ("e5", "e7")]
    both = lines_of(
        "predict", trained, *asked("head\trelation\ttail\ne1\tnext\t\n\tnext\te2\n"), *few
    )
    assert {row["head"] for row in both[2:]} == {"e5", "e7"}
    (tmp_path / "few.txt").write_text("e7\ne77\n")
    line = error_of("predict", trained, "--head", "e1", *NEXT, *few)
    assert "few.txt:2: unknown name 'e77'" in line
    assert "did you mean 'e7'" in line
    (tmp_path / "few.txt").write_text("previous\n")
    words = ("--head", "e1", "--tail", "e2", "--include-known", *few)
    assert [row["relation"] for row in lines_of("predict", trained, *words)] == ["previous"]
    (tmp_path / "few.txt").write_text("\n")
    assert "few.txt: holds no names" in error_of("predict", trained, *words)


def test_types(trained, asked, tmp_path):
    loaded = kgfast.load_run(trained)
    types = kgfast.TypeConstraints.from_triples(loaded.dataset.train)
    text = "head\trelation\ttail\ne1\tnext\t\n\tprevious\te2\n"
    words = asked(text)[:2] + ("--k", 12, "--include-known")
    found = lines_of("predict", trained, *words, "--types", "train")
    names = loaded.vocabulary.entities.names_of
    for side, relation, place in (("tail", "next", 0), ("head", "previous", 1)):
        answers = {row[side] for row in found if row["relation"] == relation}
        assert answers == set(names(types.candidates(place, side)))
    assert len(found) < 24
    asked_types = {"next": [[], ["e4", "e6"]], "previous": [["e9"], []]}
    (tmp_path / "types.json").write_text(json.dumps(asked_types))
    found = lines_of("predict", trained, *words, "--types", tmp_path / "types.json")
    answers = [row["tail"] if row["relation"] == "next" else row["head"] for row in found]
    assert sorted(answers[:2]) == ["e4", "e6"]
    assert answers[2:] == ["e9"]
    line = error_of("predict", trained, "--head", "e1", "--tail", "e2", "--types", "train")
    assert "type constraints are of entities, not of relations" in line


def test_known_triples_of_another_folder(trained, root, tmp_path):
    """A folder of `kgfast known` or a graph takes the place of all splits."""
    np.save(tmp_path / "rows.npy", np.array([(1, 0, 5)]))
    kgfast.KnownTriples.build(tmp_path / "rows.npy", tmp_path / "known")
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "train.txt").write_text("e1\tnext\te5\n")
    words = ("predict", trained, "--head", "e1", *NEXT, "--k", 12)
    every = lines_of(*words, "--include-known")
    for folder in ("known", "graph"):
        found = lines_of(*words, "--known", tmp_path / folder)
        assert found == [row for row in every if row["tail"] != "e5"]
    assert "e2" in {row["tail"] for row in every}
    (tmp_path / "graph" / "train.txt").write_text("e1\tnext\te55\n")
    line = error_of(*words, "--known", tmp_path / "graph")
    assert "graph" in line
    assert "unknown name 'e55'" in line

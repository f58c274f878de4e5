"""benchmarks/facts_speed.py in its smoke-test size."""

import json

import pytest

import kgfast


@pytest.mark.slow
def test_facts_are_the_best_of_all_scores(call, tmp_path):
    result = tmp_path / "facts.json"
    done = call("facts_speed.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [row["model"] for row in rows] == ["DistMult", "ComplEx", "TransE", "RotatE"]
    for row in rows:
        assert row["equal"]
        assert row["k"] == 100
        assert row["seconds"] > 0
        assert {"command", "machine", "versions", "date"} <= row.keys()


def test_a_row_says_whether_facts_are_right(load, monkeypatch):
    script = load("facts_speed")
    graph = kgfast.datasets.synthetic(60, 3, 150, 10, 10)
    model = kgfast.DistMult.init(60, 3, 4, seed=0)
    row = script.row_of(model, "fresh", graph.known())
    assert (row["equal"], row["k"], row["triples"]) == (True, 100, 60 * 60 * 3)
    monkeypatch.setattr(script, "canonical_scores", lambda query, table, *_: query @ -table.T)
    assert not script.row_of(model, "fresh", graph.known())["equal"]

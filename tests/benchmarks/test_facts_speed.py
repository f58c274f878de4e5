"""benchmarks/facts_speed.py in its smoke-test size."""

import json


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


def test_it_asks_for_data(call):
    done = call("facts_speed.py")
    assert done.returncode == 2
    assert "--data names the folder" in done.stderr

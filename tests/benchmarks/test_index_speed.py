"""benchmarks/index_speed.py in its smoke-test size."""

import json


def test_index_speed_compares_the_same_answers(call, load, tmp_path):
    script, result = load("index_speed"), tmp_path / "index.json"
    assert call("index_speed.py", "--quick", "--json", result).returncode == 0
    rows = json.loads(result.read_text())["rows"]
    assert {row["section"] for row in rows} == set(script.MODELS)
    for row in rows:
        assert row["equal"]
        assert row["index_bytes"] >= row["table_bytes"]
        assert {"command", "machine", "versions", "date"} <= row.keys()

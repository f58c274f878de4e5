"""benchmarks/dot_tiers_speed.py in its smoke-test size."""

import json

import pytest

from support.tiers import lacks


def test_the_tier_is_compared_with_none(call, tmp_path):
    if lacks("int8"):
        pytest.skip(lacks("int8"))
    result = tmp_path / "tiers.json"
    done = call("dot_tiers_speed.py", "--quick", "--rounds", 2, "--json", result)
    assert done.returncode == 0
    rows = json.loads(result.read_text())["rows"]
    assert [row["work"] for row in rows] == ["ranks", "ranks", "best"]
    for row in rows:
        assert row["equal"]
        assert row["seconds"].keys() >= {"none", "int8"}
        assert {"command", "machine", "versions", "date"} <= row.keys()
    assert rows[2]["seconds"].keys() >= {"none", "int8", "index"}
    assert rows[0]["pairs"]["swept"] == 1
    assert "faiss" in done.stdout

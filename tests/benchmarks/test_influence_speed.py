"""benchmarks/influence_speed.py in its smoke-test size."""

import json

import pytest


@pytest.mark.slow
def test_values_are_those_of_captum(call, tmp_path):
    pytest.importorskip("captum", reason="captum is not installed")
    result = tmp_path / "influence.json"
    done = call("influence_speed.py", "--quick", "--scratch", tmp_path, "--json", result)
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    part = [("part", "kgfast"), *[("part", "captum")] * 5]
    race = [("captum", "kgfast"), ("captum", "captum")]
    assert [(row["section"], row["contender"]) for row in rows] == [
        ("whole", "kgfast"),
        *part,
        *race,
    ]
    whole, *_, last = rows
    assert whole["examples"] == 2 * 1200
    assert whole["naive_bytes"] == 4 * whole["examples"] * whole["entities"] * whole["dim"]
    assert last["relative_difference"] < 1e-4

"""The script that compares training by several processes with one, in its smallest size."""

import json

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quick(call, tmp_path):
    found = tmp_path / "found.json"
    done = call("distributed_training.py", "--quick", "--steps", 5, "--json", found)
    assert done.returncode == 0, done.stderr
    rows = json.loads(found.read_text())["rows"]
    ways = [(row["tables"], row["processes"]) for row in rows]
    assert ways == [("replicated", 1), ("replicated", 2), ("sharded", 2)]
    for row in rows:
        assert row["largest_relative_difference"] < 1e-5
        assert row["steps_per_second"] > 0

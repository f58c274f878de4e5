"""The script that compares training by several processes with one, in its smallest size."""

import json

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_quick(call, tmp_path):
    found, picture = tmp_path / "found.json", tmp_path / "found.svg"
    outputs = "--json", found, "--plot", picture
    done = call("distributed_training.py", "--quick", "--steps", 5, *outputs)
    assert done.returncode == 0, done.stderr
    rows = json.loads(found.read_text())["rows"]
    assert picture.stat().st_size > 0
    for section in ("speed", "curve"):
        ways = [(it["tables"], it["processes"]) for it in rows if it["section"] == section]
        assert ways == [("replicated", 1), ("replicated", 2), ("sharded", 2)]
    for row in rows:
        if row["section"] == "curve":
            assert row["relative_differences"] == [0.0] * 5
        else:
            assert row["steps_per_second"] > 0

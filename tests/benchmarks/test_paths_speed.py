"""The benchmark of third-order paths runs in its smallest size."""

import json


def test_quick(call, tmp_path):
    found = tmp_path / "paths.json"
    done = call("paths_speed.py", "--quick", "--json", found)
    assert done.returncode == 0
    assert "kgfast" in done.stdout
    ours, held = json.loads(found.read_text())["rows"]
    assert (ours["contender"], held["contender"]) == ("kgfast", "held")
    assert ours["paths"] == held["paths"] > 100
    assert abs(ours["loss"] - held["loss"]) < 1e-5 * abs(held["loss"])
    assert ours["cpu_seconds_ratio"] > 0

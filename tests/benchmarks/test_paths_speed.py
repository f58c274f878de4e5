"""The benchmark of third-order paths runs in its smallest size."""

import json

import pytest


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


@pytest.mark.slow
def test_a_million_paths_in_128_mib(load):
    """Forward and backward, beyond the model, its gradients and the graph."""
    script, measure = load("paths_speed"), load("lib.measure")
    work = script.Job(900, "kgfast")
    graph = work.graph()
    assert len(script.Paths(graph.edge_index, len(graph.positions))) > 1_000_000
    assert measure.in_child(script.peak, work)["bytes"] <= script.GOALS["bytes"]

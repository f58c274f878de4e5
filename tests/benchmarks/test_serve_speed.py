"""benchmarks/serve_speed.py in its smoke-test size: the server under load."""

import json

import pytest


@pytest.mark.slow
def test_a_server_under_load(call, tmp_path):
    """No error, no wrong answer, requests that share a sweep, and no growth to speak of."""
    pytest.importorskip("h11", reason="the extra serve is not installed")
    result = tmp_path / "serve.json"
    done = call("serve_speed.py", "--quick", "--memory-requests", 10_000, "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(result.read_text())["rows"]
    loads = [row for row in rows if row["section"] == "load"]
    assert [row["clients"] for row in loads] == [1, 2, 4, 8, 16, 32, 64]
    for row in loads:
        assert (row["errors"], row["wrong"], row["requests"]) == (0, 0, 64)
        quantiles = list(row["latency_seconds"].values())
        assert quantiles == sorted(quantiles)
    assert loads[0]["queries_per_call"] == 1
    assert loads[-1]["queries_per_call"] > 2
    delays = [row for row in rows if row["section"] == "delay"]
    assert {row["batch"] for row in delays} == {64, 1024}
    assert not any(row.get("errors") for row in delays)
    (ahead,) = (row for row in rows if row["section"] == "ahead")
    assert ahead["requests"] > 10
    assert ahead["growth_bytes"] < 16 << 20
    done = call("serve_speed.py", "--quick", "--sections", "memory", "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    again = json.loads(result.read_text())["rows"]
    assert [row for row in again if row["section"] in ("load", "delay")] == [
        row for row in rows if row["section"] in ("load", "delay")
    ]
    (memory,) = (row for row in rows if row["section"] == "memory")
    assert (memory["requests"], memory["errors"]) == (10_000, 0)
    assert memory["growth_bytes"] < 8 << 20

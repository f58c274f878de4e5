"""benchmarks/serve_speed.py in its smoke-test size: the server under load."""

import json

import pytest


@pytest.mark.slow
def test_a_server_under_load(call, tmp_path):
    """No error, no wrong answer, and requests that share a sweep."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    result = tmp_path / "serve.json"
    done = call("serve_speed.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [row["clients"] for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    for row in rows:
        assert (row["errors"], row["wrong"], row["requests"]) == (0, 0, 64)
        quantiles = list(row["latency_seconds"].values())
        assert quantiles == sorted(quantiles)
    assert rows[0]["queries_per_call"] == 1
    assert rows[-1]["queries_per_call"] > 2

"""benchmarks/pykeen_speed.py in its smoke-test size."""

import json

import pytest

pytest.importorskip("pykeen")
pytestmark = pytest.mark.slow  # PyKEEN takes seconds to import


def test_ranks_are_compared(call, tmp_path):
    result = tmp_path / "result.json"
    done = call("pykeen_speed.py", "--quick", "--models", "DistMult", "--json", result)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(result.read_text())["rows"]
    assert (row["sample"], row["compared"], row["different"]) == (201, 1206, [])
    assert row["cpu_seconds"] > 0

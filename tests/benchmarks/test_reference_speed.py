"""benchmarks/reference_speed.py in its smoke-test size."""

import json

import pytest

from kgfast.kernels import cpu


def test_the_reference_is_compared_with_the_extension(call, load, tmp_path):
    if not cpu.is_available():
        pytest.skip("the extension is not built")
    result = tmp_path / "reference.json"
    done = call("reference_speed.py", "--quick", "--rounds", 1, "--json", result)
    assert done.returncode == 0
    rows = json.loads(result.read_text())["rows"]
    assert [row["model"] for row in rows] == list(load("reference_speed").MODELS)
    for row in rows:
        assert row["equal"]
        assert row["times_cpu"] > 0
        assert {"command", "machine", "versions", "date"} <= row.keys()
    assert "times the extension's" in done.stdout

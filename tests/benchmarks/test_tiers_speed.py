"""benchmarks/tiers_speed.py in its smoke-test size."""

import json

import pytest

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.tiers import lacks


def test_tiers_speed_compares_the_same_counts(call, tmp_path):
    have = set(tiers.available(cpu.isa())) if cpu.is_available() else set()
    if not have & {"fp16", "linear"}:
        pytest.skip(lacks("linear", "fp16"))
    result = tmp_path / "tiers.json"
    done = call("tiers_speed.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert {row["score"] for row in rows} >= {"rotate", "l1"}
    assert {row["tiers"] for row in rows if row["score"] == "l2"} <= {"fp16"}
    names = {name for row in rows for name in row["tiers"].split(",")}
    assert names == have & {"fp16", "linear"}
    for row in rows:
        assert row["same_counts"]
        assert row["equals_reference"]
        assert {"command", "machine", "versions", "date"} <= row.keys()

"""benchmarks/reference_speed.py in its smoke-test size."""

import importlib
import json
import sys

import pytest

from kgfast.kernels import cpu
from support.paths import BENCHMARKS


def test_the_reference_is_compared_with_the_extension(tmp_path, monkeypatch, capsys):
    if not cpu.is_available():
        pytest.skip("the extension is not built")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("reference_speed")
    result = tmp_path / "reference.json"
    arguments = ["reference_speed.py", "--quick", "--rounds", "1", "--json", str(result)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert benchmark.main() == 0
    rows = json.loads(result.read_text())["rows"]
    assert [row["model"] for row in rows] == list(benchmark.MODELS)
    for row in rows:
        assert row["equal"]
        assert row["times_cpu"] > 0
        assert {"command", "machine", "versions", "date"} <= row.keys()
    assert "times as long as the extension" in capsys.readouterr().out

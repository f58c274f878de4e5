"""benchmarks/conversions.py in its smoke-test size: a wrong conversion is refused, and wrong."""

import json

import pytest

pytest.importorskip("pykeen")
pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.slow  # PyKEEN and PyG take seconds to import


def test_wrong_conversions_are_refused(call, load, tmp_path):
    result = tmp_path / "result.json"
    done = call("conversions.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [row["library"] for row in rows] == ["PyKEEN", "PyG", "DGL-KE"]
    for row in rows:
        assert row["right"] == pytest.approx(row["own"], abs=1e-3)
        assert row["wrong"] != pytest.approx(row["right"], abs=1e-3)
    said = [row["refused"] for row in rows]
    assert said[0].startswith("RotatE of PyKEEN: kgfast scores (")
    assert said[1].startswith("TransE of PyG: kgfast scores (")
    assert said[2] == "config.json: gamma must be a number; got None"
    result.rename(tmp_path / "cpu-conversions.json")
    block = load("pages").PAGES["options"].make(tmp_path)
    assert f"| {rows[1]['wrong']:.4f} | {rows[1]['right']:.4f} |" in block

"""benchmarks/tiers_speed.py in its smoke-test size, and the page that shows it."""

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


def test_the_page_shows_every_row(load, tmp_path):
    page = load("tiers_page")
    row = {"score": "l2", "dim": 7, "table": "normal", "side": "tail", "swept": 0.5}
    row |= {"tiers": "linear,fp16", "decided": 0.25}
    row |= {"gathered": 0.021, "canonical": 0.00034, "machine": {"name": "m"}, "versions": {}}
    row |= {"times_faster": {"median": 1.5, "min": 1.4, "max": 1.6}, "date": "2026-01-01"}
    row |= {"command": "c"}
    (tmp_path / page.RESULT).write_text(json.dumps({"rows": [row]}))
    dot = {name: row[name] for name in ("machine", "versions", "date", "command", "table")}
    dot |= {"work": "best", "entities": 5000, "dim": 7, "batch": 3, "speedup": 2.0}
    dot |= {"seconds": {"none": 2.0, "int8": 1.0, "faiss": 3.0}}
    ranks = dot | {"work": "ranks", "pairs": {"float32": 0.0021, "canonical": 0.00003}}
    ranks["seconds"] = {"none": 2.0, "int8": 1.0}
    (tmp_path / page.DOT_RESULT).write_text(json.dumps({"rows": [ranks, dot]}))
    found = page.block(tmp_path)
    assert (
        "| l2 | 7 | normal | tail | linear,fp16 | 1.50 (1.40 .. 1.60) | 25% | 50% | 2.1% | 0.03% |"
        in found
    )
    assert "| ranks | 5,000 | 7 | 3 | normal | 2.00 | 0.21% | 0.003% |  |" in found
    assert "| best 10 | 5,000 | 7 | 3 | normal | 2.00 |  |  | 3.0x |" in found

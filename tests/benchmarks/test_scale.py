"""benchmarks/scale.py in its smoke-test size."""

import json
import mmap

import numpy as np
import pytest
import torch


@pytest.fixture
def planted(load):
    return load("lib.planted").Planted(70_000, 4, 12, most=2)


def test_a_table_is_its_file_and_its_ranks_are_known(planted, tmp_path, load):
    path = planted.write(tmp_path)
    assert path.stat().st_size == planted.bytes + 128
    on_disk = np.load(path)
    assert np.array_equal(on_disk, planted.table())
    assert torch.equal(planted.rows(65_000, 66_000), torch.from_numpy(on_disk[65_000:66_000]))
    assert planted.write(tmp_path) == path  # the file is kept
    runs = load("lib.scale_runs")
    wide = load("lib.planted").Planted(3_000, 32, 12, most=2)
    ranks = runs.rank(wide, wide.table())
    assert wide.wrong(ranks) == 0
    assert ranks.raw.greater[:, 0].tolist() == [0, 1, 2] * 4
    assert wide.wrong(runs.rank(wide, wide.table().flip(0))) > 0


def test_rows_of_the_same_work_are_replaced(load, tmp_path):
    benchmark, path = load("scale").BENCHMARK, tmp_path / "scale.json"
    options = benchmark.parse(["--quick", "--json", str(path)])
    row = {"section": "stream", "entities": 10, "dim": 4, "queries": 8, "value": 1}
    benchmark._write(options, [row, row | {"entities": 5}])
    benchmark._write(options, [row | {"value": 2}, row | {"section": "sampled"}])
    found = json.loads(path.read_text())["rows"]
    assert [(it["section"], it["entities"], it["value"]) for it in found] == [
        ("stream", 5, 1),
        ("stream", 10, 2),
        ("sampled", 10, 1),
    ]


def test_bytes_anonymous(load):
    measure = load("lib.measure")
    before = measure.anonymous_bytes()
    with measure.Sampled() as memory:
        # New memory: a tensor may take what was freed before.
        held = mmap.mmap(-1, 20 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.write(bytes(1) * len(held))
    assert memory.bytes > before + len(held) // 2


@pytest.mark.slow
def test_all_sections(call, tmp_path):
    result = tmp_path / "scale.json"
    done = call("scale.py", "--quick", "--json", result, "--folder", tmp_path / "tables")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert {row["section"] for row in rows} == {"stream", "processes", "sampled"}
    assert list((tmp_path / "tables").iterdir()) == []  # cleaned up
    assert not any(row.get("wrong") for row in rows)

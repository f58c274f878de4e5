"""benchmarks/known_build.py in its smoke-test size."""

import numpy as np
import pytest

import kgfast

GRAPH = {"triples": 900, "entities": 40, "relations": 3}


@pytest.mark.slow
def test_every_format_is_built_and_compared(measured, tmp_path):
    rows = measured("known_build.py", "--folder", tmp_path, file="known.json")
    assert [row["format"] for row in rows] == ["npy", "parquet", "tsv"]
    assert len({row["distinct"] for row in rows}) == 1
    assert all(row["equal"] and row["anonymous_bytes"] > 0 for row in rows)
    assert {path.name for path in tmp_path.iterdir()} == {"known.json"}


def test_other_arrays_are_not_equal(load, tmp_path, monkeypatch):
    script = load("known_build")
    monkeypatch.setattr(script, "BLOCK", 100)
    triples = script.drawn(GRAPH)
    first, other = (
        kgfast.KnownTriples.build(script.write(triples, kind, tmp_path), tmp_path / f"{kind}-known")
        for kind in ("npy", "tsv")
    )
    assert len(first) == len(other) == len(np.unique(triples.T, axis=0)) < 900
    folders = tmp_path / "npy-known", tmp_path / "tsv-known"
    assert script.are_those_of_one_sort(folders[0], triples)
    assert script.are_same(*folders)
    path = folders[1] / "head.indices.npy"
    indices = np.load(path)
    indices[5] += 1
    np.save(path, indices)
    assert not script.are_those_of_one_sort(folders[1], triples)
    assert not script.are_same(*folders)

"""Parquet: read as the file says, refused by file and row."""

import sys

import pytest

from kgfast.datasets import load

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(path, **columns):
    parquet.write_table(pa.table(columns), path)


@pytest.mark.parametrize("names", [("head", "relation", "tail"), ("h", "r", "t")])
def test_parquet_of_names(tmp_path, names):
    train = dict(zip(names, (["bob", "ann"], ["knows", "sees"], ["eve", "bob"]), strict=True))
    write(tmp_path / "train.parquet", weight=[0.5, 1.0], **train)
    write(tmp_path / "test.parquet", head=["eve"], relation=["knows"], tail=["ann"])
    graph = load(tmp_path)
    assert list(graph.entities) == ["ann", "bob", "eve"]
    assert list(graph.relations) == ["knows", "sees"]
    assert graph.train.hrt.tolist() == [[1, 0, 2], [0, 1, 1]]
    assert graph.test.hrt.tolist() == [[2, 0, 0]]
    assert len(graph.valid) == 0


def test_parquet_of_ids(tmp_path):
    columns = {"head": [10, 2], "relation": [0, 1], "tail": [3, 999_999]}
    arrays = {name: pa.array(ids, pa.int32()) for name, ids in columns.items()}
    write(tmp_path / "train.parquet", **arrays)
    graph = load(tmp_path)
    assert graph.entities.names == tuple(map(str, range(1_000_000)))
    assert graph.train.hrt.tolist() == [[10, 0, 3], [2, 1, 999_999]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"head": ["a"], "rel": ["r"], "tail": ["b"]}, "expected columns head, relation, tail or"),
        (
            {"head": ["a", None], "relation": ["r"] * 2, "tail": ["b"] * 2},
            "row 1: the head is empty",
        ),
        ({"head": [0.5], "relation": ["r"], "tail": ["b"]}, "head must hold text or ids"),
        ({"head": [1, -1], "relation": [0, 0], "tail": [1, 2]}, "row 1: head -1 is below 0"),
        (  # names for more ids than memory holds
            {"head": [0, 2**60], "relation": [0, 0], "tail": [1, 2]},
            "the ids of entities .* 1,152,921,504,606,846,976; .* 4",
        ),
    ],
)
def test_parquet_that_is_refused(tmp_path, columns, message):
    write(tmp_path / "train.parquet", **columns)
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_files_that_are_no_parquet(tmp_path):
    write(tmp_path / "train.parquet", head=["abc"], relation=["r"], tail=["xyz"])
    raw = (tmp_path / "train.parquet").read_bytes()
    for damaged in (
        raw.replace(b"abc", b"a\xffc"),
        raw.replace(b"relation", b"relatio\xff"),
        b"PAR1, no more",
    ):
        (tmp_path / "train.parquet").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"train\.parquet: "):
            load(tmp_path)


def test_without_pyarrow(tmp_path, monkeypatch):
    (tmp_path / "train.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'needs pyarrow: pip install "kgfast\[data\]"'):
        load(tmp_path)

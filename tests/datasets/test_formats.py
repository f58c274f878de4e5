"""Parquet and N-Triples: read as what they say, refused by file and row."""

import gzip
import sys

import pytest

from kgfast.datasets import load

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyoxigraph")

parquet = pytest.importorskip("pyarrow.parquet")

NT = b"""<http://x/ann> <http://x/knows> <http://x/bob> .
# a comment

_:eve <http://x/knows> <http://x/ann> .
<http://x/ann> <http://x/name> "Ann"@en .
"""


def write(path, **columns):
    parquet.write_table(pa.table(columns), path)


@pytest.mark.parametrize(
    "names", [("head", "relation", "tail"), ("h", "r", "t"), ("subject", "predicate", "object")]
)
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
    train = {"head": [10, 2], "relation": [0, 1], "tail": [3, 10]}
    write(
        tmp_path / "train.parquet", **{name: pa.array(it, pa.int32()) for name, it in train.items()}
    )
    graph = load(tmp_path)
    assert graph.entities.names == tuple(map(str, range(11)))
    assert graph.train.hrt.tolist() == [[10, 0, 3], [2, 1, 10]]
    write(tmp_path / "entities.parquet", id=list(range(11))[::-1], name=list("kjihgfedcba"))
    write(tmp_path / "relations.parquet", id=[1, 0], name=["s", "r"])
    graph = load(tmp_path)
    assert (graph.entities.name(10), graph.relations.name(0)) == ("k", "r")
    assert graph.train.hrt.tolist() == [[10, 0, 3], [2, 1, 10]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"head": ["a"], "rel": ["r"], "tail": ["b"]},
            "expected columns head, relation, tail or h",
        ),
        ({"head": ["a", None], "relation": ["r"] * 2, "tail": ["b"] * 2}, "row 1 has no head"),
        ({"head": [0.5], "relation": ["r"], "tail": ["b"]}, "head must hold text or ids"),
        ({"head": [-1], "relation": [0], "tail": [1]}, r"row 0: head -1 is outside 0\.\.1"),
    ],
)
def test_parquet_that_is_refused(tmp_path, columns, message):
    write(tmp_path / "train.parquet", **columns)
    with pytest.raises(ValueError, match=rf"train\.parquet: .*{message}"):
        load(tmp_path)


def test_parquet_and_vocabularies_that_do_not_match(tmp_path):
    write(tmp_path / "train.parquet", head=["a"], relation=["r"], tail=["b"])
    for columns, message in (
        ({"id": [0], "name": ["a"]}, r"train\.parquet: row 0: tail 'b' is not a known name"),
        ({"id": [0, 2], "name": ["a", "b"]}, r"entities\.parquet: ids must be 0\.\.1, each once"),
        ({"id": [0, 1], "name": ["a", "a"]}, r"entities\.parquet: .*'a' is a duplicate"),
        ({"id": [0, 1]}, r"entities\.parquet: expected columns id and name; got \['id'\]"),
    ):
        write(tmp_path / "entities.parquet", **columns)
        with pytest.raises(ValueError, match=message):
            load(tmp_path)


def test_an_id_that_would_name_more_than_memory_holds_is_refused(tmp_path):
    write(tmp_path / "train.parquet", head=[0, 2**60], relation=[0, 0], tail=[1, 2])
    with pytest.raises(ValueError, match=r"the ids of entities .* 1,152,921,504,606,846,976; .* 4"):
        load(tmp_path)
    write(tmp_path / "train.parquet", head=[0, 999_999], relation=[0, 0], tail=[1, 2])
    assert load(tmp_path).num_entities == 1_000_000


def test_text_of_parquet_that_is_no_utf8(tmp_path):
    write(tmp_path / "train.parquet", head=["abc"], relation=["r"], tail=["xyz"])
    raw = (tmp_path / "train.parquet").read_bytes()
    for old, new in ((b"abc", b"a\xffc"), (b"relation", b"relatio\xff")):
        (tmp_path / "train.parquet").write_bytes(raw.replace(old, new))
        with pytest.raises(ValueError, match=r"train\.parquet: "):
            load(tmp_path)


def test_files_that_are_no_parquet(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1, no more")
    with pytest.raises(ValueError, match=r"train\.parquet: no valid Parquet file"):
        load(tmp_path)
    (tmp_path / "train.parquet").rename(tmp_path / "train.parquet.gz")
    with pytest.raises(ValueError, match="Parquet files compress themselves"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["train.nt", "train.nt.gz"])
def test_ntriples(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(NT) if name.endswith("gz") else NT)
    (tmp_path / "valid.nt").write_bytes(b"<http://x/bob> <http://x/knows> <http://x/ann> .")
    with pytest.warns(UserWarning, match="1 triples with a literal as object are left out"):
        graph = load(tmp_path)
    assert list(graph.entities) == ["_:eve", "http://x/ann", "http://x/bob"]
    assert list(graph.relations) == ["http://x/knows"]
    assert graph.train.hrt.tolist() == [[1, 0, 2], [0, 0, 1]]
    assert graph.valid.hrt.tolist() == [[2, 0, 1]]


def test_ntriples_that_are_refused(tmp_path):
    (tmp_path / "train.nt").write_bytes(NT + b"<http://x/ann> knows <http://x/bob> .\n")
    with pytest.raises(ValueError, match=r"train\.nt:6: .*: '<http://x/ann> knows"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "module"), [("train.parquet", "pyarrow"), ("train.nt", "pyoxigraph")]
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, file, module):
    (tmp_path / file).write_bytes(b"")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'needs {module}: pip install "kgfast\[data\]"'):
        load(tmp_path)

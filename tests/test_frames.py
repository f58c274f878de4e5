"""Tables for other programs: what they need and say, and files that are whole or not there."""

import csv
import io
import json
import sys

import pytest
import torch

from kgfast import TransE, Triples, Vocabulary, top_facts, topk
from kgfast.eval.ranks import Ranks
from kgfast.frames import needed

TRIPLES = torch.tensor([[0, 0, 1], [1, 0, 0]])
NAMED = Triples(TRIPLES, entities=Vocabulary(["Ä <b>", "b"]), relations=Vocabulary(["r"]))


def ranks(triples=TRIPLES):
    counts = torch.tensor([[0, 1], [2, 0]])
    return Ranks(counts, counts, counts + 5, ("head", "tail"), triples)


def test_a_frame_has_a_row_for_each_triple_and_side():
    pytest.importorskip("pandas")
    frame = ranks(NAMED).to_frame()
    assert frame.index.tolist() == [0, 0, 1, 1]
    assert frame["head"].tolist() == ["Ä <b>", "Ä <b>", "b", "b"]
    assert frame["side"].tolist() == ["head", "tail"] * 2
    assert frame["optimistic"].tolist() == [1, 2, 3, 1]
    assert frame["width"].tolist() == [0, 1, 2, 0]
    assert ranks()._part(slice(0)).to_frame().shape == (0, len(frame.columns))


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    own = ranks(NAMED)
    path = own.to_parquet(tmp_path / "ranks.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(path), own.to_frame())
    assert [it.name for it in tmp_path.iterdir()] == ["ranks.parquet"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    path = tmp_path / "ranks.parquet"
    path.write_text("before")

    def fail(frame, beside, **kwargs):
        beside.write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr("pandas.DataFrame.to_parquet", fail)
    with pytest.raises(OSError, match="no space left"):
        ranks().to_parquet(path)
    assert [it.name for it in tmp_path.iterdir()] == ["ranks.parquet"]
    assert path.read_text() == "before"
    monkeypatch.undo()
    with pytest.raises(OSError, match="gone"):
        ranks().to_parquet(tmp_path / "gone" / "ranks.parquet")


@pytest.mark.parametrize(
    ("package", "method", "message"),
    [
        ("pandas", "to_frame", r"Ranks.to_frame\(\) needs pandas: pip install pandas"),
        ("pyarrow", "to_parquet", r"Ranks.to_parquet\(\) needs pyarrow: pip install pyarrow"),
    ],
)
def test_what_ranks_lack_is_named(monkeypatch, tmp_path, package, method, message):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = [tmp_path / "ranks.parquet"] if method == "to_parquet" else []
    with pytest.raises(ImportError, match=message):
        getattr(ranks(), method)(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Facts", "Predictions"])
def test_what_answers_lack_is_named(monkeypatch, name):
    model = TransE(torch.zeros(3, 2), torch.zeros(1, 2))
    found = top_facts(model, k=2) if name == "Facts" else topk(model, heads=0, relations=0, k=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=rf"{name}.to_frame\(\) needs pandas: pip install pandas"):
        found.to_frame()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_names_beyond_ascii_are_written_as_they_are(tmp_path, suffix):
    """In UTF-8 and without escapes, whatever the encoding of this machine."""
    model, names = TransE(torch.zeros(2, 2), torch.zeros(1, 2)), ("Łódź \U0001f409", "日本\u2028")
    found = topk(model, heads=0, relations=0, k=2).named((names, ["está en"]))
    pd = pytest.importorskip("pandas")
    path = (found.to_parquet if suffix == "parquet" else found.to_csv)(tmp_path / f"a.{suffix}")
    raw = path.read_bytes()
    if suffix == "jsonl":
        rows = [json.loads(line) for line in raw.splitlines()]
        assert b"\\u" not in raw
    elif suffix == "parquet":
        rows = pd.read_parquet(path).to_dict("records")
    else:
        text = io.StringIO(raw.decode("utf-8"), newline="")
        rows = list(csv.DictReader(text, delimiter="," if suffix == "csv" else "\t"))
    assert [(row["head"], row["relation"], row["tail"]) for row in rows] == [
        (names[0], "está en", name) for name in names
    ]


def test_a_package_that_lacks_something_itself_is_not_said_to_be_missing(monkeypatch, tmp_path):
    (tmp_path / "half_installed.py").write_text("import what_it_lacks")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'what_it_lacks'"):
        needed("half_installed", "Ranks.to_frame()")

"""Tables for other programs: what they need and say, and files that are whole or not there."""

import csv
import io
import json
import sys

import pytest
import torch

from kgfast import TransE, Triples, Vocabulary, top_facts, topk
from kgfast.eval.ranks import Ranks
from kgfast.frames import needed, write_columns

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
    assert ranks()._part(slice(0)).to_frame().shape == (0, len(frame.columns))


@pytest.mark.parametrize("name", ["Facts", "Predictions"])
def test_what_answers_lack_is_named(monkeypatch, name):
    model = TransE(torch.zeros(3, 2), torch.zeros(1, 2))
    found = top_facts(model, k=2) if name == "Facts" else topk(model, heads=0, relations=0, k=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ImportError, match=rf"{name}.to_frame\(\) needs pandas: pip install .kgfast\[frames\]"
    ):
        found.to_frame()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_names_beyond_ascii_are_written_as_they_are(tmp_path, suffix):
    """In UTF-8 and without escapes, whatever the encoding of this machine."""
    model, names = TransE(torch.zeros(2, 2), torch.zeros(1, 2)), ("Łódź\r\U0001f409", "日本\u2028")
    found = topk(model, heads=0, relations=0, k=2, vocabulary=(names, ["está en"]))
    pd = pytest.importorskip("pandas")
    path = write_columns(found.columns(), tmp_path / f"a.{suffix}")
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

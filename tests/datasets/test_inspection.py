"""Likely mistakes in the files of a dataset: a warning names file, line and triple."""

import os
import warnings

import pytest

from kgfast.datasets import load
from support.paths import DATA

HELD_OUT = {"valid.txt": "eve\tknows\tann\n", "test.txt": "ann\tknows\teve\n"}
PLAIN = {"train.txt": "ann\tknows\tbob\nbob\tknows\teve\n"} | HELD_OUT


def warnings_of(folder, files=None):
    """Write files, load the folder, and return the warnings."""
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        load(folder)
    assert all(warning.filename == __file__ for warning in seen)
    return [str(warning.message).replace(f"{folder}{os.sep}", "") for warning in seen]


MISTAKES = {
    "none": (PLAIN, []),
    "header": (
        PLAIN | {"train.txt": f"Head\tRelation\tTail\n{PLAIN['train.txt']}"},
        ["train.txt:1: ('Head', 'Relation', 'Tail') names the columns (1 of 3 triples of train)"],
    ),
    "words": (
        {"train.txt": "from\tlink\tto\n" + "".join(f"a{i}\tknows\teve\n" for i in range(10))}
        | HELD_OUT,
        [
            "train.txt:1: ('from', 'link', 'to') may name the columns: no other triple has these "
            "names (1 of 11 triples of train)"
        ],
    ),
    "repeats": (
        PLAIN | {"train.txt": PLAIN["train.txt"] + "\n" + PLAIN["train.txt"]},
        [
            "train.txt:4: ('ann', 'knows', 'bob') stands in the split before (2 of 4 triples of "
            "train)"
        ],
    ),
    "overlaps": (
        PLAIN | {"test.txt": PLAIN["test.txt"] + PLAIN["valid.txt"] + PLAIN["train.txt"]},
        ["test.txt:2: ('eve', 'knows', 'ann') stands in an earlier split (3 of 4 triples of test)"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_line(tmp_path, name):
    files, messages = MISTAKES[name]
    assert warnings_of(tmp_path, files) == messages


def test_ids_with_a_count_have_their_lines(tmp_path):
    files = {"entity2id.txt": "2\na 0\nb 1\n", "relation2id.txt": "1\nr 0\n"}
    files |= {"train2id.txt": "2\n0 1 0\n0 1 0\n", "valid2id.txt": "1\n0 1 0\n"}
    assert warnings_of(tmp_path, files) == [
        "train2id.txt:3: ('a', 'r', 'b') stands in the split before (1 of 2 triples of train)",
        "valid2id.txt:2: ('a', 'r', 'b') stands in an earlier split (1 of 1 triples of valid)",
        f"{tmp_path}: no triples of test",
    ]


def test_rows_of_parquet_are_named(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pa.table({"head": ["a", "a"], "relation": ["r"] * 2, "tail": ["b"] * 2})
    parquet.write_table(rows, tmp_path / "train.parquet")
    assert warnings_of(tmp_path)[0].startswith("train.parquet: row 1: ('a', 'r', 'b') stands in")


@pytest.mark.parametrize("name", ["wn18rr", "fb15k-237", "codex-m"])
def test_published_graphs_have_no_mistakes(name):
    if not (DATA / name).exists():
        pytest.skip(f"no {name} at {DATA.name}/ beside the repository")
    assert warnings_of(DATA / name) == []


def test_triples_without_times_are_not_late(tmp_path):
    files = {"train.txt": "", "test.txt": "a\tr\tb\n"}
    assert warnings_of(tmp_path, files) == [f"{tmp_path}: no triples of train and valid"]

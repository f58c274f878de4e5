"""Likely mistakes in the files of a dataset: a warning names file and line, an option mends."""

import os
import warnings

import pytest

from kgfast.datasets import load
from kgfast.training import Config
from kgfast.training.build import load_dataset
from support.paths import DATA

PLAIN = {"train.txt": "ann\tknows\tbob\nbob\tknows\teve\n", "valid.txt": "eve\tknows\tann\n"}
PLAIN |= {"test.txt": "ann\tknows\teve\n"}


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def read(folder, **options):
    """Return the dataset and its warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        graph = load(folder, **options)
    assert all(it.filename == __file__ for it in seen)
    return graph, [str(it.message).replace(f"{folder}{os.sep}", "") for it in seen]


def names_of(graph):
    names = graph.entities.name, graph.relations.name, graph.entities.name
    splits = (graph.train, graph.valid, graph.test)
    return [
        [[name(id) for name, id in zip(names, row, strict=True)] for row in it] for it in splits
    ]


MENDS = "(dataset.clean of a config) mends it"
MISTAKES = {
    "header": (
        {name: f"Head\tRelation\tTail\n{text}" for name, text in PLAIN.items()},
        [
            f"{name}:1: the first line is read as a triple, first ('Head', 'Relation', 'Tail'); "
            f"clean=['header'] {MENDS}"
            for name in PLAIN
        ],
    ),
    "comments": (
        PLAIN | {"train.txt": "\n# a\tsecond\ttry\n" + PLAIN["train.txt"] + "#b\tthird\ttry\n"},
        [
            "train.txt:2: comments are read as triples (2), first ('# a', 'second', 'try'); "
            f"clean=['comments'] {MENDS}"
        ],
    ),
    "blanks": (
        PLAIN | {"test.txt": "\r\nann\tknows \teve\t\r\n".replace("\t\r", " \r")},
        [
            "test.txt:2: names of entities differ in blanks alone from other names (1), first "
            f"'eve '; clean=['blanks'] {MENDS}",
            "test.txt:2: names of relations differ in blanks alone from other names (1), first "
            f"'knows '; clean=['blanks'] {MENDS}",
        ],
    ),
    "repeats": (
        PLAIN | {"train.txt": PLAIN["train.txt"] + "\n" + PLAIN["train.txt"]},
        [
            "train.txt:4: 2 of 4 triples of train stand in the split before, first "
            f"('ann', 'knows', 'bob'); clean=['repeats'] {MENDS}"
        ],
    ),
    "overlaps": (
        PLAIN | {"test.txt": PLAIN["test.txt"] + PLAIN["valid.txt"] + PLAIN["train.txt"]},
        [
            "test.txt:2: 3 of 4 triples of test stand in train or valid, first "
            f"('eve', 'knows', 'ann'); clean=['overlaps'] {MENDS}"
        ],
    ),
}


@pytest.mark.parametrize("word", MISTAKES)
def test_a_mistake_is_named_with_its_line_and_left_out_if_asked(tmp_path, word):
    files, messages = MISTAKES[word]
    folder = write(tmp_path / "graph", files)
    found, said = read(folder)
    overlaps = [it for it in said if "'Relation'" in it and "stand in" in it]
    assert [it for it in said if it not in overlaps] == messages
    assert len(overlaps) == 2 * (word == "header")  # lines of names are a triple of every split
    right, nothing = read(write(tmp_path / "right", PLAIN))
    assert nothing == []
    cleaned, said = read(folder, clean=[word])
    assert said == []
    assert names_of(cleaned) == names_of(right) != names_of(found)
    assert cleaned.entities == right.entities


def test_names_with_hashes_and_blanks_of_their_own_are_no_mistakes(tmp_path):
    text = "#ann\tknows\tbob\nbob\tknows\t#eve\n#bob \tknows\t#ann\n"
    assert read(write(tmp_path / "graph", PLAIN | {"train.txt": text}))[1] == []
    every = {name: "#" + text for name, text in PLAIN.items()}
    assert read(write(tmp_path / "every", every))[1] == []


def test_ids_with_a_count_have_their_lines(tmp_path):
    files = {"entity2id.txt": "2\na 0\nb 1\n", "relation2id.txt": "1\nr 0\n"}
    files |= {"train2id.txt": "2\n0 1 0\n0 1 0\n", "valid2id.txt": "1\n0 1 0\n"}
    graph, said = read(write(tmp_path / "graph", files))
    assert said[0].startswith("train2id.txt:3: 1 of 2 triples of train stand in the split before")
    assert said[1].startswith("valid2id.txt:2: 1 of 1 triples of valid stand in train, first")
    assert said[2] == f"{tmp_path / 'graph'}: no triples of test"
    cleaned, said = read(tmp_path / "graph", clean=["repeats", "overlaps"])
    assert (len(graph.train), len(cleaned.train), len(cleaned.valid)) == (2, 1, 0)
    assert said == [f"{tmp_path / 'graph'}: no triples of valid and test"]


def test_rows_of_parquet_are_named(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = {"head": ["a", "a", "a "], "relation": ["r"] * 3, "tail": ["b"] * 3}
    for split in ("train", "valid", "test"):
        own = rows if split == "train" else {name: ["b", "a"][:1] for name in rows}
        parquet.write_table(pa.table(own), tmp_path / f"{split}.parquet")
    _, said = read(tmp_path)
    assert [it.partition(",")[0] for it in said] == [
        "train.parquet: row 2: names of entities differ in blanks alone from other names (1)",
        "train.parquet: row 1: 1 of 3 triples of train stand in the split before",
        "test.parquet: row 0: 1 of 1 triples of test stand in train or valid",
    ]
    cleaned, said = read(tmp_path, clean=["blanks", "repeats", "overlaps"])
    assert (len(cleaned.train), len(cleaned.entities)) == (1, 2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train.tsv": "a\tr\tb\n"}, "train.tsv is not read: train.txt is"),
        ({"train.nt": ""}, "train.nt is not read: train.txt is"),
        ({"valid.tsv": "a\tr\tb\n"}, "valid.tsv is not read: valid.txt is"),
    ],
)
def test_a_second_file_of_a_split_is_named(tmp_path, files, message):
    assert read(write(tmp_path / "graph", PLAIN | files))[1] == [message]


def test_empty_splits_are_named_with_files_of_other_names(tmp_path):
    files = {name: text for name, text in PLAIN.items() if name != "valid.txt"}
    folder = write(tmp_path / "graph", files | {"dev.txt": PLAIN["valid.txt"]})
    assert read(folder)[1] == [f"{folder}: no triples of valid; not read: ['dev.txt']"]
    (folder / "test.txt").write_text("\n")
    assert read(folder)[1] == [f"{folder}: no triples of valid and test; not read: ['dev.txt']"]


def test_configs_name_words_of_clean(tmp_path):
    folder = write(tmp_path / "graph", MISTAKES["repeats"][0])
    sections = {"model": {"name": "rotate", "base_dim": 8}, "optim": {"lr": 0.1}}
    for clean, count in (([], 4), (["repeats"], 2)):
        dataset = {"name": "graph", "root": str(folder.parent), "clean": clean}
        config = Config.from_dict(sections | {"dataset": dataset, "train": {"steps": 1}})
        assert len(load_dataset(config).train) == count


@pytest.mark.parametrize("clean", ["header", ["headers"]])
def test_words_that_clean_does_not_know(tmp_path, clean):
    with pytest.raises(ValueError, match=r"clean must be a list of header, comments, .*; got"):
        load(write(tmp_path / "graph", PLAIN), clean=clean)


@pytest.mark.parametrize("name", ["wn18rr", "fb15k-237", "codex-m"])
def test_published_graphs_have_no_mistakes(name):
    if not (DATA / name).exists():
        pytest.skip(f"no {name} at {DATA.name}/ beside the repository")
    assert read(DATA / name)[1] == []

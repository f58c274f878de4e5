"""Every folder layout written and read back, every malformed line blamed by file and line."""

import gzip
import re
from collections.abc import Callable

import pytest
import torch

from kgfast.datasets import load
from support.data_folders import (
    ENTITIES,
    LAYOUTS,
    RELATIONS,
    SCREEN,
    SPLITS,
    dglke,
    libkge,
    official,
    openke,
    plain,
    write,
)
from support.paths import DATA

DISGUISES: dict[str, Callable[[str], bytes]] = {
    "as it is": str.encode,
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "byte order mark": lambda text: text.encode("utf-8-sig"),
    "blank lines": lambda text: ("\n \n" + text.replace("\n", "\n\n  \n")).encode(),
    "no last newline": lambda text: text.removesuffix("\n").encode(),
    "crlf, no last newline": lambda text: text.replace("\n", "\r\n").removesuffix("\n").encode(),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def check(dataset):
    assert list(dataset.entities) == ENTITIES
    assert list(dataset.relations) == RELATIONS
    for split, expected in SPLITS.items():
        triples = getattr(dataset, split)
        assert list(triples) == expected, split
        assert triples.entities is dataset.entities
        assert triples.relations is dataset.relations
        assert (triples.num_entities, triples.num_relations) == (4, 2)


@layouts
@pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES.keys())
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_layouts(tmp_path, layout, disguise, ending):
    for name, text in layout().items():
        content = disguise(text)
        (tmp_path / (name + ending)).write_bytes(gzip.compress(content) if ending else content)
    dataset = load(str(tmp_path))
    check(dataset)
    assert dataset.name == tmp_path.name


@layouts
def test_missing_valid_and_test_are_empty(tmp_path, layout):
    files = {name: text for name, text in layout().items() if name[:4] not in ("vali", "test")}
    dataset = load(write(tmp_path, files), name="people")
    assert dataset.name == "people"
    assert list(dataset.train) == SPLITS["train"]
    assert len(dataset.valid) == len(dataset.test) == 0
    assert len(dataset.known()) == 2


@layouts
def test_missing_train(tmp_path, layout):
    files = {name: text for name, text in layout().items() if not name.startswith("train")}
    write(tmp_path, files)
    with pytest.raises(FileNotFoundError, match=r"looked for.*train.*known layouts") as error:
        load(tmp_path)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("layout", "name"), [(official, "relations.dict"), (openke, "entity2id.txt")]
)
def test_missing_vocabulary(tmp_path, layout, name):
    files = layout()
    del files[name]
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        load(write(tmp_path, files))


def test_links_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path, libkge())
    for path in tmp_path.glob("*.del"):
        (tmp_path / "folder" / path.name).symlink_to(path)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    check(load(tmp_path / "link", name="people"))


def test_not_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent does not exist; known layouts"):
        load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"no dataset in .*looked for entities.dict"):
        load(tmp_path)


def test_ids_in_any_order(tmp_path):
    files = official() | {"entities.dict": "3\tzoe\n1\tbob\n0\tann\n2\teve é\n"}
    check(load(write(tmp_path, files)))


LONG, DIGITS = "x" * 10**6, "9" * 5000
MALFORMED = [
    (official, "train.txt", "ann\tknows\tbob\nann\tknows\n", 2, "found 2"),
    # Two lines whose fields add up to six: a plain split of the whole file would not notice.
    (official, "train.txt", "ann\tknows\nann\tknows\tbob\tbob\n", 1, "found 2"),
    (official, "valid.txt", "\n\nann\tknows\tbo\n", 3, "unknown name 'bo'"),
    (official, "valid.txt", "ann\tknow\tbob\n", 1, "did you mean 'knows'"),
    (official, "train.txt", "ann\t\tbob\n", 1, "empty name"),
    (official, "entities.dict", "0\tann\nx\tbob\n", 2, "'x' is not an integer"),
    (official, "entities.dict", "0\tann\n\n2\tbob\n", 3, r"id 2 is outside 0\.\.1"),
    (official, "entities.dict", "0\tann\n0\tbob\n", 2, "id 0 was given before"),
    (official, "entities.dict", "0\tann\n1\tann\n", 2, "'ann' was given before, on line 1"),
    (official, "entities.dict", "0\tann\n1\n", 2, "expected an id and a name"),
    (dglke, "entities.tsv", "0,ann\n", 1, "expected an id and a name"),
    (plain, "train.txt", "ann knows bob\n", 1, "expected 3 or 4 tab-separated fields, found 1"),
    (plain, "test.txt", "ann\tknows\tbob\n\tknows\tbob\n", 2, "empty name"),
    (openke, "train2id.txt", "2\n0 1 0\n1 2\n", 3, r"expected 3 fields \(head tail relation\)"),
    (openke, "train2id.txt", "2\n0 1\n1 2 0 0\n", 2, "found 2"),
    (openke, "train2id.txt", "2\n0 1 0\n1 2 2\n", 3, r"relation id 2 is outside 0\.\.1"),
    (openke, "train2id.txt", "2\n0 1 0\n1 4 1\n", 3, r"tail id 4 is outside 0\.\.3"),
    (openke, "train2id.txt", "2\n0 1 0\n1.0 2 1\n", 3, "head '1.0' is not an integer"),
    (openke, "train2id.txt", f"1\n{2**70} 2 1\n", 2, "head id .* is outside"),
    (openke, "train2id.txt", "3\n0 1 0\n1 2 1\n", 1, "count disagrees with 2 lines"),
    (openke, "train2id.txt", "\n\n0 1 0\n1 2 1\n", 3, "expected a count line"),
    (openke, "valid2id.txt", "", 1, "expected a count line"),
    (openke, "entity2id.txt", "3\nann\t0\nbob\t1\n", 1, "count disagrees with 2 lines"),
    (openke, "entity2id.txt", "2\nann\t0\nbob\tx\n", 3, "'x' is not an integer"),
    (libkge, "train.del", "0\t0\t1\n0\t0\ta\n", 2, "tail 'a' is not an integer"),
    (libkge, "train.del", "0\t0\t1\t1\n", 1, "found 4"),
    (official, "entities.dict", f"0\tann\n{DIGITS}\tbob\n", 2, "id of 5,000 digits is outside"),
    (official, "entities.dict", f"0\t{LONG}\n1\t{LONG}\n", 2, "was given before, on line 1"),
    (official, "train.txt", f"ann\tknows\t{LONG}\n", 1, "unknown name"),
    (openke, "train2id.txt", f"2\n0 1 0\n{DIGITS} 1 0\n", 3, "head id of 5,000 digits is outside"),
    (openke, "train2id.txt", f"{DIGITS}\n0 1 0\n", 1, "expected a count line"),
    (libkge, "train.del", f"0\t0\t1\n0\t0\t{LONG}\n", 2, "tail 'xxx"),
]


@pytest.mark.parametrize(
    ("layout", "name", "text", "line", "message"), MALFORMED, ids=range(len(MALFORMED))
)
def test_malformed_lines(tmp_path, layout, name, text, line, message):
    write(tmp_path, layout() | {name: text})
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name}:{line}: ")
    assert len(str(error.value)) <= SCREEN + len(str(tmp_path))
    if len(text) < SCREEN:
        content = (text.split("\n") if text else [""])[line - 1]
        assert repr(content) in str(error.value)


@pytest.mark.parametrize(
    "line", [b"ann\tknows\t\xff\n", b"ann" + b"a" * 10**6 + b"\xff\n"], ids=len
)
def test_not_utf8(tmp_path, line):
    write(tmp_path, plain())
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbfann\tknows\tbob\n" + line)
    with pytest.raises(ValueError, match=r"train\.txt:2: not valid UTF-8: b'ann") as error:
        load(tmp_path)
    assert len(str(error.value)) <= SCREEN + len(str(tmp_path))


@pytest.mark.parametrize(
    "raw",
    [b"no gzip", gzip.compress(b"ann\tknows\tbob\n" * 99)[:-9]],
    ids=["no gzip", "truncated"],  # the bytes hold a time stamp: workers would disagree
)
def test_broken_gzip(tmp_path, raw):
    (tmp_path / "train.txt.gz").write_bytes(raw)
    with pytest.raises(ValueError, match=r"train\.txt\.gz: not a valid gzip file"):
        load(tmp_path)


def test_names_with_unusual_line_separators(tmp_path):
    (tmp_path / "train.txt").write_text("a\u2028b\tr\tc\x0bd\n")
    assert list(load(tmp_path).entities) == ["a\u2028b", "c\x0bd"]


def test_dataset_known_is_built_once_and_repr_is_a_table(tmp_path):
    dataset = load(write(tmp_path, plain()), name="people")
    assert dataset.known() is dataset.known()
    assert len(dataset.known()) == 5
    assert repr(dataset).splitlines() == [
        "Dataset people: 4 entities, 2 relations",
        "split     triples   entities  relations",
        "train           3          3          2",
        "valid           1          2          1",
        "test            2          2          2",
    ]


@pytest.mark.parametrize(
    ("folder", "sizes", "entities_in_train"),
    [
        ("wn18rr", (40_943, 11, 86_835, 3_034, 3_134), 40_559),
        ("fb15k-237", (14_541, 237, 272_115, 17_535, 20_466), 14_505),
    ],
)
def test_benchmarks(folder, sizes, entities_in_train):
    if not (DATA / folder).is_dir():
        pytest.skip(f"the benchmark data is not in {DATA}")
    dataset = load(DATA / folder)
    splits = (dataset.train, dataset.valid, dataset.test)
    assert (dataset.num_entities, dataset.num_relations, *map(len, splits)) == sizes
    assert len(dataset.train.hrt[:, ::2].unique()) == entities_in_train
    triples = torch.cat([split.hrt for split in splits])
    assert len(dataset.known()) == len(triples.unique(dim=0))
    assert bool(dataset.known().contains(triples).all())

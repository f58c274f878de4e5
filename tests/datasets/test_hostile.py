"""Data files that lie: one line with file and line, cut to a screen; bounded memory and time."""

import gzip
import time
import tracemalloc

import pytest

from kgfast.datasets import load
from support.data_folders import libkge, official, openke, plain, write

SCREEN = 600  # characters that fit a message
LONG = "x" * 10**6
DIGITS = "9" * 5000

HOSTILE = [
    (official, "entities.dict", f"0\tann\n{DIGITS}\tbob\n", 2, "id of 5,000 digits is outside"),
    (official, "entities.dict", f"0\tann\n-{DIGITS}\tbob\n", 2, "id of 5,000 digits is outside"),
    (official, "entities.dict", f"0\t{LONG}\n1\t{LONG}\n", 2, "was given before, on line 1"),
    (official, "entities.dict", f"0\tann\n{LONG}\tbob\n", 2, "is not an integer"),
    (official, "entities.dict", f"0\tann\n{LONG}\n", 2, "expected an id and a name"),
    (official, "train.txt", f"ann\tknows\t{LONG}\n", 1, "unknown name"),
    (plain, "train.txt", f"ann\tknows\t{LONG}\n{LONG}\n", 2, "found 1"),
    (plain, "valid.txt", f"ann\t\t{LONG}\n", 1, "empty name"),
    (openke, "train2id.txt", f"2\n0 1 0\n{DIGITS} 1 0\n", 3, "head id of 5,000 digits is outside"),
    (openke, "train2id.txt", f"{DIGITS}\n0 1 0\n", 1, "expected a count line"),
    (openke, "entity2id.txt", f"1\nann\t{DIGITS}\n", 2, "id of 5,000 digits is outside"),
    (libkge, "train.del", f"0\t0\t1\n0\t0\t{DIGITS}\n", 2, "tail id of 5,000 digits"),
    (libkge, "train.del", f"0\t0\t1\n0\t0\t{LONG}\n", 2, "tail 'xxx"),
]


@pytest.mark.parametrize(
    ("layout", "name", "text", "line", "problem"),
    HOSTILE,
    ids=[str(i) for i in range(len(HOSTILE))],
)
def test_a_line_is_named_and_cut(tmp_path, layout, name, text, line, problem):
    write(tmp_path, layout() | {name: text})
    with pytest.raises(ValueError, match=problem) as error:
        load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name}:{line}: ")
    assert len(str(error.value)) <= SCREEN + len(str(tmp_path))


def test_leading_zeros_are_no_lie(tmp_path):
    files = libkge() | {"train.del": f"{'0' * 5000}\t0\t1\n"}
    assert list(load(write(tmp_path, files)).train) == [(0, 0, 1)]


def test_a_long_line_that_is_not_utf8_is_cut(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbfa\tb\tc\n" + b"a" * 10**6 + b"\xff\n")
    with pytest.raises(ValueError, match=r"train\.txt:2: not valid UTF-8: b'aaa") as error:
        load(tmp_path)
    assert len(str(error.value)) <= SCREEN + len(str(tmp_path))


def test_an_unknown_name_in_a_large_file_is_answered_soon(tmp_path):
    files = official()
    files["train.txt"] = "ann\tknows\tbob\n" * 200_000 + "ann\tknows\tbobb\n"
    write(tmp_path, files)
    start = time.process_time()
    with pytest.raises(ValueError, match=r"train\.txt:200001: unknown name 'bobb'"):
        load(tmp_path)
    assert time.process_time() - start < 15  # minutes, if names are compared with each other


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../secret", "..", ".", "", "a/b", "a\\b", "a\0b", "x" * 300, "C:secret"],
    ids=ascii,
)
@pytest.mark.parametrize("key", ["entity_ids", "train", "test"])
def test_dataset_yaml_names_files_of_its_folder_alone(tmp_path, name, key):
    (tmp_path / "secret").write_text("0\ttop secret\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    quoted = name.replace("\\", "\\\\").replace("\0", "\\0")
    files = libkge() | {"dataset.yaml": f'dataset.files.{key}.filename: "{quoted}"\n'}
    with pytest.raises(ValueError, match=f"{key}.filename must be the plain name") as error:
        load(write(folder, files))
    assert "top secret" not in str(error.value)
    assert "root:" not in str(error.value)
    assert len(str(error.value)) <= SCREEN + len(str(tmp_path))


@pytest.mark.parametrize("text", ["3", "[a]", "dataset.files.train.filename: 3", "x"])
def test_dataset_yaml_of_another_kind(tmp_path, text):
    if text == "x":
        text = "dataset: {files: {train: {filename: [train.del]}}}"
    with pytest.raises(ValueError, match=r"dataset\.yaml: (expected keys|dataset\.files\.train)"):
        load(write(tmp_path, libkge() | {"dataset.yaml": text}))


def test_folders_and_files_may_be_links(tmp_path):
    store, folder, link = tmp_path / "store", tmp_path / "folder", tmp_path / "link"
    store.mkdir()
    folder.mkdir()
    write(store, libkge())
    for path in store.iterdir():
        (folder / path.name).symlink_to(path)
    link.symlink_to(folder)
    assert list(load(link).train) == list(load(store).train)


def bomb(size):
    return gzip.compress(b"a\tr\tb\n" * (size // 6))


def test_a_gzip_bomb_stops_at_the_limit(tmp_path):
    """Half a megabyte that unpacks to 600."""
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(bytes(20 << 20)) * 30)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="unpacks to more than 67,108,864 bytes") as error:
            load(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith(f"{tmp_path / 'train.txt.gz'}: ")
    assert "KGFAST_MAX_BYTES" in str(error.value)


def test_the_limit_can_be_changed(tmp_path, monkeypatch):
    (tmp_path / "train.txt.gz").write_bytes(bomb(60_000))
    assert len(load(tmp_path).train) == 10_000
    assert len(load(tmp_path, max_bytes=60_000).train) == 10_000
    with pytest.raises(ValueError, match=r"train\.txt\.gz: unpacks to more than 59,999 bytes"):
        load(tmp_path, max_bytes=59_999)
    with pytest.raises(ValueError, match="max_bytes must be >= 1, got 0"):
        load(tmp_path, max_bytes=0)
    monkeypatch.setenv("KGFAST_MAX_BYTES", "1000")
    with pytest.raises(ValueError, match="unpacks to more than 1,000 bytes"):
        load(tmp_path)
    assert len(load(tmp_path, max_bytes=60_000).train) == 10_000
    for said in ("x", "0", "-1", "9" * 5000):
        monkeypatch.setenv("KGFAST_MAX_BYTES", said)
        with pytest.raises(ValueError, match=r"KGFAST_MAX_BYTES must be a number of bytes"):
            load(tmp_path)

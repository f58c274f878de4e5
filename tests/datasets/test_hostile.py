"""Data files that lie: bounded memory and time, and no file outside their folder."""

import gzip
import time
import tracemalloc

import pytest

from kgfast.datasets import load
from support.data_folders import SCREEN, libkge, official, write


def test_leading_zeros_are_no_lie(tmp_path):
    files = libkge() | {"train.del": f"{'0' * 5000}\t0\t1\n"}
    assert list(load(write(tmp_path, files)).train) == [(0, 0, 1)]


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

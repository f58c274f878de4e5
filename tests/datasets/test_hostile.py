"""Data files that lie: bounded memory and time."""

import gzip
import time
import tracemalloc

import pytest

from kgfast.datasets import load
from support.data_folders import libkge, official, write


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


@pytest.mark.parametrize("name", ["train.txt.gz", "a.csv.gz"])
def test_a_gzip_bomb_stops_at_the_limit(tmp_path, name):
    """Half a megabyte that unpacks to 600."""
    rows = b"head,relation,tail\na,b,c" + b" " * (1 << 16) + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(rows * 320) * 30)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="unpacks to more than 67,108,864 bytes") as error:
            load(tmp_path / name if name == "a.csv.gz" else tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith(f"{tmp_path / name}: ")

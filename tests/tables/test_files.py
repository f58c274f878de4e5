"""Tables in files against their rows in memory, and files that hold no table."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kgfast import tables

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
IDS = torch.tensor([6, 0, 6, 3, 4])


def made(count=7, width=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, width, generator=generator).to(dtype)


def as_npy(path, rows):
    np.save(path / "e.npy", rows.numpy())
    return path / "e.npy"


def as_safetensors(path, rows):
    save_file({"other": torch.ones(3), "entity": rows}, path / "e.safetensors")
    return f"{path / 'e.safetensors'}:entity"


def agree(table, rows):
    assert tables.is_table(table)
    assert (table.shape, table.dtype, len(table)) == (tuple(rows.shape), rows.dtype, len(rows))
    assert torch.equal(table.block(0, len(rows)), rows)
    assert torch.equal(table.block(2, 5), rows[2:5])
    assert table.block(4, 4).shape == (0, rows.shape[1])
    assert torch.equal(table.rows(IDS), rows[IDS])
    assert table.rows(IDS[:0]).shape == (0, rows.shape[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("write", [as_npy, as_safetensors])
def test_every_format_gives_the_rows_that_it_was_given(tmp_path, write, dtype):
    if dtype == torch.bfloat16 and write == as_npy:
        pytest.skip("numpy has no bfloat16")
    rows = made(dtype=dtype)
    table = tables.open(write(tmp_path, rows))
    agree(table, rows)
    agree(pickle.loads(pickle.dumps(table)), rows)
    assert torch.equal(table.mapped(), rows)


def test_a_list_is_one_table(tmp_path):
    rows = made(7)
    (tmp_path / "a").mkdir()
    parts = [rows[:1], rows[1:1], as_npy(tmp_path, rows[1:4]), rows[4:6]]
    table = tables.open([*parts, as_safetensors(tmp_path / "a", rows[6:].clone()), rows[7:]])
    agree(table, rows)
    assert repr(table) == "Shards(6 shards, 7 rows, 3 columns, float32)"
    assert table.where(2).endswith("e.npy: row 1 (row 2 of all shards)")


def saved(values):
    return lambda path: np.save(path, values)


def text(path):
    path.write_text("0.1 0.2")


def several(path):
    save_file({"entity": made(), "relation": made()}, path)


def npy_header(words):
    header = words.ljust(118).encode()
    raw = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"\0" * 1600
    return lambda path: path.write_bytes(raw)


def npy_of(shape):
    return npy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}")


def named_twice(path):
    facts = json.dumps({"dtype": "F32", "shape": [7, 3], "data_offsets": [0, 84]})
    header = f'{{"entity": {facts}, "entity": {facts}}}'.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 84)


def cut(write):
    def written(path):
        write(path.parent, made())
        path.write_bytes(path.read_bytes()[:-13])

    return written


INTEGERS = np.ones((3, 2), np.int64)
NO_TABLES = {
    "columns": ("e.npy", saved(np.asfortranarray(made())), "Fortran order"),
    "integers": ("e.npy", saved(INTEGERS), "must be floating point; got torch.int64"),
    "names": ("e.npy", saved(np.array([["a"]])), "must be floating point; got <U1"),
    "one axis": ("e.npy", saved(np.ones(3, np.float32)), r"two axes, .* got shape \[3\]"),
    "bytes": ("e.npy", saved(np.ones((3, 2), ">f4")), "order of bytes"),
    "text": ("e.npy", text, "not an array of numpy"),
    "cut": ("e.npy", cut(as_npy), "truncated"),
    "negative": ("e.npy", npy_of((-50, 8)), "not an array of numpy"),
    "empty": ("e.npy", npy_of((50, 0)), "rows of at least one number"),
    "huge": ("e.npy", npy_of((10**30, 1)), "not an array of numpy"),
    "deep": ("e.npy", npy_header("(" * 5000), "not an array of numpy"),
    "tensors text": ("e.safetensors", text, "not a file of safetensors"),
    "tensors cut": ("e.safetensors", cut(as_safetensors), "truncated"),
    "several": ("e.safetensors", several, "name one after a colon: it has .'entity', 'relation'"),
    "no such": ("e.safetensors:entety", several, "no tensor 'entety'.*did you mean 'entity'"),
    "tensors integers": (
        "e.safetensors",
        lambda path: save_file({"entity": torch.ones(3, 2, dtype=torch.int64)}, path),
        "floating point; got I64",
    ),
    "twice": ("e.safetensors", named_twice, "not a file of safetensors: 'entity' stands twice"),
    "other": ("e.h5", text, r"files end in .npy or .safetensors; pass other files as a tensor"),
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_files_that_hold_no_table_are_an_error_of_one_line_with_the_file(tmp_path, name):
    source, write, words = NO_TABLES[name]
    path = tmp_path / source.split(":")[0]
    write(path)
    with pytest.raises((ValueError, TypeError), match=words) as error:
        tables.open(tmp_path / source)
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).isprintable()


def test_other_sources_are_refused():
    with pytest.raises(FileNotFoundError, match=r"none\.npy: no such file"):
        tables.open("none.npy")
    with pytest.raises(TypeError, match="source must be a path"):
        tables.open(3)
    with pytest.raises(ValueError, match="negated lazily"):
        tables.open(torch._neg_view(made()))


def test_a_file_that_changes_is_seen_when_it_is_read(tmp_path):
    path = as_npy(tmp_path, made())
    table = tables.open(path)
    size = path.stat().st_size
    os.truncate(path, size - 4)
    for start, stop in ((0, 2), (5, 7)):
        with pytest.raises(ValueError, match="changed while it was read: its size was 212 and is"):
            table.block(start, stop)
    np.save(path, made().numpy())
    table = tables.open(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match="changed while it was read: it was written to"):
        table.rows(torch.tensor([0]))


def test_rows_next_to_each_other_are_read_together(tmp_path, monkeypatch):
    rows = made(5000, 4)
    table = tables.open(as_npy(tmp_path, rows))
    reads, read = [], tables.opening.FileTable.read_into
    monkeypatch.setattr(
        tables.opening.FileTable,
        "read_into",
        lambda self, start, out: reads.append((start, len(out))) or read(self, start, out),
    )
    ids = torch.tensor([4999, 3, 0, 4, 5])
    assert torch.equal(table.rows(ids), rows[ids])
    assert reads == [(0, 1), (3, 3), (4999, 1)]
    assert table._file.tell() == 0  # a forked process shares the position


def test_a_table_of_another_class_is_held_to_what_it_promises():
    class Promised:
        shape, dtype = (3, 2), torch.float32

        def block(self, start, stop):
            return torch.ones(stop - start, 3)

        def rows(self, ids):
            return [1.0]

    table = tables.open(Promised())
    with pytest.raises(ValueError, match=r"Promised.block must return \[2, 2\] of torch.float32"):
        table.block(0, 2)
    with pytest.raises(TypeError, match=r"Promised.rows must return a tensor; got list"):
        table.rows(torch.tensor([0]))

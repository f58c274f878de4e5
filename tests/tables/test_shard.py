"""Rows of a larger table, and several tables as one."""

import numpy as np
import pytest
import torch

from kgfast import tables
from kgfast.tables import Shard, Table, is_table
from support.mistakes import each_of


def rows(count=4, width=3, dtype=torch.float32):
    return torch.arange(count * width, dtype=dtype).view(count, width)


def test_a_shard_has_the_shape_of_the_whole_table_and_the_rows_it_holds():
    shard = Shard(rows(), start=5, total_rows=20)
    assert is_table(shard)
    assert isinstance(shard, Table)
    assert (shard.shape, shard.dtype, len(shard)) == ((20, 3), torch.float32, 20)
    assert (shard.start, shard.stop, shard.device) == (5, 9, torch.device("cpu"))
    assert torch.equal(shard.block(6, 9), rows()[1:])
    assert torch.equal(shard.rows(torch.tensor([8, 5, 8])), rows()[[3, 0, 3]])
    assert shard.block(0, 0).shape == (0, 3)
    assert repr(shard) == "Shard(5 .. 8 of 20 rows, 3 columns, float32)"
    outer = Shard(Shard(rows(), start=0, total_rows=4), start=2, total_rows=6)
    assert torch.equal(outer.rows(torch.tensor([2, 5])), rows()[[0, 3]])
    empty = Shard(rows(0), start=6, total_rows=6)
    assert empty.block(2, 2).shape == (0, 3)
    with pytest.raises(IndexError, match="no rows at all; got 3"):
        empty.rows(torch.tensor([3]))


def test_a_shard_of_a_file_is_read_as_the_file(tmp_path):
    np.save(tmp_path / "e.npy", rows().numpy())
    held = tables.open(tmp_path / "e.npy")
    shard = Shard(held, start=5, total_rows=20)
    out = torch.zeros(2, 3)
    shard.read_into(6, out)
    shard.read_into(0, out[:0])
    assert torch.equal(out, rows()[1:3])
    assert shard.where(7).endswith("e.npy: row 2 (row 7 of all 20)")
    with pytest.raises(IndexError, match=r"rows 8 \.\. 9 are not all in this shard"):
        shard.read_into(8, out)


def part():
    return Shard(rows(), start=2, total_rows=9)


BAD = {
    TypeError: {
        "rows must be a tensor or a Table": lambda: Shard([[1.0]], total_rows=1),
        "floating point": lambda: Shard(rows(dtype=torch.int64), total_rows=4),
        "total_rows must be an int": lambda: Shard(rows(), total_rows=4.0),
    },
    ValueError: {
        "two axes": lambda: Shard(torch.ones(3), total_rows=3),
        r"rows 1 \.\. 4 must lie": lambda: Shard(rows(), start=1, total_rows=4),
        r"rows -1 \.\. 2 must lie": lambda: Shard(rows(), start=-1, total_rows=4),
        "at least one": lambda: tables.open([]),
        r"tables\[1\] = .* must be as tables\[0\] = .*columns 4 is not": lambda: tables.open(
            [rows(), rows(width=4)]
        ),
        r"dtype torch.float16 is not torch.float32": lambda: tables.open(
            [rows(), rows(dtype=torch.float16)]
        ),
        r"tables\[1\] is a Shard: give its rows": lambda: tables.open([rows(), part()]),
    },
    IndexError: {
        r"rows 1 \.\. 2 are not all in this shard": lambda: part().block(1, 3),
        r"rows 5 \.\. 6 are not all in this shard": lambda: part().block(5, 7),
        r"must lie within 0 \.\. 9 rows": lambda: part().block(0, 10),
        r"ids\[1\] must be .*2 \.\. 5; got 6": lambda: part().rows(torch.tensor([2, 6])),
    },
}


@each_of(BAD)
def test_what_is_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()

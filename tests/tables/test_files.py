import json
import os
import pickle
import random
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kgfast import tables

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
IDS = torch.tensor([6, 0, 6, 3])


def made(count=7, width=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, width, generator=generator).to(dtype)


def as_npy(path, rows):
    np.save(path / "e.npy", rows.numpy())
    return path / "e.npy"


def as_safetensors(path, rows):
    save_file({"other": torch.ones(3), "entity": rows}, path / "e.safetensors")
    return f"{path / 'e.safetensors'}:entity"


def as_pt(path, rows):
    torch.save({"model": {"other": torch.ones(3), "entity": rows}, "epoch": 3}, path / "e.pt")
    return f"{path / 'e.pt'}:model.entity"


def as_hdf5(path, rows):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "embeddings_all_0.v50.h5", "w") as file:
        file["embeddings"] = rows.numpy()
        file["other"] = np.ones(3)
    return path / "embeddings_all_0.v50.h5"


def as_chunked_hdf5(path, rows):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "chunked.h5", "w") as file:
        file.create_dataset("only", data=rows.numpy(), compression="gzip")
    return path / "chunked.h5"


FORMATS = [as_npy, as_safetensors, as_pt, as_hdf5, as_chunked_hdf5]


def agree(table, rows):
    assert tables.is_table(table)
    assert (table.shape, table.dtype, len(table)) == (tuple(rows.shape), rows.dtype, len(rows))
    assert torch.equal(table.block(0, len(rows)), rows)
    assert torch.equal(table.block(2, 5), rows[2:5])
    assert table.block(4, 4).shape == (0, rows.shape[1])
    assert torch.equal(table.rows(IDS), rows[IDS])
    assert table.rows(IDS[:0]).shape == (0, rows.shape[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("write", FORMATS)
def test_every_format_gives_the_rows_that_it_was_given(tmp_path, write, dtype):
    if dtype == torch.bfloat16 and write in (as_npy, as_hdf5, as_chunked_hdf5):
        pytest.skip("numpy has no bfloat16")
    rows = made(dtype=dtype)
    agree(tables.open(write(tmp_path, rows)), rows)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_without_a_header(tmp_path, dtype):
    rows = made(dtype=dtype)
    data = rows.view(torch.uint8).numpy().tobytes()
    (tmp_path / "e.bin").write_bytes(b"12345678" + data)
    agree(tables.open(tmp_path / "e.bin", columns=3, dtype=dtype, offset=8), rows)


def test_complex_numbers_are_pairs_of_reals(tmp_path):
    values = torch.view_as_complex(made(7, 4).view(7, 2, 2))
    np.save(tmp_path / "c.npy", values.numpy())
    table = tables.open(tmp_path / "c.npy")
    assert table.is_complex
    agree(table, torch.view_as_real(values).reshape(7, 4))


def test_a_view_that_torch_saved_is_read_where_it_lies(tmp_path):
    whole = made(9)
    torch.save(whole[2:], tmp_path / "part.pt")
    agree(tables.open(tmp_path / "part.pt"), whole[2:])


def test_shards_of_every_format_uneven_and_empty(tmp_path):
    rows = made(7)
    cuts = [rows[:1], rows[1:1], rows[1:4], rows[4:6], rows[6:], rows[7:]]
    sources = []
    writers = [as_npy, as_safetensors, as_pt, as_hdf5, as_chunked_hdf5, None]
    for number, (cut, write) in enumerate(zip(cuts, writers, strict=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        sources.append(cut.contiguous() if write is None else write(folder, cut.contiguous()))
    table = tables.open(sources)
    agree(table, rows)
    assert repr(table) == "Shards(6 shards, 7 rows, 3 columns, float32)"
    assert table.where(4).endswith("embeddings_all_0.v50.h5: row 0 (row 4 of all shards)")


def test_shards_that_know_where_they_stand_come_in_any_order():
    rows = made(7)
    cuts = [(4, 7), (0, 1), (1, 1), (1, 4)]
    agree(tables.open([tables.Shard(rows[a:b], start=a, total_rows=7) for a, b in cuts]), rows)


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        ([(0, 4), (3, 7)], r"rows 3 \.\. 3 are in two shards"),
        ([(0, 3), (5, 7)], r"rows 3 \.\. 4 are in no shard"),
        ([(1, 7)], r"rows 0 \.\. 0 are in no shard"),
        ([(0, 5)], r"rows 5 \.\. 6 are in no shard"),
    ],
)
def test_shards_that_do_not_make_one_table(cuts, words):
    rows = made(7)
    with pytest.raises(ValueError, match=words):
        tables.open([tables.Shard(rows[a:b], start=a, total_rows=7) for a, b in cuts])


@pytest.mark.parametrize(
    ("shards", "words"),
    [
        ([], "at least one"),
        ([made(), made(7, 4)], r"shards\[1\] = .* must be as shards\[0\] = .*columns 4 is not 3"),
        ([made(), made(dtype=torch.float16)], r"dtype torch.float16 is not torch.float32"),
        ([made(3), tables.Shard(made(3), start=3, total_rows=9)], "throughout, or nowhere"),
        (
            [tables.Shard(made(3), total_rows=3), tables.Shard(made(3), start=3, total_rows=6)],
            r"total_rows are \[3, 6\]",
        ),
    ],
)
def test_shards_that_differ(shards, words):
    with pytest.raises(ValueError, match=words):
        tables.open(shards)


def saved(values):
    return lambda path: np.save(path, values)


def text(path):
    path.write_text("0.1 0.2")


def several(path):
    pair = {"entity": made(), "relation": made()}
    torch.save(pair, path) if path.suffix == ".pt" else save_file(pair, path)


INTEGERS = np.ones((3, 2), np.int64)
NO_TABLES = [
    ("e.npy", saved(np.asfortranarray(made())), ValueError, "Fortran order"),
    ("e.npy", saved(INTEGERS), TypeError, "must be floating point; got int64"),
    ("e.npy", saved(np.ones(3, np.float32)), ValueError, r"two axes; got shape \[3\]"),
    ("e.npy", saved(np.ones((3, 2), ">f4")), TypeError, "order of bytes"),
    ("e.npy", text, ValueError, "not an array of numpy"),
    ("e.npy:entity", saved(INTEGERS), ValueError, "one array, which has no name; got 'entity'"),
    ("e.safetensors", text, ValueError, "not a file of safetensors"),
    ("e.safetensors", several, ValueError, 'holds 2 tensors: name one.*"e.safetensors:entity'),
    ("e.safetensors:entety", several, ValueError, "no tensor 'entety'.*did you mean 'entity'"),
    (
        "e.safetensors",
        lambda path: save_file({"entity": torch.ones(3, 2, dtype=torch.int64)}, path),
        TypeError,
        "floating point; got 'I64'",
    ),
    ("e.pt", several, ValueError, "holds 2 tensors"),
    (
        "e.pt",
        lambda path: torch.save({"x": object}, path),
        ValueError,
        "torch.load of plain weights cannot read the file",
    ),
    ("e.pt", text, ValueError, "torch.load of plain weights cannot read the file"),
    (
        "e.pt",
        lambda path: torch.save(made().T, path),
        ValueError,
        r"do not lie one after the other \(strides \[1, 3\]\)",
    ),
    (
        "e.pt",
        lambda path: torch.save(made(), path, _use_new_zipfile_serialization=False),
        ValueError,
        "cannot be read in place",
    ),
    ("e.h5", text, ValueError, "not a file of HDF5"),
    ("e.bin", text, ValueError, "need columns= and dtype="),
    ("none.npy", lambda path: None, FileNotFoundError, "no such file"),
]


@pytest.mark.parametrize(("name", "write", "error", "words"), NO_TABLES)
def test_files_that_hold_no_table(tmp_path, name, write, error, words):
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    write(tmp_path / name.split(":")[0])
    with pytest.raises(error, match=words):
        tables.open(tmp_path / name)


def test_what_hdf5_lacks_is_said(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file["a"], file["group/b"] = np.ones((3, 2)), np.ones((3, 2), np.int32)
    with pytest.raises(
        ValueError, match=r"name a dataset after a colon: it has \['a', 'group/b'\]"
    ):
        tables.open(tmp_path / "e.h5")
    with pytest.raises(ValueError, match="no dataset 'c'"):
        tables.open(f"{tmp_path / 'e.h5'}:c")
    with pytest.raises(TypeError, match="group/b must be floating point; got int32"):
        tables.open(f"{tmp_path / 'e.h5'}:group/b")
    assert tables.open(f"{tmp_path / 'e.h5'}:a").shape == (3, 2)


@pytest.mark.parametrize("write", [as_npy, as_safetensors])
def test_a_truncated_file_is_seen_when_it_is_opened(tmp_path, write):
    source = write(tmp_path, made())
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-13])
    with pytest.raises(ValueError, match="truncated"):
        tables.open(source)
    whole = made().numpy().tobytes()
    (tmp_path / "e.bin").write_bytes(whole[:-1])
    with pytest.raises(
        ValueError, match=r"83 bytes are no whole number of rows of 3 torch.float32"
    ):
        tables.open(tmp_path / "e.bin", columns=3, dtype=torch.float32)


def test_a_file_that_changes_is_seen_when_it_is_read(tmp_path):
    table = tables.open(as_npy(tmp_path, made()))
    data = (tmp_path / "e.npy").read_bytes()
    with (tmp_path / "e.npy").open("r+b") as file:
        file.truncate(len(data) - 4)
    with pytest.raises(ValueError, match="changed while it was read: its size was 212 and is 208"):
        table.block(0, 2)
    with pytest.raises(ValueError, match="truncated: the file ends at byte 208, 4 bytes before"):
        table.block(5, 7)
    np.save(tmp_path / "e.npy", made().numpy())
    table = tables.open(tmp_path / "e.npy")
    with (tmp_path / "e.npy").open("r+b") as file:
        file.seek(200)
        file.write(b"1234")
        os.utime(tmp_path / "e.npy", ns=(1, 1))
    with pytest.raises(ValueError, match="changed while it was read: it was written to"):
        table.rows(torch.tensor([0]))


@pytest.mark.parametrize("write", [as_npy, as_safetensors, as_pt, as_hdf5])
def test_rows_can_be_replaced_in_files(tmp_path, write):
    rows = made()
    source = write(tmp_path, rows)
    table = tables.open([source, made(2)], writable=True)
    new = torch.arange(9.0).view(3, 3)
    table.update(torch.tensor([8, 2, 0]), new)
    expected = torch.cat([rows, made(2)])
    expected[[8, 2, 0]] = new
    assert torch.equal(table.block(0, 9), expected)
    again = tables.open(source)
    assert torch.equal(again.block(0, 7), expected[:7])


def test_what_cannot_be_written_to_says_so(tmp_path):
    one = torch.ones(1, 3)
    with pytest.raises(TypeError, match="opened to be read; open the file with writable=True"):
        tables.open(as_npy(tmp_path, made())).update(torch.tensor([0]), one)
    chunked = as_chunked_hdf5(tmp_path, made())
    with pytest.raises(ValueError, match="lies in chunks, which are only read"):
        tables.open(chunked, writable=True)
    with pytest.raises(TypeError, match=r"Hdf5Table\(chunked.h5: .* cannot be written to"):
        tables.open([tables.open(chunked)]).update(torch.tensor([0]), one)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tables.open(3), TypeError, "source must be a path"),
        (lambda: tables.open("e.bin", columns=3), TypeError, "need columns and dtype"),
        (lambda: tables.open("e.bin", columns=3, dtype=torch.int8), TypeError, "need columns and"),
        (lambda: tables.open("no", columns=3, dtype=torch.float32), FileNotFoundError, "no such"),
    ],
)
def test_what_open_does_not_take(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_table_of_a_file_can_be_sent_to_another_process(tmp_path):
    table = tables.open(as_npy(tmp_path, made()))
    agree(pickle.loads(pickle.dumps(table)), made())


def test_rows_that_lie_near_each_other_are_read_together(tmp_path, monkeypatch):
    rows = made(5000, 4)
    table = tables.open(as_npy(tmp_path, rows))
    blocks, block = [], tables.file_table.FileTable.block

    def counted(self, start, stop):
        blocks.append((start, stop))
        return block(self, start, stop)

    monkeypatch.setattr(tables.file_table.FileTable, "block", counted)
    ids = torch.tensor([4999, 3, 0, 400])
    assert torch.equal(table.rows(ids), rows[ids])
    assert blocks == [(0, 401), (4999, 5000)]
    blocks.clear()
    monkeypatch.setattr(tables.file_table, "_SPAN", 1000 * 16)
    assert torch.equal(table.rows(ids), rows[ids])
    ids = torch.arange(500, 2600, 7)
    assert torch.equal(table.rows(ids), rows[ids])
    assert blocks[2:] == [(500, 998), (1004, 1999), (2005, 2594)]


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


COMPLEX = torch.view_as_complex(made(7, 4).view(7, 2, 2))
LAZY = {
    "conjugated": COMPLEX.conj,
    "negated": lambda: torch._neg_view(made()),
    "part of conjugates": lambda: COMPLEX.conj().imag,
}


@pytest.mark.parametrize("name", LAZY)
def test_numbers_that_a_bit_of_the_tensor_changes_are_not_read_without_it(tmp_path, name):
    make = LAZY[name]
    torch.save({"entity": make()}, tmp_path / "e.pt")
    with pytest.raises(ValueError, match=r"e\.pt: 'entity' must hold its numbers as they are"):
        tables.open(tmp_path / "e.pt")
    rows = make().resolve_conj().resolve_neg().contiguous()
    torch.save({"entity": rows}, tmp_path / "e.pt")
    own = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
    agree(tables.open(tmp_path / "e.pt"), own)


def test_a_negated_tensor_is_no_table():
    with pytest.raises(ValueError, match="negated lazily"):
        tables.open(torch._neg_view(made()))


def packed_again(path, *, order=slice(None), changed=None, kind=zipfile.ZIP_STORED):
    """Pack the records again as another program does (zip -0), some of them changed."""
    with zipfile.ZipFile(path) as old:
        records = {it.filename: old.read(it) for it in old.infolist()}
    with zipfile.ZipFile(path, "w", kind) as new:
        for name in list(records)[order]:
            new.writestr(name, (changed or {}).get(name.rpartition("/")[2], records[name]))


@pytest.mark.parametrize("is_turned", [False, True])
def test_an_archive_that_was_packed_again_is_read_right_or_not_at_all(tmp_path, is_turned):
    """Torch computes where records lie by the rules of its own writer."""
    first, second = made(5), made(7)
    torch.save({"first": first, "second": second}, tmp_path / "e.pt")
    packed_again(tmp_path / "e.pt", order=slice(None, None, -1 if is_turned else None))
    assert torch.equal(torch.load(tmp_path / "e.pt")["second"], second)
    for name, rows, is_refused in (("first", first, is_turned), ("second", second, True)):
        source = f"{tmp_path / 'e.pt'}:{name}"
        if is_refused:
            with pytest.raises(ValueError, match="records do not lie as torch"):
                tables.open(source)
        else:
            assert torch.equal(tables.open(source).block(0, len(rows)), rows)


def packed(**options):
    def write(path):
        torch.save(made(), path)
        packed_again(path, **options)

    return write


def nested(path):
    found = {"entity": made()}
    found["itself"] = found
    torch.save(found, path)


def without_end(path):
    torch.save(made(), path)
    path.write_bytes(path.read_bytes()[:-30])


def no_directory(path):
    """Write an archive that torch reads and Python's zipfile does not."""
    torch.save(made(), path)
    raw = path.read_bytes()
    entry = raw.index(b"PK\1\2")
    path.write_bytes(raw[: entry + 6] + b"\xff" + raw[entry + 7 :])  # a later version


def npy_header(text):
    header = text.ljust(118).encode()
    raw = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"\0" * 1600
    return lambda path: path.write_bytes(raw)


def npy_of(shape):
    return npy_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}")


def safetensors_with(header):
    raw = header.encode()
    raw = len(raw).to_bytes(8, "little") + raw + b"\0" * 84
    return lambda path: path.write_bytes(raw)


def entity(rows=7, start=0, stop=84, **changed):
    facts = {"dtype": "F32", "shape": [rows, 3], "data_offsets": [start, stop]} | changed
    return json.dumps({"entity": facts})[1:-1]


def safetensors_of(**changed):
    return safetensors_with(f"{{{entity(**changed)}}}")


twice = safetensors_with(f"{{{entity(3, 0, 36)}, {entity(4, 36, 84)}}}")
again = safetensors_with(f"{{{entity()}, {entity()}}}")
field = entity().replace("{", '{"dtype": "F16", ')
two_dtypes = safetensors_with(f"{{{field}}}")
DAMAGED = {
    "e.pt sparse": (
        lambda path: torch.save(made().to_sparse(), path),
        "must be dense; got torch.sp",
    ),
    "e.pt meta": (lambda path: torch.save(made().to("meta"), path), "cannot be read in place"),
    "e.pt compressed": (packed(kind=zipfile.ZIP_DEFLATED), "in place: the archive is compressed"),
    "e.pt other order": (
        packed(changed={"byteorder": b"big"}),
        "the order of bytes is not this machine's",
    ),
    "e.pt beyond": (
        packed(changed={"0": b"\0" * 40}),
        r"contradicts itself: \[7, 3\] .* a record of 40 bytes",
    ),
    "e.pt nested": (nested, "cannot read the file: RecursionError"),
    "e.pt cut": (without_end, "torch.load of plain weights cannot read the file"),
    "e.pt directory": (no_directory, "torch.load of plain weights cannot read the file"),
    "e.npy negative": (npy_of((-50, 8)), r"rows of at least one number; got shape \[-50, 8\]"),
    "e.npy both": (npy_of((-50, -8)), "rows of at least one number"),
    "e.npy empty": (npy_of((50, 0)), "rows of at least one number"),
    "e.npy huge": (npy_of((10**30, 1)), "rows of at least one number"),
    "e.npy deep": (npy_header("(" * 5000), "not an array of numpy"),
    "e.npy list": (npy_header("{'descr': [], 'fortran_order': False, 'shape': 3}"), "not an array"),
    "e.safetensors twice": (twice, "not a file of safetensors"),
    "e.safetensors again": (again, "not a file of safetensors: 'entity' stands twice"),
    "e.safetensors field": (two_dtypes, "not a file of safetensors: .* duplicate field `dtype`"),
    "e.safetensors gap": (safetensors_of(data_offsets=[0, 80]), "not a file of safetensors"),
    "e.safetensors infinite": (safetensors_of(shape=[float("inf"), 3]), "not a file of saf"),
    "e.safetensors fraction": (safetensors_of(shape=[7.9, 3]), "not a file of safetensors"),
    "e.safetensors text": (safetensors_of(shape="73"), "not a file of safetensors"),
    "e.safetensors one": (safetensors_of(data_offsets=[0]), "not a file of safetensors"),
    "e.safetensors float": (safetensors_of(data_offsets=[0.0, 84.0]), "not a file of safet"),
    "e.safetensors kind": (safetensors_of(dtype=["F32"]), "not a file of safetensors"),
    "e.safetensors none": (safetensors_of(shape=None), "not a file of safetensors"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_an_error_of_one_line_with_the_file(tmp_path, name):
    write, words = DAMAGED[name]
    path = tmp_path / name.split(" ")[0]
    write(path)
    with pytest.raises((ValueError, TypeError), match=words) as error:
        tables.open(path)
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("write", [as_hdf5, as_chunked_hdf5])
def test_damaged_hdf5_is_an_error_of_one_line_with_the_file(tmp_path, write):
    raw, picked, said = write(tmp_path, made()).read_bytes(), random.Random(0), []
    for number in range(200):
        at = picked.randrange(len(raw))
        path = tmp_path / f"{number}.h5"  # HDF5 goes on with a file of that name that is open
        path.write_bytes(raw[:at] + picked.randbytes(4) + raw[at + 4 :])
        try:
            table = tables.open(path)
            table.block(0, min(len(table), 200))
        except (ValueError, TypeError) as error:
            said.append(str(error))
    assert len(said) > 20
    assert all(it.startswith(f"{tmp_path}") and it.isprintable() for it in said)


def elsewhere(path, kind):
    """Return a file whose rows lie in another."""
    h5py = pytest.importorskip("h5py")
    rows, other = made().numpy(), path.with_name("other.h5")
    with h5py.File(other, "w") as file:
        file["rows"] = rows
        offset = file["rows"].id.get_offset()
    with h5py.File(path, "w") as file:
        if kind == "external storage":
            layout = [(str(other), offset, rows.nbytes)]
            file.create_dataset("embeddings", rows.shape, "f4", external=layout)
        elif kind == "a virtual dataset":
            virtual = h5py.VirtualLayout(rows.shape, "f4")
            virtual[:] = h5py.VirtualSource(str(other), "rows", rows.shape)
            file.create_virtual_dataset("embeddings", virtual)
        elif kind == "an external link":
            file["embeddings"] = h5py.ExternalLink(str(other), "rows")
        else:
            file["group"] = h5py.ExternalLink("other.h5", "/")
    return f"{path}:group/rows" if kind == "a linked group" else path


@pytest.mark.parametrize(
    "kind", ["external storage", "a virtual dataset", "an external link", "a linked group"]
)
def test_hdf5_leads_to_no_other_file(tmp_path, kind):
    said = "no dataset" if "link" in kind else "must hold its rows itself, and names other files"
    source = elsewhere(tmp_path / "e.h5", kind)
    source = source if ":" in str(source) else f"{source}:embeddings"
    with pytest.raises(ValueError, match=rf"e\.h5: .*{said}"):
        tables.open(source)

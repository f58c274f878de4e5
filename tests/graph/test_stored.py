"""Known triples in a folder against those in memory: the same integers, whatever they came from."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgfast
from kgfast.graph import KnownTriples, pair_index, stored
from support.engines import examples

SMALL = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 6))
HUGE = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**40])
ROWS = st.lists(SMALL, max_size=30) | st.lists(st.tuples(HUGE, st.integers(0, 3), HUGE), max_size=9)


def write(path, rows):
    """Return a file of triples, in the format of its ending."""
    rows = np.array(rows, np.int64).reshape(-1, 3)
    if path.suffix == ".npy":
        np.save(path, rows)
    else:
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows.tolist()))
    return path


def assert_same(found, expected):
    """Compare every array of the indexes, bit by bit."""
    for name in ("tail", "head"):
        one, other = found._indices[name], expected._indices[name]
        for part in ("pairs", "indptr", "indices"):
            assert getattr(one, part).dtype == getattr(other, part).dtype, (name, part)
            assert torch.equal(getattr(one, part), getattr(other, part)), (name, part)
        assert (one.num_anchors, one.num_others) == (other.num_anchors, other.num_others), name
    assert found.checksum == expected.checksum
    assert torch.equal(found.relation_frequency(), expected.relation_frequency())


@examples(25)
@given(
    parts=st.lists(st.tuples(st.sampled_from([".npy", ".tsv"]), ROWS), max_size=3),
    rows=st.integers(1, 12),
)
def test_a_folder_holds_what_memory_would(parts, rows):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_index, "CHUNK", rows)
        patch.setattr(stored, "CHUNK", rows)
        patch.setattr(stored, "_TEXT", 64)
        files = [
            write(Path(folder, f"part-{number}{ending}"), triples)
            for number, (ending, triples) in enumerate(parts)
        ]
        expected = KnownTriples(*(triples for _, triples in parts))
        found = KnownTriples.build(files, Path(folder, "known"))
        assert_same(found, expected)
        assert sorted(os.listdir(folder)) == sorted([*(path.name for path in files), "known"])


@pytest.fixture
def graph():
    """Return 3,000 triples, some of them twice, with a relation and a tail that many share."""
    rows = np.random.default_rng(7).integers(0, (200, 5, 200), (3000, 3))
    rows[:1500, 2] = 11
    rows[:900, 1] = 2
    return rows


@pytest.fixture
def folder(graph, tmp_path):
    """Return the graph in a folder, from two files with rows in common."""
    files = write(tmp_path / "a.npy", graph[:2000]), write(tmp_path / "b.tsv", graph[1900:])
    KnownTriples.build(files, tmp_path / "known")
    return tmp_path / "known"


@pytest.mark.parametrize(
    "text",
    [
        "1\t0\t2\n2\t1\t0",
        "1 0 2\r\n2 1 0\r\n",
        "\ufeff1\t0\t2\n\n2\t1\t0\n  \n",
        " 1   0\t2 \n+2\t01\t0\n",
    ],
)
def test_lines_of_ids(tmp_path, text):
    (tmp_path / "a.tsv").write_text(text, newline="")
    known = KnownTriples.build(tmp_path / "a.tsv", tmp_path / "known")
    assert_same(known, KnownTriples([(1, 0, 2), (2, 1, 0)]))


@pytest.mark.parametrize("dtype", [">i4", "u8", "i2"])
def test_integers_of_any_dtype(graph, tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.asfortranarray(graph.astype(dtype)))
    found = KnownTriples.build(tmp_path / "a.npy", tmp_path / "known")
    assert_same(found, KnownTriples(graph))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0, 0, 1], [-1, 0, 1]], r"row 1: \[-1, 0, 1\] must be ids >= 0"),
        ([[0.0, 0.5, 1.0]], "must be integers .*; got float64"),
        ([[0, 0, 1, 1]], r"must be integers \[T, 3\]; got int64, \[1, 4\]"),
        ([[2**62, 2, 0]], "too large to index"),
        ("0\t0\t1\n0\t0\n", "2: expected 3 fields"),
        ("0\t0\t1.0\n", "1: tail '1.0' is not an integer"),
        ("\n0\t-1\t0\n", r"2: relation id -1 is outside 0\.\."),
        ("0\t0\t99999999999999999999\n", "1: tail id 99999999999999999999 is outside"),
        ("10\t2\t33\n" * 500 + "1\t2\n" + "10\t2\t33\n" * 500, "501: expected 3 fields"),
    ],
    ids=str,
)
def test_bad_rows_are_named(tmp_path, monkeypatch, rows, said):
    monkeypatch.setattr(stored, "_TEXT", 100)
    path = tmp_path / ("a.tsv" if isinstance(rows, str) else "a.npy")
    path.write_text(rows) if isinstance(rows, str) else np.save(path, rows)
    with pytest.raises(ValueError, match=said):
        KnownTriples.build(path, tmp_path / "known")
    assert os.listdir(tmp_path) == [path.name], "nothing half-built is left"


def test_other_files_are_refused(graph, tmp_path, monkeypatch):
    path = write(tmp_path / "a.npy", graph)
    with pytest.raises(FileNotFoundError, match="no such file"):
        KnownTriples.build(tmp_path / "none.npy", tmp_path / "known")
    with pytest.raises(ValueError, match="is there already"):
        KnownTriples.build(path, tmp_path)
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(OSError, match=r"3,000 triples need up to .* the disk has 10 left"):
            KnownTriples.build(path, tmp_path / "known")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"a\.npy: truncated"):
        KnownTriples.build(path, tmp_path / "known")


def test_damaged_folders_are_refused(folder):
    def refused(said, error=ValueError):
        with pytest.raises(error, match=said):
            KnownTriples.open(folder)

    path = folder / "head.indices.npy"
    values = path.read_bytes()
    path.write_bytes(values[:-4])
    refused(r"head\.indices\.npy: truncated or damaged")
    np.save(path, np.zeros(3, np.int32))
    refused("damaged: the sides have different numbers of triples")
    np.save(path, np.zeros(3, np.float32))
    refused(r"head\.indices\.npy: truncated or damaged: expected integers")
    path.unlink()
    refused("no such file: the folder is not whole", FileNotFoundError)
    path.write_bytes(values)
    np.save(folder / "tail.indptr.npy", np.zeros(3, np.int32))
    refused(r"tail\.pairs\.npy: damaged: contradicts indptr")
    manifest = folder / "known.json"
    facts = json.loads(manifest.read_text())
    for changed, said in (
        ({"version": 2}, "of version 1, not .*2"),
        ({"num_entities": -1}, r"known\.json: damaged: sizes must be numbers"),
        ({"num_entities": True}, "sizes must be numbers"),
        ({"num_entities": 10**30}, r"known\.json: damaged: ids are too large"),
    ):
        manifest.write_text(json.dumps(facts | changed))
        refused(said)
    for text in (b"[", b"[" * 100_000, b'{"format": "\\ud800"', b"null", b"\xff"):
        manifest.write_bytes(text)
        refused(r"known\.json: not written by kgfast")
    manifest.unlink()
    refused("no folder that KnownTriples.build wrote", FileNotFoundError)


DAMAGES = {
    "beyond": ("tail.indptr", lambda values: values.__setitem__(2, 10**6)),
    "falling": ("head.indptr", lambda values: values.__setitem__(slice(None), values[::-1].copy())),
    "ids": ("tail.indices", lambda values: values.__setitem__(slice(None), 2**30)),
    "pairs": ("tail.pairs", lambda values: values.__setitem__(-1, 2**60)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_values_that_would_be_read_out_of_bounds_are_named(folder, graph, name):
    file, damage = DAMAGES[name]
    values = np.load(folder / f"{file}.npy", mmap_mode="r+")
    damage(values)
    values.flush()
    known = KnownTriples.open(folder)
    side, hrt = file.split(".")[0], torch.from_numpy(graph)
    anchors = hrt[:, 0 if side == "tail" else 2]
    calls = [lambda: known.exclude(anchors, hrt[:, 1], side)]
    if "pairs" in file:
        calls = [known.entity_frequency]
    if "indptr" in file:
        calls += [
            lambda: known.exclude(anchors, hrt[:, 1], side, within=(1, 9)),
            lambda: known.to("meta"),
            known.relation_cardinalities,
            known.entity_frequency,
        ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"{file}\.npy: damaged"):
            call()


def test_the_checksum_is_that_of_the_triples(folder, graph):
    found, less = KnownTriples.open(folder), KnownTriples(graph[graph[:, 0] != 7])
    assert KnownTriples(graph[1500:], graph[::-1].copy()).checksum == found.checksum
    assert less.checksum != found.checksum
    less.save(folder.with_name("less"))
    assert KnownTriples.open(folder.with_name("less")).checksum == less.checksum


def test_relations_of_a_folder_are_indexed_in_memory(folder, graph):
    heads, _, tails = torch.from_numpy(graph[:9].copy()).T
    found, expected = (
        known.exclude(heads, tails, "relation")
        for known in (KnownTriples.open(folder), KnownTriples(graph))
    )
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_consumers_take_a_mapped_index(folder, graph, tmp_path, monkeypatch):
    mapped, known = KnownTriples.open(folder), KnownTriples(graph)
    monkeypatch.setattr(pair_index.PairIndex, "rows", None)  # a copy of all triples
    model = kgfast.DistMult.init(200, 5, 4, seed=0)
    hrt = torch.from_numpy(graph[::200].copy())
    expected = kgfast.rank(model, hrt, known=known)
    np.save(tmp_path / "entity.npy", model.entity.detach().numpy())
    streamed = kgfast.DistMult(kgfast.tables.open(tmp_path / "entity.npy"), model.relation)
    spans = [(0, 30), (30, 200)]
    parts = [kgfast.distributed.count_range(model, hrt, *span, known=mapped) for span in spans]
    for ranks in (
        kgfast.rank(model, hrt, known=mapped),
        kgfast.rank(streamed, hrt, known=mapped, max_memory="64MiB"),
        kgfast.distributed.merge(parts, known=mapped),
    ):
        assert torch.equal(ranks.greater, expected.greater)
        assert torch.equal(ranks.num_candidates, expected.num_candidates)
        for how in ("cardinality", "frequency"):
            assert repr(ranks.by(how)) == repr(expected.by(how))
    for ask in (kgfast.topk, kgfast.top_facts):
        options = {"heads": [3, 4], "relations": [2] if ask is kgfast.top_facts else 2, "k": 5}
        answers = [ask(model, known=index, **options) for index in (mapped, known)]
        assert repr(answers[0]) == repr(answers[1])
    assert torch.equal(mapped.contains(graph), known.contains(graph))

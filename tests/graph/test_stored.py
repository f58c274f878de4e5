"""Known triples in a folder against those in memory: the same integers, whatever they came from."""

import copy
import json
import os
import pickle
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgfast
from kgfast.graph import KnownTriples
from kgfast.graph.pair_index import PairIndex
from kgfast.graph.stored import building, inputs
from support.engines import examples

SMALL = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 6))
ROW = building._ROW_BYTES
HUGE = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**40])
ROWS = st.lists(SMALL, max_size=30) | st.lists(st.tuples(HUGE, st.integers(0, 3), HUGE), max_size=9)


def write(path, rows):
    """Return a file of triples, in the format of its ending."""
    rows = np.array(rows, np.int64).reshape(-1, 3)
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table(dict(zip(("head", "relation", "tail"), rows.T, strict=True)))
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=3)
    else:
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows.tolist()))
    return path


def assert_same(found, expected, relations=False):
    """Every array of both indices, bit by bit."""
    for name in ("_tails", "_heads", "_relations")[: 2 + relations]:
        own, other = getattr(found, name), getattr(expected, name)
        for part in ("pairs", "indptr", "indices"):
            assert getattr(own, part).dtype == getattr(other, part).dtype, (name, part)
            assert torch.equal(getattr(own, part), getattr(other, part)), (name, part)
        sizes = [(it.num_anchors, it.num_others) for it in (own, other)]
        assert sizes[0] == sizes[1], name
    assert repr(found) == repr(expected)
    assert torch.equal(found.relation_frequency(), expected.relation_frequency())


@examples(25)
@given(
    parts=st.lists(st.tuples(st.sampled_from([".npy", ".tsv"]), ROWS), max_size=3),
    rows=st.integers(1, 12),
)
def test_a_folder_holds_what_memory_would(parts, rows):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "_PIECE", 5)
        patch.setattr(inputs, "_TEXT", 64)
        files = [
            write(Path(folder, f"part-{number}{ending}"), own)
            for number, (ending, own) in enumerate(parts)
        ]
        expected = KnownTriples(*(own for _, own in parts))
        is_small = all(it <= 6 for _, own in parts for row in own for it in row)
        found = KnownTriples.build(
            files, Path(folder, "known"), max_memory=rows * ROW, relations=is_small
        )
        if is_small:
            expected._index("relation")
        assert_same(found, expected, relations=is_small)
        assert found.checksum == expected.checksum
        if is_small and len(expected):
            assert torch.equal(found.entity_frequency(), expected.entity_frequency())
        assert sorted(os.listdir(folder)) == sorted([*(it.name for it in files), "known"])


@pytest.fixture
def graph():
    """3,000 triples, some of them twice, with a relation and a tail that many share."""
    generator = np.random.default_rng(7)
    rows = generator.integers(0, (200, 5, 200), (3000, 3))
    rows[:1500, 2] = 11
    rows[:900, 1] = 2
    return rows


@pytest.fixture
def files(graph, tmp_path):
    """Return the graph in three files of three kinds, in order and with rows in common."""
    parts = (".npy", graph[:1100]), (".parquet", graph[1000:2000]), (".tsv", graph[1900:])
    return [
        write(tmp_path / f"{number}{ending}", own) for number, (ending, own) in enumerate(parts)
    ]


@pytest.mark.parametrize("rows", [50, 1000, 10**6])
def test_files_of_all_kinds_are_one_graph(files, graph, tmp_path, rows):
    found = KnownTriples.build(files, tmp_path / "known", max_memory=rows * ROW, relations=True)
    expected = KnownTriples(graph)
    expected._index("relation")
    assert_same(found, expected, relations=True)
    assert_same(KnownTriples.open(tmp_path / "known", verify=True), expected)


def test_the_checksum_is_that_of_the_triples(files, graph, tmp_path):
    found = KnownTriples.build(files, tmp_path / "known", max_memory=500 * ROW)
    other = write(tmp_path / "other.npy", graph[::-1])
    assert KnownTriples.build(other, tmp_path / "again").checksum == found.checksum
    less = write(tmp_path / "less.npy", graph[graph[:, 0] != 7])
    assert KnownTriples.build(less, tmp_path / "less").checksum != found.checksum
    assert found.to("cpu").checksum == found.checksum
    in_memory = KnownTriples(graph[1500:], graph)
    assert in_memory.checksum == found.checksum
    assert pickle.loads(pickle.dumps(in_memory)).checksum == found.checksum
    assert KnownTriples(graph).to("cpu").checksum == found.checksum
    assert KnownTriples(graph[graph[:, 0] != 7]).checksum != found.checksum


@pytest.mark.parametrize("order", ["hrt", "htr", "rth", "trh"])
@pytest.mark.parametrize("ending", [".npy", ".txt"])
def test_columns_in_any_order(graph, tmp_path, order, ending):
    path = write(tmp_path / f"a{ending}", graph[:40, ["hrt".index(letter) for letter in order]])
    found = KnownTriples.build(path, tmp_path / "known", columns=order)
    assert_same(found, KnownTriples(graph[:40]))


@pytest.mark.parametrize(
    "text",
    [
        "1\t0\t2\n2\t1\t0",
        "1 0 2\n2 1 0\n",
        "1\t0\t2\r\n2\t1\t0\r\n",
        "\ufeff1\t0\t2\n\n2\t1\t0\n  \n",
        " 1   0\t2 \n+2\t01\t0\n",
    ],
)
def test_lines_of_ids(tmp_path, text):
    (tmp_path / "a.tsv").write_text(text, newline="")
    known = KnownTriples.build(tmp_path / "a.tsv", tmp_path / "known")
    assert_same(known, KnownTriples([(1, 0, 2), (2, 1, 0)]))


def test_whole_numbers_of_any_dtype(graph, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, dtype in enumerate(["<f8", ">i4", "u8", "i2"]):
        np.save(folder / f"{number}.npy", graph[number * 100 :][:100].astype(dtype))
    np.save(folder / "columns.npy", np.asfortranarray(graph[400:500]))
    found = KnownTriples.build(folder, tmp_path / "known")
    assert_same(found, KnownTriples(graph[:500]))


BAD_ARRAYS = [
    ([[0, 0, 1], [0, 0, 9]], ValueError, r"row 1: tail 9 is outside 0\.\.8"),
    ([[0, 4, 1]], ValueError, r"row 0: relation 4 is outside 0\.\.3"),
    ([[0, 0, 1], [-1, 0, 1]], ValueError, r"row 1: head -1 is outside 0\.\.8"),
    ([[0.0, 0.5, 1.0]], ValueError, r"row 0: relation 0.5 is not a whole number"),
    ([[0.0, 0.0, np.nan]], ValueError, "row 0: tail nan is not a whole number"),
    ([[0.0, 0.0, np.inf]], ValueError, "row 0: tail inf is not a whole number"),
    ([[0, 0, 1, 1]], ValueError, r"must have shape \[T, 3\]; got \[1, 4\]"),
    ([0, 0, 1], ValueError, r"must have shape \[T, 3\]; got \[3\]"),
    ([["a", "b", "c"]], TypeError, "triples must be ids; got <U1"),
]


@pytest.mark.parametrize(("rows", "error", "said"), BAD_ARRAYS)
def test_bad_arrays_are_refused(tmp_path, rows, error, said):
    path = tmp_path / "a.npy"
    np.save(path, rows)
    with pytest.raises(error, match=rf"a\.npy: (.*){said}"):
        KnownTriples.build(path, tmp_path / "known", num_entities=9, num_relations=4)


BAD_LINES = [
    ("0\t0\n", "2: expected 3 fields"),
    ("0\t0\t0\t0\n", "2: expected 3 fields"),
    ("0\t0\t1.0\n", "2: tail '1.0' is not an integer"),
    ("0\t0\t9\n", r"2: tail id 9 is outside 0\.\.8"),
    ("0\t-1\t0\n", r"2: relation id -1 is outside 0\.\.3"),
    ("ann\tknows\tbob\n", "2: head 'ann' is not an integer"),
    ("0\t0\t99999999999999999999\n", "2: tail id 99999999999999999999 is outside"),
]


@pytest.mark.parametrize(("line", "said"), BAD_LINES)
@pytest.mark.parametrize("before", ["0\t0\t1\n", "\n"])
def test_bad_lines_are_named(tmp_path, line, said, before):
    path = tmp_path / "a.tsv"
    path.write_text(before + line)
    with pytest.raises(ValueError, match=rf"a\.tsv:{said}"):
        KnownTriples.build(path, tmp_path / "known", num_entities=9, num_relations=4)


def test_a_line_far_into_a_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "_TEXT", 100)
    (tmp_path / "a.tsv").write_text("10\t2\t33\n" * 500 + "1\t2\n" + "10\t2\t33\n" * 500)
    with pytest.raises(ValueError, match=r"a\.tsv:501: expected 3 fields"):
        KnownTriples.build(tmp_path / "a.tsv", tmp_path / "known")


def test_bad_parquet_files_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def refused(columns, said, error=ValueError):
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        with pytest.raises(error, match=said):
            KnownTriples.build(tmp_path / "a.parquet", tmp_path / "known")

    refused({"head": [0], "relation": [0]}, "expected columns head, relation, tail")
    refused({"h": [0, 1], "r": [0, None], "t": [0, 1]}, "row 1 has no id")
    refused({"h": [0], "r": [0.25], "t": [0]}, "row 0: relation 0.25 is not a whole number")
    refused({"h": ["ann"], "r": [0], "t": [0]}, "must be ids; got string", TypeError)
    path = write(tmp_path / "b.parquet", np.arange(3000).reshape(-1, 3))
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match="no valid Parquet file, or truncated"):
        KnownTriples.build(path, tmp_path / "known")


def test_other_files_are_refused(files, tmp_path):
    files[0].write_bytes(files[0].read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"0\.npy: .*truncated"):
        KnownTriples.build(files, tmp_path / "known")
    with pytest.raises(FileNotFoundError, match="no such file"):
        KnownTriples.build(tmp_path / "none.npy", tmp_path / "known")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(ValueError, match=r"must end in .npy, .parquet, .*; got .csv"):
        KnownTriples.build(tmp_path / "a.csv", tmp_path / "known")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no files"):
        KnownTriples.build(tmp_path / "empty", tmp_path / "known")
    with pytest.raises(TypeError, match="must be a path or a list"):
        KnownTriples.build(3, tmp_path / "known")
    with pytest.raises(ValueError, match="columns must be one of"):
        KnownTriples.build(files, tmp_path / "known", columns="hhh")
    (tmp_path / "empty" / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="is there already"):
        KnownTriples.build(files[1:], tmp_path / "empty")
    assert not (tmp_path / "known").exists()


def test_ids_too_large_to_pack_are_refused(tmp_path):
    path = write(tmp_path / "a.npy", [(2**62, 2, 0)])
    with pytest.raises(ValueError, match="relations passes"):
        KnownTriples.build(path, tmp_path / "known")
    path = write(tmp_path / "b.npy", [(2**40, 2, 0)])
    with pytest.raises(ValueError, match="squared pass"):
        KnownTriples.build(path, tmp_path / "other", relations=True)


def test_no_range_of_a_merge_is_larger_than_asked_for(graph, tmp_path):
    paths = []
    for first in range(0, len(graph), 90):
        paths.append(tmp_path / f"run-{first}.npy")
        building.save_run(paths[-1], tuple(graph[first : first + 90].T))
    for most in (150, 400, 2000):
        counts = [rows for rows, _, _ in building.merged(paths, most, 5, 200)]
        assert max(counts) <= most
        assert len(counts) > 1


@pytest.mark.parametrize("ending", [".npy", ".tsv"])
def test_a_file_that_changes_under_a_run_is_refused(graph, tmp_path, monkeypatch, ending):
    def changed(*run):
        os.utime(path, (0, 0))
        original(*run)

    path, original = write(tmp_path / f"a{ending}", graph), building.save_run
    monkeypatch.setattr(building, "save_run", changed)
    with pytest.raises(ValueError, match=rf"a\{ending} changed during reading"):
        KnownTriples.build(path, tmp_path / "known", max_memory=500 * ROW)
    assert os.listdir(tmp_path) == [path.name], "nothing half-built is left"


def test_the_disk_is_looked_at_before(files, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(building.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"3,\d+ triples need up to .* the disk has 10 left"):
        KnownTriples.build(files, tmp_path / "known")
    assert not (tmp_path / "known").exists()


@pytest.fixture
def folder(files, tmp_path):
    KnownTriples.build(files, tmp_path / "known")
    return tmp_path / "known"


def test_damaged_folders_are_refused(folder):
    def refused(said, error=ValueError, **options):
        with pytest.raises(error, match=said):
            KnownTriples.open(folder, **options)

    path = folder / "head.indices.npy"
    values = path.read_bytes()
    path.write_bytes(values[:-4])
    refused(r"head\.indices\.npy: truncated or damaged")
    path.write_bytes(values + b"0")
    refused("damaged: .* values were written")
    path.write_bytes(values[:-1] + bytes([values[-1] ^ 1]))
    refused("damaged: the values are not those", verify=True)
    path.unlink()
    refused("no such file: the folder is not whole", FileNotFoundError)
    path.write_bytes(values)
    manifest = folder / "known.json"
    facts = json.loads(manifest.read_text())
    for changed, said in (
        ({"version": 2}, "of version 1, not .*2"),
        ({"format": "x"}, "'kgfast known triples' of version 1"),
        ({"num_entities": -1}, r"known\.json: damaged: sizes must be numbers"),
        ({"num_entities": True}, "sizes must be numbers"),
        ({"num_entities": 10**30}, r"known\.json: damaged: ids are too large"),
        ({"sides": {}}, "damaged: the sides are"),
        ({"sides": {"tail": 3}}, "damaged"),
        ({"checksum": 3}, "contradict each other"),
        (of_array("tail", "pairs", blake2b=3), "contradict each other"),
        (of_array("tail", "indptr", count=3), "contradict each other"),
        (of_array("head", "indices", count=3), "contradict each other"),
        (of_array("head", "indptr", count=3), r"head\.indptr\.npy: truncated or damaged"),
        (of_array("head", "pairs", dtype=None), r"head\.pairs\.npy: .*damaged: KeyError"),
    ):
        changed = changed(facts) if callable(changed) else changed
        manifest.write_text(json.dumps(facts | changed))
        refused(said)
    for text in (b"[", b"[" * 100_000, b'{"format": "\\ud800"', b"null", b'"x"', b"\xff"):
        manifest.write_bytes(text)
        refused(r"known\.json: not written by kgfast")
    manifest.unlink()
    refused("no folder that KnownTriples.build wrote", FileNotFoundError)


def of_array(side, part, **changed):
    """Return a manifest that says other things of an array; None: nothing."""

    def change(facts):
        own = facts["sides"][side][part] | changed
        own = {key: value for key, value in own.items() if value is not None}
        return {"sides": facts["sides"] | {side: facts["sides"][side] | {part: own}}}

    return change


DAMAGES = {
    "beyond": ("tail.indptr", lambda values: values.__setitem__(2, 10**6)),
    "negative": ("tail.indptr", lambda values: values.__setitem__(2, -5)),
    "falling": ("head.indptr", lambda values: values.__setitem__(slice(None), values[::-1].copy())),
    "ids": ("tail.indices", lambda values: values.__setitem__(slice(None), 2**30)),
    "negative ids": ("head.indices", lambda values: values.__setitem__(slice(None), -1)),
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
            lambda: known.counts(anchors, hrt[:, 1], side),
            lambda: known.exclude(anchors, hrt[:, 1], side, within=(1, 9)),
            lambda: known.to("meta"),
            known.relation_cardinalities,
            known.entity_frequency,
        ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"{file}\.npy: damaged"):
            call()


def test_a_folder_travels_as_its_path(folder, graph):
    known = KnownTriples.open(folder)
    data = pickle.dumps(known)
    assert len(data) < 1000
    for other in (pickle.loads(data), copy.deepcopy(known)):
        assert_same(other, KnownTriples(graph))
    shutil.rmtree(folder)
    KnownTriples.build(write(folder.with_suffix(".npy"), graph[:9]), folder)
    with pytest.raises(ValueError, match="holds other triples than at the earlier opening"):
        pickle.loads(data)


def test_relations_need_their_own_index(folder, graph):
    known, ids = KnownTriples.open(folder), torch.tensor([0])
    with pytest.raises(ValueError, match="built without the relations"):
        known.exclude(ids, ids, "relation")


def test_consumers_take_a_mapped_index(folder, graph, tmp_path, monkeypatch):
    mapped, known = KnownTriples.open(folder), KnownTriples(graph)
    monkeypatch.setattr(PairIndex, "triples", None)  # a copy of all triples
    model = kgfast.DistMult.init(200, 5, 4, seed=0)
    hrt = torch.from_numpy(graph[::200].copy())
    expected = kgfast.rank(model, hrt, known=known)
    np.save(tmp_path / "entity.npy", model.entity.detach().numpy())
    streamed = kgfast.DistMult(kgfast.tables.open(tmp_path / "entity.npy"), model.relation)
    spans = [(0, 30), (30, 200)]
    parts = [kgfast.distributed.count_range(model, hrt, *it, known=mapped) for it in spans]
    for ranks in (
        kgfast.rank(model, hrt, known=mapped),
        kgfast.rank(streamed, hrt, known=mapped, max_memory="64MiB"),
        kgfast.distributed.merge(parts, known=mapped),
    ):
        assert torch.equal(ranks.greater, expected.greater)
        assert torch.equal(ranks.equal, expected.equal)
        assert torch.equal(ranks.num_candidates, expected.num_candidates)
        for how in ("cardinality", "frequency"):
            assert repr(ranks.by(how)) == repr(expected.by(how))
    for found in (kgfast.topk, kgfast.top_facts):
        options = {"heads": [3, 4], "relations": [2] if found is kgfast.top_facts else 2, "k": 5}
        answers = [found(model, known=it, **options) for it in (mapped, known)]
        assert repr(answers[0]) == repr(answers[1])
    assert torch.equal(mapped.contains(graph), known.contains(graph))


@pytest.mark.parametrize("what", ["rank", "topk"])
def test_partial_folders_go_by_the_checksum(folder, graph, tmp_path, what):
    def call(known):
        kept = {"partial": tmp_path / "partial", "max_memory": "64MiB", "known": known}
        if what == "rank":
            return kgfast.rank(model, graph[::300].copy(), **kept).greater
        return kgfast.topk(model, heads=graph[:5, 0], relations=2, k=4, **kept).ids

    model = kgfast.DistMult.init(200, 5, 4, seed=0)
    np.save(tmp_path / "entity.npy", model.entity.detach().numpy())
    model = kgfast.DistMult(kgfast.tables.open(tmp_path / "entity.npy"), model.relation)
    first = call(KnownTriples.open(folder))
    assert torch.equal(call(KnownTriples.open(folder)), first)
    write(tmp_path / "less.npy", graph[graph[:, 0] != 7])
    less = KnownTriples.build(tmp_path / "less.npy", tmp_path / "less")
    with pytest.raises(ValueError, match="is of another call"):
        call(less)
    in_memory = KnownTriples(graph)
    assert torch.equal(call(in_memory), first), "it goes on with the same triples in memory"
    with pytest.raises(ValueError, match="is of another call"):
        call(KnownTriples(graph[1:], [(199, 4, 199)]))
    shutil.rmtree(tmp_path / "partial")
    assert torch.equal(call(in_memory), first)
    assert torch.equal(call(KnownTriples.open(folder)), first)


def test_progress_is_shown_to_the_end(files, tmp_path, monkeypatch):
    bars = []

    def bar(progress, label, total):
        bars.append((total, []))
        return nullcontext(bars[-1][1].append)

    monkeypatch.setattr(building, "progress_bar", bar)
    KnownTriples.build(files[:2], tmp_path / "known", max_memory=300 * ROW)
    assert [0.8 * total < sum(steps) <= total for total, steps in bars] == [True, True]

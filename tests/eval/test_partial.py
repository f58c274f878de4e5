"""A pass over a file that is stopped, or killed, and goes on."""

import json
import os
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import kgfast
from kgfast import tables
from kgfast.eval import partial, rows
from support.engines import assert_same
from support.forked import printed_by
from support.partial import ask, stop_after
from support.ranked_models import MODELS
from support.streamed import KNOWN, SMALL, TRIPLES, D, N, R, in_file, rotate, same


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("kind", ["rank", "topk", "facts"])
def test_each_front_goes_on_where_it_was_stopped(tmp_path, monkeypatch, kind, count, dtype):
    model = MODELS["distmult"](N, R, D, 0).to(dtype)
    model.entity.data = model.entity.data[torch.arange(N) % 9].contiguous()  # ties
    stored, expected = in_file(model, tmp_path), ask(kind, model)
    # 244 queries for facts, of which two are a pass
    memory = 2 * SMALL if kind == "facts" else SMALL
    files = {"max_memory": memory, "partial": tmp_path / "kept"}
    with monkeypatch.context() as patch:
        kept = stop_after(patch, count)
        with pytest.raises(KeyboardInterrupt):
            ask(kind, stored, **files)
    assert len(kept) == count
    for _ in range(2):  # goes on; and reads what is finished, with its dtype
        assert_same(ask(kind, stored, **files | {"max_memory": "1GiB"}), expected)
    assert len(list((tmp_path / "kept").glob("pass-*.safetensors"))) > 2
    others = {"rank": {}, "topk": {"k": 5}, "facts": {"heads": [1]}}[kind]
    for change in ({"known": None}, others):
        with pytest.raises(ValueError, match="is of another call"):
            ask(kind, stored, **files | change) if change else ask("topk", stored, **files)


def test_what_is_finished_is_not_read_again(tmp_path, monkeypatch):
    model, stored = rotate(tmp_path)
    options = {"known": KNOWN, "max_memory": SMALL, "partial": tmp_path / "ranks"}
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(KeyboardInterrupt):
            kgfast.rank(stored, TRIPLES, **options)
    read, original = [], rows.prefetched

    def counted(table, ranges, *rest, **options):
        read.extend(stop - start for start, stop in ranges)
        return original(table, ranges, *rest, **options)

    monkeypatch.setattr(rows, "prefetched", counted)
    # the passes are those of the first call, whatever memory there is now
    found = kgfast.rank(stored, TRIPLES, **options | {"max_memory": "1GiB"})
    same(found, kgfast.rank(model, TRIPLES, known=KNOWN))
    first_rows = sum(read)
    read.clear()
    same(kgfast.rank(stored, TRIPLES, **options), found)
    assert not read, "what is finished is not read again"
    whole = tmp_path / "whole"
    kgfast.rank(stored, TRIPLES, **options | {"partial": whole})
    assert first_rows < sum(read)


@pytest.mark.parametrize(
    "change", ["table", "triples", "known", "sides", "dims", "candidates", "relation", "nan"]
)
def test_the_folder_of_another_call_is_an_error(tmp_path, change):
    _, stored = rotate(tmp_path)
    options = {"known": KNOWN, "partial": tmp_path / "ranks", "max_memory": SMALL}
    kgfast.rank(stored, TRIPLES, **options)
    triples = TRIPLES
    if change == "table":
        os.utime(tmp_path / "e.npy", ns=(1, 1))
        stored = stored.with_entity(tables.open(tmp_path / "e.npy"))
    elif change == "triples":
        triples = TRIPLES[1:]
    elif change == "relation":
        stored.relation.data[0, 0] += 1
    else:
        options |= {
            "known": {"known": None},
            "sides": {"sides": ("tail",)},
            "dims": {"dims": 3},
            "candidates": {"candidate_ids": torch.arange(30)},
            "nan": {"nan": "worst"},
        }[change]
    with pytest.raises(ValueError, match="is of another call"):
        kgfast.rank(stored, triples, **options)


@pytest.mark.parametrize("how", ["by the table", "by another"])
def test_a_file_that_is_written_to_in_a_pass_is_named(tmp_path, monkeypatch, how):
    model, stored = rotate(tmp_path)
    table = tables.open(tmp_path / "e.npy", writable=True) if how == "by the table" else None
    stored = stored if table is None else model.with_entity(table)
    options = {"max_memory": SMALL, "partial": tmp_path / "ranks"}
    save = partial.Partial.save

    def changing(self, *args):
        save(self, *args)
        if table is None:
            os.utime(tmp_path / "e.npy", ns=(1, 1))
        else:
            table.update(torch.tensor([60]), model.entity.detach()[:1])

    said = {
        "by the table": r"FileTable\(e\.npy.*was written to while rows \d+ \.\. ",
        "by another": r"e\.npy changed while it was read: it was written",
    }[how]
    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "save", changing)
        with pytest.raises(ValueError, match=said):
            kgfast.rank(stored, TRIPLES, **options)
    assert (tmp_path / "ranks" / "pass-0.safetensors").exists(), "finished work is saved"
    again = stored.with_entity(tables.open(tmp_path / "e.npy"))
    with pytest.raises(ValueError, match="is of another call"):
        kgfast.rank(again, TRIPLES, **options)


@pytest.mark.parametrize("what", ["queries", "bias"])
def test_what_a_model_of_another_class_hides(tmp_path, what):
    """Tensors in a dict are not seen, so what comes of them is looked at."""
    inner, stored = rotate(tmp_path)
    hidden = {"queries": torch.zeros(R, 2 * D), "bias": torch.zeros(N)}

    class Own:
        score, num_entities, num_relations, dim = "rotate", N, R, D
        entity = stored.entity

        def queries(self, anchors, relations, side):
            return inner.queries(anchors, relations, side) + hidden["queries"][relations]

        def candidates(self, side):
            return kgfast.Candidates(self.entity, hidden["bias"])

    triples = TRIPLES[torch.arange(200) % len(TRIPLES)]
    triples[:150, 1] = 0
    triples[150:, 1] = 1
    options = {"partial": tmp_path / "ranks", "sides": ("tail",)}
    kgfast.rank(Own(), triples, **options)
    hidden[what][1] += 100
    with pytest.raises(ValueError, match="is of another call"):
        kgfast.rank(Own(), triples, **options)


def test_folders_that_hold_something_else(tmp_path):
    _, stored = rotate(tmp_path)
    with pytest.raises(ValueError, match=r"holds other files, 'e\.npy'"):
        kgfast.rank(stored, TRIPLES, partial=tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a model, the folder of a finished call, and what that found."""
    path = tmp_path_factory.mktemp("finished")
    model, stored = rotate(path)
    expected = kgfast.rank(model, TRIPLES, **ONE_SIDE)
    same(kgfast.rank(stored, TRIPLES, **ONE_SIDE, max_memory=SMALL, partial=path / "k"), expected)
    return stored, path / "k", expected


@pytest.fixture
def kept(finished, tmp_path):
    """Return a copy of that folder."""
    return shutil.copytree(finished[1], tmp_path / "kept")


ONE_SIDE = {"known": KNOWN, "sides": ("tail",)}


# Damage to the file of a pass: to its bytes, or to tensors and facts.
BYTES = {
    "cut": lambda data: data[:-30],
    "bit": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "header": lambda data: data[:40] + bytes([data[40] ^ 4]) + data[41:],
    "empty": lambda data: b"",
    "end": lambda data: data + data[-40:],
    "huge": lambda data: (2**50).to_bytes(8, "little") + data[8:],
}
TENSORS = {
    "gone": lambda values, facts: values.pop("0"),
    "more": lambda values, facts: values.update({"7": torch.ones(3)}),
    "shape": lambda values, facts: values.update({"0": values["0"][:1].clone()}),
    "dtype": lambda values, facts: values.update({"0": values["0"].double()}),
    "value": lambda values, facts: values["0"].view(-1)[3].add_(1),
    "no row": lambda values, facts: facts.pop("next_row"),
    "fraction": lambda values, facts: facts.update(next_row="10.5"),
    "negative": lambda values, facts: facts.update(next_row="-1"),
    "beyond": lambda values, facts: facts.update(next_row=str(N + 1)),
    "within": lambda values, facts: facts.update(next_row=str(int(facts["next_row"]) - 1)),
    "back": lambda values, facts: facts.update(next_row="0"),
}


def damage(how, path):
    if how in BYTES:
        path.write_bytes(BYTES[how](path.read_bytes()))
        return
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    values = load_file(path)
    TENSORS[how](values, facts)
    save_file(values, path, facts)


@pytest.mark.parametrize("how", [*BYTES, *TENSORS])
def test_a_damaged_file_of_a_pass_is_named(finished, kept, how):
    stored, _, expected = finished
    damage(how, kept / "pass-0.safetensors")
    with pytest.raises(ValueError, match=r"pass-0\.safetensors: damaged: .*; delete the file$"):
        kgfast.rank(stored, TRIPLES, **ONE_SIDE, partial=kept)
    (kept / "pass-0.safetensors").unlink()
    same(kgfast.rank(stored, TRIPLES, **ONE_SIDE, partial=kept), expected)


@pytest.mark.parametrize("what", ["pass", "folder"])
def test_a_pass_of_another_pass_or_call_is_damaged(finished, kept, tmp_path, what):
    stored, _, _ = finished
    other = kept / "pass-1.safetensors"
    if what == "folder":
        options = ONE_SIDE | {"known": None, "max_memory": SMALL, "partial": tmp_path / "raw"}
        kgfast.rank(stored, TRIPLES, **options)
        other = tmp_path / "raw" / "pass-0.safetensors"
    shutil.copy(other, kept / "pass-0.safetensors")
    with pytest.raises(ValueError, match=r"pass-0\.safetensors: damaged"):
        kgfast.rank(stored, TRIPLES, **ONE_SIDE, partial=kept)


CALLS = {
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "a number": "3",
    "deep": "[" * 100_000,
    "binary": b"\xff\xfe\x00",
    "zero": {"per_pass": 0},
    "negative": {"per_pass": -5},
    "fraction": {"per_pass": 2.5},
    "text": {"per_pass": "7"},
    "true": {"per_pass": True},
    "another": {"per_pass": 3},
    "huge": {"block_rows": 10**30},
    "no rows": {"block_rows": 0},
    "format": {"format": "1"},
    "fingerprint": {"fingerprint": None},
    "blocks": {"blocks": ["00000000"]},
    "more": {"also": 1},
    "less": {"per_pass": ...},
}


@pytest.mark.parametrize("how", CALLS)
def test_a_damaged_call_is_named(finished, kept, how):
    stored, _, expected = finished
    path, given = kept / "call.json", CALLS[how]
    if isinstance(given, dict):
        given = json.loads(path.read_text()) | given
        given = json.dumps({name: it for name, it in given.items() if it is not ...})
    path.write_bytes(given if isinstance(given, bytes) else given.encode())
    with pytest.raises(ValueError, match=r"call\.json: damaged: .*; delete the file$"):
        kgfast.rank(stored, TRIPLES, **ONE_SIDE, partial=kept)
    path.unlink()
    same(kgfast.rank(stored, TRIPLES, **ONE_SIDE, max_memory=SMALL, partial=kept), expected)


def test_a_full_disk_is_said_and_what_was_finished_is_kept(tmp_path, monkeypatch):
    model, stored = rotate(tmp_path)
    options = {"max_memory": SMALL, "partial": tmp_path / "ranks"}
    usage, asked = shutil.disk_usage(tmp_path), []

    def filling(path):
        asked.append(path)
        return usage._replace(free=usage.free if len(asked) < 3 else 100)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", filling)
        with pytest.raises(OSError, match="the disk has 100 left: make room"):
            kgfast.rank(stored, TRIPLES, **options)
    assert (tmp_path / "ranks" / "pass-0.safetensors").exists()
    same(kgfast.rank(stored, TRIPLES, **options), kgfast.rank(model, TRIPLES))


# Ends a child before each line (or every n-th) of what writes a folder, and goes on in its place.
KILLS = r"""
import os, shutil, signal, sys
from itertools import count
from pathlib import Path
import numpy as np, torch, kgfast
from kgfast import locks
from kgfast import whole_files as files
from kgfast.eval import partial

os.fsync = lambda descriptor: None  # a kill is no power cut
torch.set_num_threads(1)
folder, storage, stride = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
model = kgfast.DistMult.init(40, 2, 8, seed=0)
triples = [(3, 0, 17), (39, 1, 5)]
expected = kgfast.rank(model, triples)
np.save(folder / "e.npy", model.entity.detach().numpy())
table = kgfast.tables.open(folder / "e.npy" if storage == "file" else model.entity.detach())
stored = kgfast.DistMult(table, model.relation)

def ranked():
    return kgfast.rank(stored, triples, max_memory=12_000, partial=folder / "ranks")

def is_watched(code):
    if code.co_name in ("add", "bytes_of", "_digest"):
        return False
    watched = partial.__file__, locks.__file__, files.__file__
    return code.co_filename in watched or code.co_name in ("_savez", "write_text")

def dying(moment):
    lines = 0
    def trace(frame, event, _):
        nonlocal lines
        if not is_watched(frame.f_code):
            return None
        lines += event == "line"
        if lines == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    ranked()
    os._exit(0)

for moment in count(1, stride):
    child = os.fork()
    if not child:
        dying(moment)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    found = ranked()
    assert torch.equal(found.greater, expected.greater), moment
    assert torch.equal(found.equal, expected.equal), moment
    left = sorted(path.name for path in (folder / "ranks").iterdir())
    assert left == [".lock", "call.json", "pass-0.safetensors"], (moment, left)
    shutil.rmtree(folder / "ranks")
print(moment)
"""


@pytest.mark.parametrize(
    ("storage", "stride"),
    [
        ("file", 7),
        pytest.param("file", 1, marks=pytest.mark.slow),
        pytest.param("tensor", 1, marks=pytest.mark.slow),
    ],
)
def test_a_kill_at_any_moment_resumes(tmp_path, storage, stride):
    printed = printed_by(KILLS, arguments=(tmp_path, storage, stride), timeout=600)
    assert int(printed) > 150, "what writes a folder is not watched any more"


# Several children that begin at once on one folder, round by round.
TOGETHER = r"""
import os, re, socket, sys, time
from pathlib import Path
import numpy as np, torch, kgfast
from kgfast.eval import partial

os.fsync = lambda descriptor: None  # a kill is no power cut
torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = kgfast.DistMult.init(40, 2, 8, seed=0)
triples = [(3, 0, 17), (39, 1, 5)]
expected = kgfast.rank(model, triples)
np.save(folder / "e.npy", model.entity.detach().numpy())
stored = kgfast.DistMult(kgfast.tables.open(folder / "e.npy"), model.relation)
save = partial.Partial.save

def slow(self, *args):
    time.sleep(0.02)
    save(self, *args)

def outcome(place):
    try:
        found = kgfast.rank(stored, triples, max_memory=12_000, partial=place)
    except ValueError as error:
        return str(error)
    is_same = torch.equal(found.greater, expected.greater)
    return "right" if is_same and torch.equal(found.equal, expected.equal) else "wrong"

partial.Partial.save = slow
for number in range(4):
    begin, go = os.pipe()
    place, children = folder / f"ranks-{number}", []
    for _ in range(4):
        child = os.fork()
        if not child:
            os.close(go)
            os.read(begin, 1)  # returns for all when the parent closes its end
            (folder / f"{os.getpid()}.txt").write_text(outcome(place))
            os._exit(0)
        children.append(child)
    os.close(go)
    os.close(begin)
    said = {}
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        said[child] = (folder / f"{child}.txt").read_text()
    assert "right" in said.values(), said
    for child, text in said.items():
        if text == "right":
            continue
        pattern = (
            f"partial: {place} is being written by another process: process (\d+) on host "
            f"{socket.gethostname()}, since 20.*; wait for that process or "
            "end it, or choose another folder"
        )
        match = re.fullmatch(pattern, text)
        assert match and int(match[1]) in set(children) - {child}, said
    assert outcome(place) == "right"
print("refused" if len(set(said.values())) > 1 else "")
"""


def test_several_processes_at_once_on_one_folder(tmp_path):
    printed_by(TOGETHER, arguments=[tmp_path], timeout=600)

"""Calls with ``partial=`` that are stopped, or killed, and go on."""

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
from support.ranked_models import MODELS
from support.streamed import KNOWN, SMALL, TRIPLES, D, N, R, in_file, rotate, same

ANOTHER = "is of another call"
FEW = torch.arange(30)


def stop_after(patch, count):
    """Let a call end, as if it was killed, when it has saved so many times."""
    save, kept = partial.Partial.save, []

    def stopped(self, *args):
        if len(kept) == count:
            raise KeyboardInterrupt
        kept.append(args)
        save(self, *args)

    patch.setattr(partial.Partial, "save", stopped)
    return kept


def ask(kind, model, **options):
    """Return the tensors that a call of each front finds."""
    options = {"known": KNOWN} | options
    if kind == "rank":
        found = kgfast.rank(model, TRIPLES, **options)
        return [it for own in (found, found.raw) for it in (own.greater, own.equal)]
    if kind == "topk":
        asked = {"heads": TRIPLES[:, 0], "relations": TRIPLES[:, 1], "k": 4}
        found = kgfast.topk(model, **asked | options)
        return [found.ids, found.scores]
    found = kgfast.top_facts(model, **{"k": 70, "tails": list(range(0, N, 2))} | options)
    return [found.triples, found.scores]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("where", ["file", "memory"])
@pytest.mark.parametrize("kind", ["rank", "topk", "facts"])
def test_each_front_goes_on_where_it_was_stopped(tmp_path, monkeypatch, kind, where, count, dtype):
    model = MODELS["distmult"](N, R, D, 0).to(dtype)
    model.entity.data = model.entity.data[torch.arange(N) % 9].contiguous()  # ties
    expected = ask(kind, model)
    first, again = {"batch_size": 5}, {"batch_size": 9}
    if where == "file":
        model = in_file(model, tmp_path)
        # 244 queries for facts, of which two are a pass
        first, again = {"max_memory": 2 * SMALL if kind == "facts" else SMALL}, {}
    folder, counts = tmp_path / "kept", []
    for last, options in ((count, first), (999, again), (999, again)):
        with monkeypatch.context() as patch:
            kept = stop_after(patch, last)
            if last == count:
                with pytest.raises(KeyboardInterrupt):
                    ask(kind, model, **options, partial=folder)
            else:
                assert_same(ask(kind, model, **options, partial=folder), expected)
            counts.append(len(kept))
    assert counts[1] > 0
    assert counts[2] == 0, "what is finished is not computed again"


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
    assert not read
    kgfast.rank(stored, TRIPLES, **options | {"partial": tmp_path / "whole"})
    assert first_rows < sum(read)


class Doubled(kgfast.DistMult):
    """A model that holds more than tensors."""

    by = stretch = 1.0

    def _queries(self, *asked):
        return super()._queries(*asked) * self.by

    def candidates(self, side, dims=None):
        return kgfast.Candidates(self.entity * self.stretch)


CHANGES = {
    "rank": [
        *({"sides": ("tail",)}, {"dims": 3}, {"candidate_ids": FEW}, {"nan": "worst"}),
        {"candidate_ids": kgfast.TypeConstraints.from_triples(TRIPLES)},
    ],
    "topk": [{"heads": 1}, {"candidate_ids": FEW}, {"k": 3}, {"dims": 3}],
    "facts": [{"heads": FEW}, {"relations": [0]}, {"tails": FEW}, {"k": 3}],
}


@pytest.mark.parametrize("where", ["file", "tensor", "memory"])
@pytest.mark.parametrize("kind", CHANGES)
def test_the_folder_of_another_call_is_an_error(tmp_path, kind, where):
    model = Doubled.init(N, R, D, seed=0)
    if where != "memory":
        model = kgfast.DistMult(model.entity, model.relation)
    stored = model if where == "memory" else in_file(model, tmp_path)
    if where == "tensor":
        stored = model.with_entity(tables.open(model.entity.detach()))
    options = {"partial": tmp_path / "kept"}
    expected = ask(kind, stored, **options)
    for change in ({"known": None}, *CHANGES[kind]):
        with pytest.raises(ValueError, match=ANOTHER):
            ask(kind, stored, **options | change)
    tensors = (
        [stored.relation.data] if where == "file" else [stored.relation.data, model.entity.data]
    )
    for tensor in tensors:
        before, tensor[-1, -1] = tensor[-1, -1].clone(), 7
        with pytest.raises(ValueError, match=ANOTHER):
            ask(kind, stored, **options)
        tensor[-1, -1] = before
    for name in ("by", "stretch") if where == "memory" else ():
        setattr(model, name, 3.0)
        with pytest.raises(ValueError, match=ANOTHER):
            ask(kind, model, **options)
        setattr(model, name, 1.0)
    assert_same(ask(kind, stored, **options), expected)
    if where == "file":
        os.utime(tmp_path / "e.npy", ns=(1, 1))
        again = stored.with_entity(tables.open(tmp_path / "e.npy"))
        with pytest.raises(ValueError, match=ANOTHER):
            ask(kind, again, **options)


def test_a_file_that_is_written_to_in_a_pass_is_named(tmp_path, monkeypatch):
    _, stored = rotate(tmp_path)
    options = {"max_memory": SMALL, "partial": tmp_path / "ranks"}
    save = partial.Partial.save

    def changing(self, *args):
        save(self, *args)
        os.utime(tmp_path / "e.npy", ns=(1, 1))

    said = r"e\.npy changed while it was read: it was written"
    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "save", changing)
        with pytest.raises(ValueError, match=said):
            kgfast.rank(stored, TRIPLES, **options)
    assert (tmp_path / "ranks" / "pass-0.safetensors").exists(), "finished work is saved"
    again = stored.with_entity(tables.open(tmp_path / "e.npy"))
    with pytest.raises(ValueError, match=ANOTHER):
        kgfast.rank(again, TRIPLES, **options)


@pytest.mark.parametrize("what", ["queries", "bias"])
def test_what_a_model_of_another_class_hides(tmp_path, what):
    """Tensors in a dict are not seen, so what comes of them is looked at."""
    _, stored = rotate(tmp_path)
    hidden = {"queries": torch.zeros(R, 2 * D), "bias": torch.zeros(N)}

    class Own:
        score, num_entities, num_relations, dim = "rotate", N, R, D
        entity = stored.entity

        def with_entity(self, entity):
            model = Own()
            model.entity = entity
            return model

        def queries(self, anchors, relations, side):
            return self.entity[anchors] + hidden["queries"][relations]

        def candidates(self, side):
            return kgfast.Candidates(self.entity, hidden["bias"])

    options = {"partial": tmp_path / "ranks", "sides": ("tail",)}
    kgfast.rank(Own(), TRIPLES, **options)
    hidden[what][1] += 100
    with pytest.raises(ValueError, match=ANOTHER):
        kgfast.rank(Own(), TRIPLES, **options)


def test_functions_are_refused(tmp_path):
    scorer = kgfast.BlockScorer(lambda *asked: torch.zeros(1), N, R)
    for kind in CHANGES:
        with pytest.raises(ValueError, match="partial: scores come from a function"):
            ask(kind, scorer, partial=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("is_stored", [False, True])
def test_ids_and_lists_of_each_query(tmp_path, is_stored):
    """Answers restricted by relation or by query are kept in the order of the call."""
    model, types = MODELS["rotate"](N, R, D, 0), kgfast.TypeConstraints.from_triples(TRIPLES)
    stored = in_file(model, tmp_path) if is_stored else model
    lists = torch.arange(0, 200).reshape(40, 5) % N
    for number, given in enumerate((types, lists)):
        options = {"candidate_ids": given, "pad": True, "batch_size": 7}
        expected, folder = ask("topk", model, **options), tmp_path / str(number)
        for _ in range(2):
            assert_same(ask("topk", stored, **options, partial=folder), expected)
        for other in (None, lists.flip(0)):
            with pytest.raises(ValueError, match=ANOTHER):
                ask("topk", stored, **options | {"candidate_ids": other}, partial=folder)


ONE_SIDE = {"known": KNOWN, "sides": ("tail",)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a model, the folder of a finished call, and what that found."""
    path = tmp_path_factory.mktemp("finished")
    model, stored = rotate(path)
    expected = kgfast.rank(model, TRIPLES, **ONE_SIDE)
    same(kgfast.rank(stored, TRIPLES, **ONE_SIDE, max_memory=SMALL, partial=path / "k"), expected)
    return stored, path / "k", expected


# Damage to the file of a pass: to its bytes, or to tensors and facts.
BYTES = {
    "bit": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "empty": lambda data: b"",
    "huge": lambda data: (2**50).to_bytes(8, "little") + data[8:],
}
TENSORS = {
    "gone": lambda values, facts: values.pop("0"),
    "value": lambda values, facts: values["0"].view(-1)[3].add_(1),
    "no row": lambda values, facts: facts.pop("next_row"),
    "back": lambda values, facts: facts.update(next_row="0"),
}


def damage(how, path):
    if how in BYTES:
        path.write_bytes(BYTES[how](path.read_bytes()))
    elif how in TENSORS:
        with safe_open(path, "pt") as file:
            facts = file.metadata()
        values = load_file(path)
        TENSORS[how](values, facts)
        save_file(values, path, facts)
    else:
        shutil.copy(path.with_name("pass-1.safetensors"), path)


@pytest.mark.parametrize("how", [*BYTES, *TENSORS, "another pass"])
def test_a_damaged_file_of_a_pass_is_named(finished, tmp_path, how):
    stored, folder, expected = finished
    kept = shutil.copytree(folder, tmp_path / "kept")
    damage(how, kept / "pass-0.safetensors")
    with pytest.raises(ValueError, match=r"pass-0\.safetensors: damaged: .*; delete the file$"):
        kgfast.rank(stored, TRIPLES, **ONE_SIDE, partial=kept)
    (kept / "pass-0.safetensors").unlink()
    same(kgfast.rank(stored, TRIPLES, **ONE_SIDE, partial=kept), expected)


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
folder, stride = Path(sys.argv[1]), int(sys.argv[2])
model = kgfast.DistMult.init(40, 2, 8, seed=0)
triples = [(3, 0, 17), (39, 1, 5)]
expected = kgfast.rank(model, triples)
np.save(folder / "e.npy", model.entity.detach().numpy())
stored = kgfast.DistMult(kgfast.tables.open(folder / "e.npy"), model.relation)

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
    left = {path.name for path in (folder / "ranks").iterdir()}
    assert left - {"pass-0.safetensors.tmp"} == {".lock", "pass-0.safetensors"}, (moment, left)
    shutil.rmtree(folder / "ranks")
print(moment)
"""


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_resumes(tmp_path, stride):
    printed = printed_by(KILLS, arguments=(tmp_path, stride), timeout=600)
    assert int(printed) > 100, "what writes a folder is not watched any more"


def test_one_process_at_a_time_uses_a_folder(tmp_path):
    _, stored = rotate(tmp_path)
    folder = tmp_path / "ranks"
    said = "is being written by another process.*; wait .* or choose another folder"
    with partial.using(folder), pytest.raises(ValueError, match=said):
        kgfast.rank(stored, TRIPLES, max_memory=SMALL, partial=folder)

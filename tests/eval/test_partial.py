"""A pass over a file that is stopped, or killed, and goes on."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import kgfast
from kgfast import RotatE, tables
from kgfast.eval import partial, passes
from support.ranked_models import random_triples
from support.streamed import KNOWN, SMALL, TRIPLES, R, rotate, same


def stop_after(patch, count):
    """Let a call end, as if it was killed, when it has kept so many ranges."""
    save, kept = partial.Partial.save, []

    def stopped(self, *args):
        if len(kept) == count:
            raise KeyboardInterrupt
        kept.append(args)
        save(self, *args)

    patch.setattr(partial.Partial, "save", stopped)
    return kept


@pytest.mark.parametrize("count", [0, 1, 6])
def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch, count):
    model, stored = rotate(tmp_path)
    options = {"known": KNOWN, "max_memory": SMALL, "partial": tmp_path / "ranks"}
    with monkeypatch.context() as patch:
        kept = stop_after(patch, count)
        with pytest.raises(KeyboardInterrupt):
            kgfast.rank(stored, TRIPLES, **options)
    assert len(kept) == count
    read, original = [], passes.prefetched

    def counted(table, ranges, *rest, **options):
        read.extend(stop - start for start, stop in ranges)
        return original(table, ranges, *rest, **options)

    monkeypatch.setattr(passes, "prefetched", counted)
    # the passes are those of the first call, whatever memory there is now
    found = kgfast.rank(stored, TRIPLES, **options | {"max_memory": "1GiB"})
    same(found, kgfast.rank(model, TRIPLES, known=KNOWN))
    first_rows = sum(read)
    read.clear()
    same(kgfast.rank(stored, TRIPLES, **options), found)
    assert not read, "what is finished is not read again"
    whole = tmp_path / "whole"
    kgfast.rank(stored, TRIPLES, **options | {"partial": whole})
    assert first_rows <= sum(read)
    assert (first_rows < sum(read)) == (count > 0)


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


def test_folders_that_hold_something_else(tmp_path):
    _, stored = rotate(tmp_path)
    with pytest.raises(ValueError, match="holds other files"):
        kgfast.rank(stored, TRIPLES, partial=tmp_path)
    folder = tmp_path / "ranks"
    kgfast.rank(stored, TRIPLES, partial=folder)
    (folder / "pass-0.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"pass-0\.npz: damaged"):
        kgfast.rank(stored, TRIPLES, partial=folder)
    (folder / "call.json").write_text("[]")
    with pytest.raises(ValueError, match="not what kgfast writes"):
        kgfast.rank(stored, TRIPLES, partial=folder)


def test_a_full_disk_is_said_and_what_was_finished_is_kept(tmp_path, monkeypatch):
    model, stored = rotate(tmp_path)
    options = {"max_memory": SMALL, "partial": tmp_path / "ranks"}
    usage, asked = shutil.disk_usage(tmp_path), []

    def filling(path):
        asked.append(path)
        return usage._replace(free=usage.free if len(asked) < 3 else 100)

    with monkeypatch.context() as patch:
        patch.setattr(partial.shutil, "disk_usage", filling)
        with pytest.raises(
            OSError, match="its disk has 100 left; what was finished before is kept"
        ):
            kgfast.rank(stored, TRIPLES, **options)
    assert (tmp_path / "ranks" / "pass-0.npz").exists()
    same(kgfast.rank(stored, TRIPLES, **options), kgfast.rank(model, TRIPLES))


def test_a_file_that_changes_in_a_pass_is_said_and_what_was_finished_is_kept(tmp_path, monkeypatch):
    _, stored = rotate(tmp_path)
    options = {"max_memory": SMALL, "partial": tmp_path / "ranks"}
    save = partial.Partial.save

    def touched(self, *args):
        save(self, *args)
        os.utime(tmp_path / "e.npy", ns=(1, 1))

    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "save", touched)
        with pytest.raises(ValueError, match=r"e\.npy changed while it was read: it was written"):
            kgfast.rank(stored, TRIPLES, **options)
    assert (tmp_path / "ranks" / "pass-0.npz").exists()
    again = stored.with_entity(tables.open(tmp_path / "e.npy"))
    with pytest.raises(ValueError, match="is of another call"):
        kgfast.rank(again, TRIPLES, **options)


SCRIPT = """
import sys, torch, kgfast
folder, out = sys.argv[1:]
table = kgfast.tables.open(f"{folder}/e.npy")
relation = torch.load(f"{folder}/relation.pt")
triples = torch.load(f"{folder}/triples.pt")
model = kgfast.RotatE(table, relation)
ranks = kgfast.rank(model, triples, max_memory="3MiB", partial=f"{folder}/ranks")
torch.save((ranks.greater, ranks.equal), out)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_five_times_is_bit_equal(tmp_path):
    model = RotatE.init(60_000, R, 32, seed=0)
    triples = random_triples(400, 60_000, R, seed=1)
    np.save(tmp_path / "e.npy", model.entity.detach().numpy())
    torch.save(model.relation.detach(), tmp_path / "relation.pt")
    torch.save(triples, tmp_path / "triples.pt")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(tmp_path / "out.pt")]
    generator = np.random.default_rng(0)
    killed = 0
    while killed < 5:
        process = subprocess.Popen(command)
        kept = tmp_path / "ranks"
        began = len(list(kept.glob("pass-*.npz"))), newest(kept)
        while (
            process.poll() is None and (len(list(kept.glob("pass-*.npz"))), newest(kept)) == began
        ):
            time.sleep(0.001)
        assert process.poll() is None, "the run ended before it was killed: make it longer"
        time.sleep(float(generator.uniform(0, 0.05)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    subprocess.run(command, check=True)
    greater, equal = torch.load(tmp_path / "out.pt")
    expected = kgfast.rank(model, triples)
    assert torch.equal(greater, expected.greater)
    assert torch.equal(equal, expected.equal)
    leftover = [path for path in (tmp_path / "ranks").iterdir() if path.name.startswith(".")]
    assert len(leftover) <= 5


def newest(folder):
    found = [path.stat().st_mtime_ns for path in folder.glob("pass-*.npz")]
    return max(found, default=0)

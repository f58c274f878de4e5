"""One process writes a run at a time; readers need no leave."""

import errno
import os
import socket

import pytest

from kgfast import locks
from kgfast.locks import locked
from kgfast.training.logs import read_rows
from support.commands import run
from support.forked import start
from support.serving import wait_for
from support.small_runs import ring_trainer, write_ring

# Trains until it is killed, slowly, and says when it has begun.
WRITER = """
import sys, time
from pathlib import Path
from support.small_runs import ring_trainer
from kgfast.training.trainer import Trainer

step = Trainer._step
def slowly(self, batch):
    if batch.number == 5:
        Path(sys.argv[2]).with_name("begun").touch()
        time.sleep(600)
    step(self, batch)
Trainer._step = slowly
ring_trainer(sys.argv[1], sys.argv[2]).fit()
"""


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """Yield a process that is in the middle of a run, and its folder."""
    root = tmp_path_factory.mktemp("locked")
    write_ring(root / "ring")
    process = start(WRITER, arguments=[root, root / "run"], folder=root)
    wait_for(lambda: (root / "begun").exists() or not process.is_alive())
    yield process, root
    process.kill()
    process.join()


def test_a_second_writer_is_told_who_writes(writer):
    process, root = writer
    before = (root / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="is being written by another process") as caught:
        ring_trainer(root, root / "run").fit(resume=True)
    assert f"process {process.pid} on host {socket.gethostname()}, since 20" in str(caught.value)
    assert str(root / "run") in str(caught.value)
    assert (root / "run" / "metrics.jsonl").read_bytes() == before
    assert [row["step"] for row in read_rows(root / "run") if "loss" in row] == [1, 2, 3, 4, 5]


def test_a_run_that_goes_on_can_be_evaluated(writer):
    _, root = writer
    for which in ("best", "last"):
        found = run("evaluate", root / "run", "--checkpoint", which)
        assert (found.exit_code, found.stderr) == (0, "")


def test_a_kill_leaves_no_lock(writer):
    process, root = writer
    process.kill()
    process.join()
    assert (root / "run" / ".lock").read_text().startswith(f"process {process.pid} on host")
    assert ring_trainer(root, root / "run").fit(resume=True).steps == 12
    assert [row["step"] for row in read_rows(root / "run") if "loss" in row] == list(range(1, 13))


@pytest.mark.parametrize("text", [b"", b"\x1b[2J\n", b"\xff" * 5000])
def test_a_lock_that_says_nonsense(tmp_path, text):
    with locked(tmp_path):
        (tmp_path / ".lock").write_bytes(text)
        with pytest.raises(ValueError, match=r"another process: .*; wait for") as error:
            locked(tmp_path).__enter__()
        assert str(error.value).isprintable()
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on host")
    assert (tmp_path / ".lock").read_text() == "", "a process that lives on is no holder"


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with pytest.warns(UserWarning, match="has no locks"), locked(tmp_path):
        pass

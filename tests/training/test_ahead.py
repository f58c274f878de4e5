"""Batches that a thread makes ahead, and runs whose losses are read now and then."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kgfast.training import trainer as loop
from kgfast.training.data import Batch, BatchesAhead
from kgfast.training.logs import read_rows
from kgfast.training.trainer import Trainer
from support.small_runs import GRAPH, assert_same_tensors, crashing, sections_of_table, trainer_of

CPU = torch.device("cpu")
SECTIONS = sections_of_table("""
pool
    data.filter_negatives=true  data.subsampling=true
lists
    data.negatives=per_row  data.filter_negatives=true  optim.name=row_adam  optim.grad_clip=0.5
relations
    loss.relation_weight=0.3
kvsall
    model.name=complex  model.gamma=12  train.mode=kvsall  loss.name=bce
""")
TRAIN = {"steps": 12, "log_every": 5, "eval_every": 8, "save_every": 7}


def batch_of(number):
    ids = torch.arange(number, number + 3)
    mask = ids[:, None] % torch.tensor([2, 3]) == 0
    return Batch(number, "tail", ids, ids + 1, None, ids.float(), ids[:1], mask)


def threads_of_batches():
    return [it for it in threading.enumerate() if it.name.startswith("kgfast-batches")]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Let runs take the branches of a backend that runs beside the host."""
    monkeypatch.setattr(loop, "get_backend", lambda name: SimpleNamespace(defers_checks=True))


def trained(folder=None, **sections):
    """Return the tables and the losses of a run."""
    sections = sections | {"train": TRAIN | sections.get("train", {})}
    trainer = trainer_of(folder, **sections)
    trainer.fit()
    rows = [] if folder is None else [row["loss"] for row in read_rows(folder) if "loss" in row]
    return trainer.model.state_dict(), rows


def test_a_batch_follows_from_its_number():
    ahead = BatchesAhead(batch_of, CPU)
    for number in (0, 1, 4, 5, 2, 2, 9):
        found, expected = ahead.take(number), batch_of(number)
        assert (found.number, found.side, found.targets) == (number, "tail", None)
        assert_same_tensors(found.tensors, expected.tensors)
        assert all(it.data_ptr() % 16 == 0 for it in found.tensors.values())
    ahead.close()


def test_an_error_of_the_thread_is_raised_by_the_step_that_needs_the_batch(
    as_on_a_gpu, monkeypatch
):
    trainer = trainer_of(train=TRAIN)
    with trainer.opened():
        draw = trainer._objective.negatives.draw

        def broken(batch):
            if batch.number == 6:
                raise MemoryError("none is left")
            return draw(batch)

        monkeypatch.setattr(trainer._objective.negatives, "draw", broken)
        with pytest.raises(MemoryError, match="none is left"):
            trainer.train()
        assert trainer.state.step == 6
    assert not threads_of_batches()


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_unread_losses_and_batches_made_ahead_change_no_bit(tmp_path, monkeypatch, sections):
    tables, losses = trained(tmp_path / "read", **sections)
    monkeypatch.setattr(loop, "get_backend", lambda name: SimpleNamespace(defers_checks=True))
    found, unread = trained(tmp_path / "unread", **sections)
    assert_same_tensors(found, tables)
    assert unread == losses
    assert len(losses) == 3
    assert not threads_of_batches()


@pytest.mark.parametrize("at", [9, 11])
def test_a_run_with_unread_losses_resumes_bit_equal(tmp_path, as_on_a_gpu, at):
    tables, losses = trained(tmp_path / "whole")
    with crashing(at), pytest.raises(MemoryError):
        trained(tmp_path / "parts")
    assert not threads_of_batches()
    trainer = trainer_of(tmp_path / "parts", train=TRAIN)
    trainer.fit(resume=True)
    assert_same_tensors(trainer.model.state_dict(), tables)
    rows = [row["loss"] for row in read_rows(tmp_path / "parts") if "loss" in row]
    assert rows == losses


@pytest.mark.parametrize(
    ("spoiled", "every", "where"),
    [(6, 5, "a step from 5 to 7"), (11, 5, "a step from 10 to 11"), (3, 1, "step 3")],
)
def test_a_loss_that_is_not_finite_names_the_steps_that_were_not_read(
    tmp_path, as_on_a_gpu, monkeypatch, spoiled, every, where
):
    step = Trainer._step

    def stepped(self, batch):
        step(self, batch)
        if self.state.step == spoiled:
            self._loss_sum.fill_(torch.nan)

    monkeypatch.setattr(Trainer, "_step", stepped)
    train = TRAIN | {"save_every": 8, "log_every": every}
    with pytest.raises(FloatingPointError, match=f"the loss is nan at {where}: all"):
        trainer_of(tmp_path, train=train).fit()
    assert not threads_of_batches()


def test_ids_are_checked_before_the_first_step():
    hrt = GRAPH.train.hrt.clone()
    hrt[7, 2] = len(GRAPH.entities)
    dataset = replace(GRAPH, train=SimpleNamespace(hrt=hrt, mapped_triples=hrt))
    trainer = trainer_of(dataset=dataset)
    with pytest.raises(ValueError, match=r"triples\[7\] .* tail 300 must be in 0\.\.299"):
        trainer.begin()

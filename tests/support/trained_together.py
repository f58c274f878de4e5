"""Runs of several processes, and of one, that begin with the same config and graph."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.datasets import Dataset, synthetic
from kgfast.tables import files
from kgfast.training import Batch, Callback, Config, RunFolder, Trainer
from kgfast.training.logs import read_rows
from support.gloo import run_together, values
from support.small_runs import crashing, sections_of_table

# Every loss, model, optimizer and precision that several processes serve.
CASES = sections_of_table("""
rotate, nssa, rows, filtered
    model.name=rotate  model.base_dim=8  model.gamma=6.0  data.neg_size=8  data.subsampling=true
    data.filter_negatives=true  optim.name=row_adam  optim.lr=0.02  optim.grad_clip=0.5
rotate, nssa, rows
    model.name=rotate  model.base_dim=8  model.gamma=6.0  data.neg_size=8  data.subsampling=true
    optim.name=row_adam  optim.lr=0.02
rotate, nssa, pool
    model.name=rotate  model.base_dim=8  model.gamma=6.0  data.neg_size=70
    data.negatives=shared  optim.name=row_adam  optim.lr=0.02
distmult, logistic, pool, n3
    model.name=distmult  model.base_dim=8  data.neg_size=16  data.negatives=shared
    data.filter_negatives=true  loss.name=logistic  optim.name=row_adagrad  optim.lr=0.1
    regularizer.name=n3  regularizer.weight=0.01
transe, margin, pool, dense
    model.name=transe  model.base_dim=8  model.gamma=6.0  data.neg_size=16
    data.negatives=shared  loss.name=margin  loss.margin=2.0  optim.name=sgd  optim.lr=0.1
    optim.grad_clip=1.0
rotate, med
    model.name=rotate  model.base_dim=8  model.gamma=6.0  med.dims=[2,4,8]  data.neg_size=8
    data.filter_negatives=true  optim.name=adam  optim.lr=0.01
transe, med and rscf
    model.name=transe  model.base_dim=8  model.gamma=6.0  model.use_rscf=true  med.dims=[4,8]
    data.neg_size=8  data.negatives=shared  optim.name=row_adam
    optim.lr=0.01
rotate, med split
    model.name=rotate  model.base_dim=8  model.gamma=6.0  med.dims=[4,8]  med.crop=split
    data.neg_size=8  optim.name=row_adagrad  optim.lr=0.05
complex, 1vsall, n3
    model.name=complex  model.base_dim=8  train.mode=1vsall  loss.name=cross_entropy
    loss.label_smoothing=0.1  regularizer.name=n3  regularizer.weight=0.01  optim.name=adagrad
    optim.lr=0.1
distmult, kvsall
    model.name=distmult  model.base_dim=8  train.mode=kvsall  loss.name=bce
    loss.label_smoothing=0.1  optim.name=adam  optim.lr=0.01
conve, kvsall
    model.name=conve  model.base_dim=60  train.mode=kvsall  loss.name=bce
    loss.label_smoothing=0.1  optim.name=adam  optim.lr=0.003
rescal, inverses, relations, dura
    model.name=rescal  model.base_dim=8  model.reciprocal=true  model.init_std=0.3
    data.neg_size=8  data.filter_negatives=true  loss.name=margin  loss.margin=2.0
    loss.relation_weight=0.1  optim.name=row_adagrad  optim.lr=0.05  regularizer.name=dura
    regularizer.weight=0.01
cp, 1vsall, inverses, n3
    model.name=cp  model.base_dim=8  model.reciprocal=true  model.init_range=0.3
    data.target_weights=true  train.mode=1vsall  loss.name=cross_entropy
    loss.relation_weight=0.1  regularizer.name=n3  regularizer.weight=0.01
    optim.name=adagrad  optim.lr=0.1
""")


def is_bit_equal(name: str) -> bool:
    """Return whether runs of several processes have the bits of one (docs/explanation/scale.md)."""
    return CASES[name].get("train", {}).get("mode", "negative") == "negative"


@cache
def graph() -> Dataset:
    """Return a graph whose last batches are smaller than four processes."""
    return synthetic(200, 6, 514, 40, 40)


def config_of(name: str, steps: int, timeout: float = 30, **train: Any) -> Config:
    """Return the config of a case."""
    case = dict(CASES[name])
    train = {"steps": steps, "log_every": 1, "eval_every": 20} | case.pop("train", {}) | train
    data = {"train_bs": 64} | case.pop("data", {})
    values = {"dataset": {"name": "synthetic"}, "threads": 1, "distributed": {"timeout": timeout}}
    return Config.from_dict(values | case | {"train": train, "data": data})


def losses_in(folder: Path) -> Tensor:
    """Return the loss of every step, float64, by the log of a run."""
    rows = [row["loss"] for row in read_rows(folder) if "loss" in row]
    return torch.tensor(rows, dtype=torch.float64)


def fitted(config: Config, folder: Path, *, ends_at: int | None = None) -> dict[str, Any]:
    """Return the state of a process when a run has ended, or has crashed before a step."""
    with crashing(ends_at):
        trainer = Trainer(config, folder, dataset=graph(), progress=False)
        result = trainer.fit(resume=True) if ends_at is None else crashed(trainer)
    return {"result": result, "tables": trainer.model.state_dict()}


def crashed(trainer: Trainer) -> Exception:
    """Return the error of a run that was to fail."""
    try:
        trainer.fit(resume=True)
    except Exception as error:
        return error
    raise AssertionError("the run did not fail")


def fit_together(world: int, config: Config, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Train in so many processes; return the state of each."""
    work = partial(_fitted, config.to_dict(), folder, options)
    return values(run_together(world, work, timeout=300))


def _fitted(
    config: dict[str, Any], folder: Path, options: dict[str, Any], rank: int
) -> dict[str, Any]:
    return fitted(Config.from_dict(config), folder, **options)


def resumed_together(folder: Path, rank: int) -> dict[str, Any]:
    """Train in a run that crashes and is resumed, whose files are written in small blocks."""
    files._BLOCK = 1 << 10
    config = config_of("rotate, nssa, rows, filtered", 20, save_every=5)
    ended = fitted(config, folder, ends_at=13)
    assert isinstance(ended["result"], MemoryError), ended["result"]
    return fitted(config, folder)


def wrong_starts(folder: Path, rank: int) -> dict[str, Exception]:
    """Return the errors of runs that are wrong from the start, or fail in one process."""
    config = config_of("distmult, logistic, pool, n3", 4)
    starts = {
        "config": (config.model_copy(update={"seed": rank}), graph()),
        "names": (config, synthetic(201 if rank else 200, 6, 514, 40, 40)),
    }
    errors: dict[str, Exception] = {}
    for what, (config_here, dataset) in starts.items():
        try:
            Trainer(config_here, folder / what, dataset=dataset, progress=False)
        except Exception as error:
            errors[what] = error
    trainer = Trainer(config, folder / "failing", dataset=graph(), progress=False)
    with crashing(2, rank=1):
        errors["failing"] = crashed(trainer)
    return errors


def diverging(folder: Path, rank: int) -> dict[str, Exception]:
    """Return the errors of runs with queries that overflow, in a loss or in ranks."""
    errors: dict[str, Exception] = {}
    config = config_of("distmult, logistic, pool, n3", 4, eval_every=2)
    large = config.model.model_copy(update={"init_range": 1e30})
    for what, changed in (("loss", {"model": large}), ("ranks", {})):
        config_here = config.model_copy(update=changed)
        trainer = Trainer(config_here, folder / what, dataset=graph(), progress=False)
        with spoiling(2) if what == "ranks" else nullcontext():
            errors[what] = crashed(trainer)
    return errors


@contextmanager
def spoiling(at: int) -> Iterator[None]:
    """Let tables have huge numbers after a step: queries overflow, no table does."""
    made = Trainer.make_step

    def spoiled(self: Trainer) -> None:
        made(self)
        if self.state.step == at:
            with torch.no_grad():
                self.model.entity.fill_(1e30)
                self.model.relation.fill_(1e30)

    Trainer.make_step = spoiled  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer.make_step = made  # type: ignore[method-assign]


def without_one(how: str, folder: Path, rank: int) -> Any:
    """Train while one process goes away before a step."""
    step = Trainer._step

    def stepped(self: Trainer, batch: Batch) -> None:
        if batch.number == 3 and rank == 1:
            if how == "hanging":
                time.sleep(30)
            os._exit(3)
        step(self, batch)

    Trainer._step = stepped  # type: ignore[method-assign]
    return fitted(config_of("distmult, logistic, pool, n3", 8, timeout=4), folder)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Return the newest state of a run, put together."""
    state = RunFolder(folder).load_last()
    assert state is not None
    return state[0]


class Heard(Callback):
    """Callback that notes its calls; ``failing`` names the row or the end that raises."""

    def __init__(self, failing: Any = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failing = failing

    def _hear(self, name: str, what: Any, at: Any) -> None:
        self.calls.append((name, what))
        if (name, at) == self.failing:
            raise ConnectionError("the tracker is away")

    def on_step(self, row: dict[str, Any]) -> None:
        self._hear("step", row, row["step"])

    def on_evaluation(self, row: dict[str, Any]) -> None:
        self._hear("evaluation", row, row["step"])

    def on_end(self, result: Any) -> None:
        self._hear("end", result, None)


def heard_together(folder: Path, failing: Any, rank: int) -> tuple[list[Any], str]:
    """Return what the callbacks of a process hear, and how its fit ends."""
    heard = Heard(failing)
    config = config_of("rotate, nssa, rows", 8, eval_every=4)
    try:
        Trainer(config, folder, dataset=graph(), progress=False, callbacks=[heard]).fit(resume=True)
        end = "fitted"
    except BaseException as error:
        end = repr(error)
    return [name for name, _ in heard.calls], end

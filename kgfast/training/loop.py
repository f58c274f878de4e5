"""The loop of a run: steps, and between them the logs, evaluations and checkpoints that are due."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TextIO

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.datasets.identity import names_digest
from kgfast.datasets.labelled import write_labels
from kgfast.eval.metrics import HITS, metric_named
from kgfast.eval.ranks import Ranks
from kgfast.graph import as_triples_tensor
from kgfast.graph.named import relation_names
from kgfast.kernels.checks import OutOfRangeError, Values, without_values
from kgfast.kernels.cpu import threads
from kgfast.kernels.spares import constant
from kgfast.models import Model
from kgfast.ops import backend_for
from kgfast.ops.dispatch import get_backend
from kgfast.processes.assignment import ALONE, Assignment
from kgfast.progress import RunBar
from kgfast.rng import Stream, mix
from kgfast.text import reading, shown
from kgfast.training.build import room_of
from kgfast.training.capture import StepGraphs, obstacle_of
from kgfast.training.checkpoint import Stored, check_tensors, of_part, save
from kgfast.training.config import Config, is_own
from kgfast.training.data import Batch, BatchesAhead
from kgfast.training.logs import Callback, Row, line_of, opened_log
from kgfast.training.objective import Objective
from kgfast.training.optimizer import Optimizer
from kgfast.training.run_folder import RunFolder
from kgfast.whole_files import write_whole

Metrics = dict[str, float]
_NUMBERS = 1 << 22  # numbers that are checked at once, so that no mask is as large as a table


class State(BaseModel):
    """Numbers of a run that are no tensors and do not follow from the config."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt = 0  # steps made
    best: float | None = None  # value of the best metric on valid
    best_step: NonNegativeInt = 0
    valid: dict[str, float] = {}  # all metrics of the best state; for MED, of the widest sub-model
    valid_of_submodels: dict[str, dict[str, float]] = {}  # metrics by width
    loss_sum: float = 0.0  # sum since the last row of the log
    loss_count: NonNegativeInt = 0
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_cpu: float = 0.0  # part of seconds_training, by all threads of process 0
    stopped_early: bool = False
    in_vain: NonNegativeInt = 0  # evaluations since the best one

    @classmethod
    def of(cls, values: Any) -> Self:
        """Check the values of a checkpoint, all of which must be there.

        >>> State.of({**State().model_dump(), "step": "3"})
        Traceback (most recent call last):
        ValueError: state.step: Input should be a valid integer; got '3'
        """
        try:
            state = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("state", *first["loc"])))
            raise ValueError(f"{where}: {first['msg']}; got {shown(first['input'])}") from None
        for name in cls.model_fields.keys() - state.model_fields_set:
            raise ValueError(f"state.{name} is missing")
        return state


class Run:
    """Run of a trainer, as :meth:`kgfast.training.Trainer.opened` yields it.

    ``assignment`` divides the run among processes. ``folder`` takes logs and checkpoints; without
    one nothing is written.

    Where kernels run beside the host, as on a GPU, no step waits for the device: ids are checked
    here, once, a thread makes batches, and losses are summed on the device and read for the log,
    evaluations and checkpoints. Graphs replay the steps, if nothing forbids that.

    Attributes
    ----------
    state : State
    steps : int
        Number of steps of the whole run.
    resumed : bool
        True if the run was resumed from a checkpoint.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: Model,
        assignment: Assignment = ALONE,
        *,
        folder: RunFolder | None = None,
        resume: bool = False,
        progress: bool = False,
    ) -> None:
        self._config, self._dataset, self._model = config, dataset, model
        self._assignment, self._folder = assignment, folder
        self._log_file: TextIO | None = None
        _check_sizes(model, dataset)
        hrt = as_triples_tensor(
            dataset.train,
            num_entities=dataset.num_entities,
            num_relations=dataset.num_relations,
            num_times=model.num_times,
        ).cpu()
        self._objective = Objective(config, hrt, model)
        self._per_epoch = self._objective.batches.per_epoch
        self.steps = config.train.steps or (config.train.epochs or 0) * self._per_epoch
        self._optimizer = Optimizer(
            model,
            config.optim,
            lazy=self._objective.lazy,
            assignment=assignment,
            room=room_of(config),
        )
        device, modules = model.entity.device, list(model.modules())
        self._of_device = [device] * (device.type == "cuda")
        runs_own_code = is_own(config.model.name) or is_own(config.loss.name)
        self._draws = runs_own_code or any(
            isinstance(module, nn.Dropout | nn.Dropout2d) for module in modules
        )
        self._is_deferred = get_backend(backend_for(device)).defers_checks
        # A user's own code may make ids that are not checked.
        self._values = Values.FORCED if runs_own_code else Values.TRUSTED
        self._leaves_cores_to_kernels = (
            backend_for(device) == "cpu"
            and self._optimizer.runs_on_kernels
            and not is_own(config.model.name)
            and not any(getattr(module, "has_large_operators", False) for module in modules)
        )
        self.resumed = resume and folder is not None and folder.last.exists()
        self.state = State()
        if folder is not None and self.resumed:
            self.take(folder.load_last(), folder.last)
            if self.steps < self.state.step:
                raise ValueError(
                    f"train.{'epochs' if config.train.epochs else 'steps'}: {self.steps:,} steps, "
                    f"but the run has made {self.state.step:,} already"
                )
        self._bar = RunBar(self.steps, self.state.step, enabled=progress and assignment.leads)
        self._graphs: StepGraphs | None = None
        obstacle = obstacle_of(config, device, assignment, defers_checks=self._is_deferred)
        if obstacle is None:
            changes = [*model.parameters()]
            self._graphs = StepGraphs(device, changes, self._run_without_graphs)
        elif obstacle:
            self._run_without_graphs(obstacle)
        by_kind = self._graphs is not None
        self._ahead = BatchesAhead(self._objective.batch, device, by_kind=by_kind)
        is_ahead = self._is_deferred or device.type != "cpu"
        self._batch = self._ahead.take if is_ahead else self._objective.batch
        # Sum of losses on the device, and the step after which it was last read.
        self._loss_sum = torch.tensor(self.state.loss_sum, dtype=torch.float64, device=device)
        self._read_at = self.state.step
        assignment.check_same({"the step that is resumed": self.state.step})
        if folder is None:
            return
        if not self.resumed and folder.holds_a_run():
            raise ValueError(f"{folder.path} holds a run: resume that run, or use another folder")
        if assignment.leads:
            if not self.resumed:
                folder.write_graph(dataset)
                if config.dataset.labels:
                    write_labels(folder.path, dataset.entities)
            if not self.is_over():
                write_whole(folder.config, config.to_yaml, lasting=True)

    def train(self, callbacks: Sequence[Callback] = ()) -> None:
        """Make the steps that are left; process 0 calls the callbacks, after the state is saved."""
        state, train, folder = self.state, self._config.train, self._folder
        leads = self._assignment.leads
        self._model.train()
        if not self.is_over():
            self._bar.say(self._heading())
        log = opened_log(folder.path, state.step) if folder is not None and leads else nullcontext()
        with closing(self), log as self._log_file:
            while not self.is_over():
                self.make_step()
                rows, keeps = [], _is_due(state.step, train.keep_every)
                evaluates = self.is_over() or _is_due(state.step, train.eval_every)
                saves = _is_due(state.step, train.save_every) if train.save_every else evaluates
                if self.is_over() or keeps or _is_due(state.step, train.log_every):
                    rows.append(self._log_loss())
                    self._bar.update(state.step, rows[0]["loss"])
                if evaluates and len(self._dataset.valid):
                    rows += self._validate()
                if keeps and folder is not None:
                    self._save(folder.path / f"model_{state.step}.safetensors", of_model=True)
                if self.is_over() or (saves and folder is not None):
                    self._save(None if folder is None else folder.last)
                for callback in callbacks if leads else ():
                    for row in rows:
                        (callback.on_evaluation if "split" in row else callback.on_step)(row)
        self._log_file = None

    def make_step(self) -> None:
        """Make the next step and time it."""
        start, cpu, state = time.perf_counter(), time.process_time(), self.state
        cores = threads.alone() if self._leaves_cores_to_kernels else nullcontext()
        checks = without_values(self._values) if self._is_deferred else nullcontext()
        with cores, checks, self._optimizer.spares.in_use(), self._divergence("the loss"):
            batch = self._batch(state.step)
            sched, lr = self._config.sched, self._config.optim.lr
            self._optimizer.set_rate(sched.rate(lr, state.step, self.steps))
            # The generators of torch; a graph takes the seed of its replay.
            with torch.random.fork_rng(self._of_device, enabled=self._draws):
                if self._draws:
                    torch.manual_seed(mix(self._config.seed, state.step, Stream.DROPOUT))
                if self._graphs is None:
                    self._step(batch)
                else:
                    self._graphs.run(batch.kind, partial(self._step, batch))
        state.loss_count += 1
        state.step += 1
        state.seconds_training += time.perf_counter() - start
        state.seconds_cpu += time.process_time() - cpu

    def _step(self, batch: Batch) -> None:
        """Make one step of the optimizer, and add the loss to the sum; a graph may replay this."""
        optimizer, device = self._optimizer, self._loss_sum.device
        losses = self._objective(self._model, batch)
        total: Tensor | None = None
        is_mixed = self._config.train.amp is not None
        autocast = torch.autocast(device.type, torch.bfloat16) if is_mixed else nullcontext()
        while True:
            with autocast, self._assignment.sharing(device):
                loss = next(losses, None)
            if loss is None:
                break
            value = loss.detach()
            total = value if total is None else total + value
            if not (self._is_deferred or math.isfinite(total)):
                raise self._diverged(self.state.step, f"the loss is {float(total)}")
            loss.backward(constant(1.0, (), value.dtype, device))
            optimizer.collect()
        optimizer.step()
        assert total is not None
        self._loss_sum.add_(total)

    def _run_without_graphs(self, reason: str) -> None:
        """Say why no graph replays steps, which is an error if the config wants graphs."""
        if self._config.train.capture == "always":
            raise ValueError(f"train.capture: always, but {reason}")
        self._optimizer.drop()  # gradients of a step that could not be captured
        self._bar.say(f"steps are not captured in a graph: {reason}")

    def read_losses(self) -> None:
        """Wait for the losses that are still on the device; raise unless all are finite."""
        start, first = time.perf_counter(), self._read_at
        self.state.loss_sum, self._read_at = float(self._loss_sum), self.state.step
        if not math.isfinite(self.state.loss_sum):
            raise self._diverged(first, f"the loss is {self.state.loss_sum}")
        self.state.seconds_training += time.perf_counter() - start

    def close(self) -> None:
        """End the thread that makes batches, and free graphs; later steps begin anew."""
        self._ahead.close()
        if self._graphs is not None:
            self._graphs.clear()

    def is_over(self) -> bool:
        """Return whether the run has made all steps or stopped early."""
        return self.state.step >= self.steps or self.state.stopped_early

    # Logs and messages.

    def _log_loss(self) -> Row:
        """Write a row with the mean loss since the last row; return the row."""
        self.read_losses()
        state = self.state
        loss, state.loss_sum, state.loss_count = state.loss_sum / state.loss_count, 0.0, 0
        self._loss_sum.zero_()
        return self._log({"loss": loss, "lr": self._optimizer.lr, **self._model.logged_values()})

    def _log(self, row: Row) -> Row:
        """Write a row; return it."""
        state = self.state
        where = {
            "step": state.step,
            "epoch": round(state.step / self._per_epoch, 4),
            "time": round(state.seconds_training + state.seconds_evaluating, 3),
        }
        if self._log_file is not None:
            self._log_file.write(line_of(where | row))
        return where | row

    def _heading(self) -> str:
        """Say in a line what is trained, where, and from which step on."""
        data, model = self._dataset, self._model
        names = " of ".join(type(m).__name__ for m in model.modules() if isinstance(m, Model))
        words = [
            f"{names}, dim {model.dim}; {data.sizes()}, {len(data.train):,} triples; "
            f"{self.steps:,} steps; {model.entity.device}"
        ]
        words += [] if self._folder is None else [f"{self._folder.path}"]
        words += [f"resumed after step {self.state.step:,}"] if self.resumed else []
        return "; ".join(words)

    @contextmanager
    def _divergence(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:
            is_value = isinstance(error, ValueError) and _first_bad_row(self._model) is not None
            if not (is_value or self._assignment.diverges(error)):
                raise
            why = f" ({error})" if isinstance(error, OutOfRangeError) else ""
            raise self._diverged(self.state.step, f"{what} cannot be computed{why}") from error

    def _diverged(self, step: int, what: str) -> FloatingPointError:
        """Make the error of the newest step, or of an earlier one from ``step`` on."""
        last = self.state.step - 1
        where = f"at step {step:,}" if step >= last else f"at a step from {step:,} to {last:,}"
        message = f"{what} {where}: {_describe(self._model, self._dataset)}"
        if self._folder is not None and self._folder.last.exists():
            message += f"; the last good state is {self._folder.last}"
        return FloatingPointError(message)

    # Evaluations.

    def evaluated(self, split: str) -> tuple[Metrics, dict[str, Metrics]]:
        """Return the metrics of a split and of each sub-model; both are empty without triples."""
        if not len(self._dataset.split(split)):
            return {}, {}
        self.read_losses()
        self._optimizer.spares.clear()  # frees memory for the evaluation
        start, batch_size = time.perf_counter(), self._config.data.test_bs
        with self._divergence(f"ranks of {split}"):
            ranks = self._assignment.ranks(self._model, self._dataset, split, batch_size)
        self.state.seconds_evaluating += time.perf_counter() - start
        of_metric = re.findall(r"hits@(\d+)", self._config.train.save_best_metric)
        hits = sorted({*HITS, *map(int, of_metric)})
        if isinstance(ranks, Ranks):
            return ranks.metrics(hits=hits), {}
        submodels = {str(dim): of_dim.metrics(hits=hits) for dim, of_dim in ranks.items()}
        return submodels[str(max(ranks))], submodels

    def _validate(self) -> list[Row]:
        """Evaluate on valid, log the metrics, save the best model; return the rows of the log."""
        metrics, submodels = self.evaluated("valid")
        state, train = self.state, self._config.train
        best, is_lower = state.best, metric_named(train.save_best_metric).lower_is_better
        rows: list[Row] = [{"dim": int(dim), **row} for dim, row in submodels.items()]
        rows = [self._log({"split": "valid", **row}) for row in rows or [metrics]]
        self._bar.evaluated(state.step, metrics, submodels)
        value = metrics[train.save_best_metric]
        state.in_vain += 1
        if best is None or (value < best if is_lower else value > best):
            state.best, state.best_step, state.in_vain = value, state.step, 0
            state.valid, state.valid_of_submodels = metrics, submodels
            if self._folder is not None:
                self._save(self._folder.best, of_model=True)
        stop = train.early_stopping
        state.stopped_early = stop is not None and state.in_vain >= stop.patience
        return rows

    # Checkpoints.

    def _save(self, path: Path | None, *, of_model: bool = False) -> None:
        """Write a checkpoint, if there is a folder, unless a table is not finite.

        ``of_model`` leaves the optimizer out.
        """
        self.read_losses()
        if _first_bad_row(self._model) is not None:
            raise self._diverged(self.state.step, "the loss will not be finite")
        if path is not None and self._assignment.leads:
            tensors = {f"model.{name}": tensor for name, tensor in self._model.state_dict().items()}
            if not of_model:
                states = self._optimizer.tensors()
                tensors |= {f"optim.{name}": tensor for name, tensor in states.items()}
            numbers = {"step": self.state.step, "state": self.state.model_dump()}
            save(path, tensors, {"config": self._config.to_dict(), "graph": self._rows, **numbers})

    @cached_property
    def _rows(self) -> str:
        return names_digest(self._dataset)

    def take(self, stored: Stored, path: Path) -> None:
        """Take the state of a checkpoint; a ValueError says what does not fit, nothing changes."""
        tensors, meta = stored
        with reading(path, "not a state of this run"):
            before = Config.from_dict(meta["config"])
        changed = before.training_differences(self._config)
        if changed:
            raise ValueError(
                "the run was started with another config: "
                + ", ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
            )
        with reading(path, "not a state of this run"):
            if meta.get("graph") != self._rows:
                raise ValueError("the rows belong to other names than those of the run")
            state = State.of(meta.get("state"))
            if type(meta.get("step")) is not int or meta["step"] != state.step:
                raise ValueError(f"step is {shown(meta.get('step'))}, of the state {state.step}")
            of_model = of_part("model", tensors)
            check_tensors("model", of_model, self._model.state_dict())
            self._optimizer.load(of_part("optim", tensors))
        self._model.load_state_dict(of_model)
        self.state = state

    def load_best(self) -> int:
        """Give the model the best state of the folder, if there is one; return the step."""
        if self._folder is None or not self.state.best_step:
            return self.state.step
        self._assignment.together(lambda: None)  # process 0 may still be writing
        tensors, meta = self._folder.load_best()
        self._model.load_state_dict(of_part("model", tensors))
        return int(meta["step"])


def _check_sizes(model: Model, dataset: Dataset) -> None:
    for what in ("entities", "relations"):
        rows, names = (getattr(holder, f"num_{what}") for holder in (model, dataset))
        if rows != names:
            raise ValueError(f"the model has {rows:,} {what}, dataset {dataset.name} {names:,}")


def _is_due(step: int, every: int) -> bool:
    """Return whether a step is a multiple of ``every``; 0: never."""
    return bool(every) and step % every == 0


def _first_bad_row(model: nn.Module) -> tuple[str, int] | None:
    """Return the first parameter with a NaN or an infinity, and the first such row, or None."""
    for name, parameter in model.named_parameters():
        rows = parameter.detach().reshape(len(parameter) if parameter.ndim else 1, -1)
        size = max(1, _NUMBERS // max(1, rows.shape[1]))
        for number, block in enumerate(rows.split(size)):
            bad = (~block.isfinite().all(1)).nonzero()
            if len(bad):
                return name, number * size + int(bad[0])
    return None


def _describe(model: nn.Module, dataset: Dataset) -> str:
    """Describe the error in the tables in a clause."""
    advice = "try a lower optim.lr or optim.grad_clip"
    bad_row = _first_bad_row(model)
    if bad_row is None:
        return (
            "all tables are finite, but queries, scores or the loss of their numbers overflow: "
            f"{advice}"
        )
    table, row = bad_row[0].rpartition(".")[2], bad_row[1]
    relations, times = relation_names(dataset.relations)
    of_tables = {"entity": dataset.entities, "relation": relations, "time": times}
    names = of_tables.get(table.removeprefix("static_"))
    name = f" ({names.name(row)})" if names is not None and row < len(names) else ""
    return (
        f"row {row} of the {table} table{name} is the first that holds a NaN or an infinity: "
        f"{advice}"
    )

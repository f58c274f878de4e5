"""The trainer: a loop of steps, and between them the logs, evaluations and checkpoints due."""

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.identity import check_same_graph, names_digest
from kgfast.datasets.labelled import write_labels
from kgfast.environment import provenance
from kgfast.eval import Ranks
from kgfast.eval.metrics import HITS, metric_named
from kgfast.eval.preparation import check_names
from kgfast.graph import as_triples_tensor
from kgfast.graph.named import relation_names
from kgfast.kernels.checks import OutOfRangeError, Values, without_values
from kgfast.kernels.cpu import threads
from kgfast.kernels.spares import constant, freed_memory_kept, give_back
from kgfast.locks import locked
from kgfast.models import Model
from kgfast.ops import backend_for
from kgfast.ops.dispatch import get_backend
from kgfast.ops.values import first_bad_row
from kgfast.processes import assignment_of
from kgfast.progress import RunBar
from kgfast.rng import Stream, mix
from kgfast.storage import digest
from kgfast.tables.files import check_tensors
from kgfast.tables.mapped import MappedRoom
from kgfast.text import reading, shown
from kgfast.training.build import build_model, device_of, follow
from kgfast.training.capture import StepGraphs, obstacle_of
from kgfast.training.checkpoint import Result, RunFolder, State, Stored, checked, of_part, save
from kgfast.training.config import Config, is_own
from kgfast.training.data import Batch, BatchesAhead, Objective
from kgfast.training.logs import Callback, Row, Tracker, line_of, opened_log
from kgfast.training.optimizer import Optimizer
from kgfast.whole_files import write_whole

# Keys that may differ between processes, although a resumed run may change more keys.
_OF_A_PROCESS = ("device", "threads", "dataset.root", "train.out_dir", "train.table_folder")
Metrics = dict[str, float]


class Trainer:
    """Trainer of the model of a config.

    Parameters
    ----------
    config : Config
    run_dir : path, optional
        The folder of logs, checkpoints and result. Without a folder nothing is written, and the
        model of the last step is tested.
    dataset : Dataset, optional
        The dataset of the config by default.
    progress : bool
        Show progress on the error stream.
    callbacks : iterable of Callback
        Callbacks that :meth:`fit` calls during the run.

    Attributes
    ----------
    model : Model
        The model, on the device of the config.
    config : Config
    dataset : Dataset
    assignment : Assignment
        Division of the work among the processes of ``torchrun``, each of which makes the same
        trainer and the same calls.
    state : State
        Numbers of the run, from :meth:`begin` on.
    steps : int
        Number of steps of the whole run.
    resumed : bool
        True if the run was resumed from a checkpoint.

    Raises
    ------
    ValueError, FileNotFoundError
        If the dataset is missing, a file of it malformed, or the device does not exist; if a user's
        own model or loss cannot be imported or does not take the options.

    Examples
    --------
    >>> from kgfast.datasets import synthetic
    >>> config = Config.from_dict({
    ...     "dataset": {"name": "synthetic"},
    ...     "model": {"name": "rotate", "base_dim": 8},
    ...     "optim": {"lr": 0.01},
    ...     "train": {"steps": 20},
    ...     "data": {"train_bs": 64, "neg_size": 16, "negatives": "shared"},
    ... })
    >>> trainer = Trainer(config, dataset=synthetic(200, 6, 500, 50, 50), progress=False)
    >>> result = trainer.fit()
    >>> result.steps, result.test["mrr"] > 0
    (20, True)
    """

    def __init__(
        self,
        config: Config,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        dataset: Dataset | None = None,
        progress: bool = True,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        self.callbacks: list[Any] = list(callbacks)
        for row, callback in enumerate(self.callbacks):
            if not isinstance(callback, Callback):
                kind = type(callback).__name__
                raise TypeError(f"callbacks[{row}] must be a kgfast.training.Callback; got {kind}")
        self.config, self.progress = config, progress
        self.assignment = assignment = assignment_of(config.distributed.timeout)
        self.device = assignment.agreed_device(partial(device_of, config))
        room = config.train.table_folder
        self._room = None if room is None else MappedRoom(room)
        self.folder = None if run_dir is None else RunFolder(run_dir, self._room)
        with assignment.telling():
            for name in dict.fromkeys(config.train.track if assignment.leads else ()):
                if self.folder is None:
                    raise ValueError("train.track: a tracker needs a run folder; run_dir is None")
                self.callbacks.append(Tracker(name, self.folder.path, config))
            if self._room is not None and self.device.type != "cpu":
                raise ValueError(
                    f"train.table_folder: files are mapped into the memory of the CPU; device is "
                    f"{self.device}"
                )
            follow(config, trust=True)
            self.dataset = self._data() if dataset is None else dataset
            if assignment.size > 1:
                assignment.check_same(self._facts())
            self.model, self._has_begun = self._fresh_model(), False

    def _fresh_model(self) -> Model:
        sizes = self.dataset.num_entities, self.dataset.num_relations
        times = self.dataset.relations.num_times
        return build_model(self.config, *sizes, times, self._room).to(self.device)

    def _data(self) -> Dataset:
        """Load the dataset of the config; if its folder is gone, the graph of the run folder."""
        try:
            return self.config.dataset.load()
        except FileNotFoundError:
            if self.folder is None or not self.folder.holds_a_run():
                raise
            return replace(self.folder.load_graph(), name=self.config.dataset.name)

    def _facts(self) -> dict[str, object]:
        """Return what all processes of a run must have in common."""
        facts = {key: x for key, x in self.config.flat().items() if key not in _OF_A_PROCESS}
        facts["device"] = self.device.type
        facts["the names of entities and relations"] = names_digest(self.dataset)
        for name in SPLITS:
            facts[f"the triples of {name}"] = digest(self.dataset.split(name).hrt.cpu())
        return facts

    def fit(self, resume: bool = False) -> Result:
        """Train, evaluate on valid, and rank the test set at the end.

        Parameters
        ----------
        resume : bool
            Resume from the newest checkpoint of the run folder, if there is one. The result is
            bit-equal to the result of an uninterrupted run with as many threads (for most models,
            with any number; see ``threads`` of :class:`kgfast.training.Config`). The data must be
            the graph of the run's beginning, in any order of names and lines. A run that stopped
            early or has made all steps of the config stays unchanged; ``fit`` returns its result.

        Raises
        ------
        ValueError
            If there are no training triples, or no validation triples for early stopping; if the
            folder holds a run and ``resume`` is False, or a run of another config or graph; if
            another process writes the folder.
        FloatingPointError
            If tables, queries, scores, the loss or ranks are not finite: the message names the step
            and the first bad row of the tables. The checkpoints stay intact.
        OSError
            If a checkpoint cannot be written; the checkpoint before is intact.
        Exception
            Any exception of a callback, after the checkpoint that is due at that step.
        """
        with self.opened(resume):
            result = self._result_of_before()
            if result is None:
                self.train(self.callbacks)
                result = self.finish()
            for callback in self.callbacks if self.assignment.leads else ():
                callback.on_end(result)
            return result

    @contextmanager
    def opened(self, resume: bool = False) -> Iterator[None]:
        """Begin the run for a caller that makes the steps; errors are those of :meth:`fit`.

        While the run is open, the folder is locked, torch has the config's number of threads, and
        memory that was freed stays with the process.
        """
        lock = locked(self.folder.path) if self.folder and self.assignment.leads else nullcontext()
        before = torch.get_num_threads()
        with self.assignment.telling(), lock, freed_memory_kept():
            torch.set_num_threads(self.config.threads or before)
            try:
                self.begin(resume)
                yield
            finally:
                torch.set_num_threads(before)

    def evaluate(self, split: str = "test") -> Ranks | dict[int, Ranks]:
        """Rank a split by the present model, filtered by the triples of all splits.

        Parameters
        ----------
        split : {"train", "valid", "test"}

        Returns
        -------
        Ranks
            For croppable embeddings, a dict with the ranks of each sub-model by its width.
        """
        return self.assignment.ranks(self.model, self.dataset, split, self.config.data.test_bs)

    def _result_of_before(self) -> Result | None:
        """Load the best model and the result of a finished run; return None if there is none."""
        if self.folder is None or not self.is_over():
            return None
        try:
            result = checked(Result, self.folder.read_result())
        except (FileNotFoundError, ValueError):
            return None
        self.load_best()
        self._bar.say(f"{self.folder.path} was finished already, and stays unchanged")
        return result

    def finish(self, *, tests: bool = True) -> Result:
        """Rank the test set by the best state, and write the result; ``tests=False``: no ranks."""
        tested_step = self.load_best()
        test, test_of_submodels = self.evaluated("test") if tests else ({}, {})
        state = {key: x for key, x in vars(self.state).items() if key in Result.__annotations__}
        result = Result(
            steps=self.state.step,
            planned_steps=self.steps,
            test=test,
            test_of_submodels=test_of_submodels,
            tested_step=tested_step,
            **state,
        )
        if self.folder is not None and self.assignment.leads:
            text = json.dumps(vars(result) | provenance(self.device), indent=2) + "\n"
            write_whole(self.folder.result, lambda fresh: fresh.write_text(text), lasting=True)
        return result

    def begin(self, resume: bool = False) -> None:
        """Begin the run without a lock of its folder, before the first :meth:`make_step`."""
        config, folder, assignment = self.config, self.folder, self.assignment
        self.resumed = resume and folder is not None and folder.last.exists()
        if self._has_begun and not self.resumed:  # steps have changed the tables
            self.model = self._fresh_model()
        model, self._has_begun = self.model, True
        if resume and folder is not None and folder.holds_a_run():
            graph = folder.load_graph()
            check_same_graph(graph, self.dataset)
            self.dataset = replace(graph, name=self.dataset.name)
        elif config.train.early_stopping is not None and not len(self.dataset.valid):
            raise ValueError(
                "train.early_stopping: needs evaluations, but dataset "
                f"{shown(self.dataset.name)} has no valid triples"
            )
        dataset = self.dataset
        self._rows = names_digest(dataset)
        check_names((dataset.entities, dataset.relations), model)
        hrt = as_triples_tensor(
            dataset.train,
            num_entities=dataset.num_entities,
            num_relations=dataset.num_relations,
            num_times=model.num_times,
        ).cpu()
        self._objective = Objective(config, hrt, model)
        per_epoch = self._objective.per_epoch
        self.steps = config.train.steps or (config.train.epochs or 0) * per_epoch
        options: Any = {"lazy": config.train.mode == "negative", "room": self._room}
        self._optimizer = Optimizer(model, config.optim, assignment=assignment, **options)
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
        self.state = State()
        if folder is not None and self.resumed:
            self.take(folder.load_last(), folder.last)
            if self.steps < self.state.step:
                raise ValueError(
                    f"train.{'epochs' if config.train.epochs else 'steps'}: {self.steps:,} steps, "
                    f"but the run has made {self.state.step:,} already"
                )
        self._bar = RunBar(self.steps, self.state.step, enabled=self.progress and assignment.leads)
        obstacle = obstacle_of(config, device, assignment, defers_checks=self._is_deferred)
        failed = self._run_without_graphs
        self._graphs = StepGraphs(device, [*model.parameters()], failed, obstacle)
        self._ahead = BatchesAhead(self._objective.batch, device, by_kind=obstacle is None)
        is_ahead = self._is_deferred or device.type != "cpu"
        self._batch = self._ahead.take if is_ahead else self._objective.batch
        # Sum of losses on the device, and the step after which it was last read.
        self._loss_sum = torch.tensor(self.state.loss_sum, dtype=torch.float64, device=device)
        self._read_at = self.state.step
        assignment.check_same({"the step that is resumed": self.state.step})
        if folder is None:
            return
        if not self.resumed and folder.holds_a_run():
            hint = f"{folder.last.name} is missing" if resume else "resume that run"
            raise ValueError(f"{folder.path} holds a run: {hint}, or use another folder")
        if assignment.leads:
            if not self.resumed:
                folder.write_graph(dataset)
                if config.dataset.labels:
                    write_labels(folder.path, dataset.entities)
            if not self.is_over():
                folder.result.unlink(missing_ok=True)
                write_whole(folder.config, config.to_yaml, lasting=True)

    def train(self, callbacks: Sequence[Callback] = ()) -> None:
        """Make the steps that are left; process 0 calls the callbacks, after the state is saved."""
        state, train, folder = self.state, self.config.train, self.folder
        leads = self.assignment.leads

        def is_due(every: int) -> bool:
            return bool(every) and state.step % every == 0

        self.model.train()
        if not self.is_over():
            self._bar.say(self._heading())
        log = opened_log(folder.path, state.step) if folder is not None and leads else nullcontext()
        with closing(self), log as self._log_file:
            while not self.is_over():
                self.make_step()
                rows, keeps = [], is_due(train.keep_every)
                evaluates = self.is_over() or is_due(train.eval_every)
                saves = evaluates or is_due(train.save_every)
                if self.is_over() or keeps or is_due(train.log_every):
                    rows.append(self._log_loss())
                    self._bar.update(state.step, rows[0]["loss"])
                if evaluates and len(self.dataset.valid):
                    rows += self._validate()
                if keeps and folder is not None:
                    self._save(folder.path / f"model_{state.step}.safetensors", of_model=True)
                if self.is_over() or (saves and folder is not None):
                    self._save(None if folder is None else folder.last)
                for callback in callbacks if leads else ():
                    for row in rows:
                        (callback.on_evaluation if "split" in row else callback.on_step)(row)

    def make_step(self) -> None:
        """Make the next step and time it."""
        start, cpu, state = time.perf_counter(), time.process_time(), self.state
        cores = threads.alone() if self._leaves_cores_to_kernels else nullcontext()
        checks = without_values(self._values) if self._is_deferred else nullcontext()
        with cores, checks, self._optimizer.constants.in_use(), self._divergence("the loss"):
            batch = self._batch(state.step)
            sched, lr = self.config.sched, self.config.optim.lr
            self._optimizer.set_rate(sched.rate(lr, state.step, self.steps))
            # The generators of torch; a graph takes the seed of its replay.
            with torch.random.fork_rng(self._of_device, enabled=self._draws):
                if self._draws:
                    torch.manual_seed(mix(self.config.seed, state.step, Stream.DROPOUT))
                self._graphs.run(batch.kind, partial(self._step, batch))
        state.loss_count += 1
        state.step += 1
        state.seconds_training += time.perf_counter() - start
        state.seconds_cpu += time.process_time() - cpu

    def _step(self, batch: Batch) -> None:
        """Make one step of the optimizer, and add the loss to the sum; a graph may replay this."""
        optimizer, device = self._optimizer, self._loss_sum.device
        losses = self._objective(self.model, batch)
        total: Tensor | None = None
        is_mixed = self.config.train.amp is not None
        autocast = torch.autocast(device.type, torch.bfloat16) if is_mixed else nullcontext()
        while True:
            with autocast, self.assignment.sharing(device):
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
        if self.config.train.capture == "always":
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
        return self._log({"loss": loss, "lr": self._optimizer.lr, **self.model.logged_values()})

    def _log(self, row: Row) -> Row:
        state = self.state
        where = {
            "step": state.step,
            "epoch": round(state.step / self._objective.per_epoch, 4),
            "time": round(state.seconds_training + state.seconds_evaluating, 3),
        }
        if self._log_file is not None:
            self._log_file.write(line_of(where | row))
        return where | row

    def _heading(self) -> str:
        """Say in a line what is trained, where, and from which step on."""
        data, model = self.dataset, self.model
        names = " of ".join(type(m).__name__ for m in model.modules() if isinstance(m, Model))
        folder = "" if self.folder is None else f"; {self.folder.path}"
        since = f"; resumed after step {self.state.step:,}" if self.resumed else ""
        return (
            f"{names}, dim {model.dim}; {data.sizes()}, {len(data.train):,} triples; "
            f"{self.steps:,} steps; {model.entity.device}{folder}{since}"
        )

    @contextmanager
    def _divergence(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:
            is_value = isinstance(error, ValueError) and _bad_row(self.model) is not None
            if not (is_value or self.assignment.diverges(error)):
                raise
            why = f" ({error})" if isinstance(error, OutOfRangeError) else ""
            raise self._diverged(self.state.step, f"{what} cannot be computed{why}") from error

    def _diverged(self, step: int, what: str) -> FloatingPointError:
        """Make the error of the newest step, or of an earlier one from ``step`` on."""
        last = self.state.step - 1
        where = f"at step {step:,}" if step >= last else f"at a step from {step:,} to {last:,}"
        why = "all tables are finite, but queries, scores or the loss of their numbers overflow"
        bad_row = _bad_row(self.model)
        if bad_row is not None:
            table, row = bad_row[0].rpartition(".")[2], bad_row[1]
            relations, times = relation_names(self.dataset.relations)
            of_tables = {"entity": self.dataset.entities, "relation": relations, "time": times}
            names = of_tables.get(table.removeprefix("static_"))
            name = f" ({names.name(row)})" if names is not None and row < len(names) else ""
            why = (
                f"row {row} of the {table} table{name} is the first that holds a NaN or an infinity"
            )
        message = f"{what} {where}: {why}: try a lower optim.lr or optim.grad_clip"
        if self.folder is not None and self.folder.last.exists():
            message += f"; the last good state is {self.folder.last}"
        return FloatingPointError(message)

    # Evaluations.

    def evaluated(self, split: str) -> tuple[Metrics, dict[str, Metrics]]:
        """Return the metrics of a split and of each sub-model; both are empty without triples."""
        if not len(self.dataset.split(split)):
            return {}, {}
        self.read_losses()
        give_back()  # memory for the evaluation
        start = time.perf_counter()
        with self._divergence(f"ranks of {split}"):
            ranks = self.evaluate(split)
        self.state.seconds_evaluating += time.perf_counter() - start
        of_metric = re.findall(r"hits@(\d+)", self.config.train.save_best_metric)
        hits = sorted({*HITS, *map(int, of_metric)})
        if isinstance(ranks, Ranks):
            return ranks.metrics(hits=hits), {}
        submodels = {str(dim): of_dim.metrics(hits=hits) for dim, of_dim in ranks.items()}
        return submodels[str(max(ranks))], submodels

    def _validate(self) -> list[Row]:
        """Evaluate on valid, log the metrics, save the best model; return the rows of the log."""
        metrics, submodels = self.evaluated("valid")
        state, train = self.state, self.config.train
        best, is_lower = state.best, metric_named(train.save_best_metric).lower_is_better
        rows: list[Row] = [{"dim": int(dim), **row} for dim, row in submodels.items()]
        rows = [self._log({"split": "valid", **row}) for row in rows or [metrics]]
        self._bar.evaluated(state.step, metrics, submodels)
        value = metrics[train.save_best_metric]
        state.in_vain += 1
        if best is None or (value < best if is_lower else value > best):
            state.best, state.best_step, state.in_vain = value, state.step, 0
        if self.folder is None or not state.in_vain:  # of what is tested
            state.valid, state.valid_of_submodels = metrics, submodels
        if self.folder is not None and not state.in_vain:
            self._save(self.folder.best, of_model=True)
        stop = train.early_stopping
        state.stopped_early = stop is not None and state.in_vain >= stop.patience
        return rows

    # Checkpoints.

    def _save(self, path: Path | None, *, of_model: bool = False) -> None:
        """Write a checkpoint, if there is a folder, unless a table is not finite.

        ``of_model`` leaves the optimizer out.
        """
        self.read_losses()
        if _bad_row(self.model) is not None:
            raise self._diverged(self.state.step, "the loss will not be finite")
        if path is not None and self.assignment.leads:
            states = {} if of_model else self._optimizer.tensors()
            tensors = {f"optim.{name}": tensor for name, tensor in states.items()}
            tensors |= self.model.state_dict(prefix="model.")
            numbers = {"step": self.state.step, "state": self.state.model_dump()}
            save(path, tensors, {"config": self.config.to_dict(), "graph": self._rows, **numbers})

    def take(self, stored: Stored, path: Path) -> None:
        """Take the state of a checkpoint; a ValueError says what does not fit, nothing changes."""
        tensors, meta = stored
        with reading(path, "not a state of this run"):
            before = Config.from_dict(meta["config"])
        changed = before.training_differences(self.config)
        if changed:
            raise ValueError(
                "the run was started with another config: "
                + ", ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
            )
        with reading(path, "not a state of this run"):
            if meta.get("graph") != self._rows:
                raise ValueError("the rows belong to other names than those of the run")
            state = checked(State, meta.get("state"))
            if type(meta.get("step")) is not int or meta["step"] != state.step:
                raise ValueError(f"step is {shown(meta.get('step'))}, of the state {state.step}")
            of_model = of_part("model", tensors)
            check_tensors("model", of_model, self.model.state_dict())
            self._optimizer.load(of_part("optim", tensors))
        self.model.load_state_dict(of_model)
        self.state = state

    def load_best(self) -> int:
        """Give the model the best state of the folder, if there is one; return the step."""
        if self.folder is None or not self.state.best_step:
            return self.state.step
        self.assignment.together(lambda: None)  # process 0 may still be writing
        tensors, meta = self.folder.load_best()
        if meta["step"] != self.state.best_step:  # of steps that a shorter run does not make
            return self.state.step
        self.model.load_state_dict(of_part("model", tensors))
        return int(meta["step"])


def _bad_row(model: nn.Module) -> tuple[str, int] | None:
    """Return the first parameter with a NaN or an infinity, and the first such row, or None."""
    for name, parameter in model.named_parameters():
        rows = parameter.detach().reshape(len(parameter) if parameter.ndim else 1, -1)
        bad = first_bad_row(rows)
        if bad is not None:
            return name, bad
    return None

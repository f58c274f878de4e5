"""The loop of a run: steps with logs, evaluations and checkpoints between them."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.eval.metrics import HITS
from kgfast.eval.ranks import Ranks
from kgfast.graph import as_triples_tensor
from kgfast.kernels.checks import OutOfRangeError, Values, without_values
from kgfast.kernels.cpu import threads
from kgfast.kernels.scores import get_score
from kgfast.models import Model
from kgfast.ops import backend_for
from kgfast.ops.dispatch import get_backend
from kgfast.progress import RunBar
from kgfast.rng import Stream, mix
from kgfast.training.ahead import BatchesAhead
from kgfast.training.build import room_of
from kgfast.training.callbacks import Callback, Listeners
from kgfast.training.checkpoint.run_folder import RunFolder
from kgfast.training.checkpoint.run_graph import RunGraph
from kgfast.training.checkpoint.shard_files import Kind
from kgfast.training.checkpoint.state import Kept, State, Write
from kgfast.training.config import Config, is_own
from kgfast.training.data import Batch, asked_of
from kgfast.training.divergence import describe, first_bad_row
from kgfast.training.logs import Logs
from kgfast.training.objective import MODES
from kgfast.training.optimizer import Optimizer
from kgfast.training.processes.placement import ALONE, Placement, RankResult
from kgfast.training.schedule import PARTS, SPANNING, Deadline, Interrupts, Patience, Schedule, gain

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}
_UNREAD = 1.0  # seconds of steps with unread losses, at most, if time is limited

Metrics = dict[str, float]


class InFolder(NamedTuple):
    """Folder of a run, with a stored graph, and whether to resume the newest checkpoint."""

    folder: RunFolder
    graph: RunGraph
    resume: bool


class _Unread(NamedTuple):
    """Losses of steps that are on the device."""

    loss_sum: Tensor  # float64: the sum in the state, and of the steps since
    first: int  # first of these steps
    seconds: float  # seconds of training before that step


class Run:
    """Run of a trainer.

    Parameters
    ----------
    config : Config
    dataset : Dataset
    model : Model
    placement : Placement
        Division of the run among processes.
    deadline : Deadline, optional
        The time left for steps; by default the time that the config allows from now on.
    stored : InFolder, optional
        The folder for logs and checkpoints; without one nothing is written.
    progress : bool
        Show a progress bar.

    Attributes
    ----------
    state : State
    steps : int
        Number of steps of the whole run.
    resumed : bool
        True if the run was resumed from a checkpoint.
    graph : RunGraph, optional

    Raises
    ------
    ValueError
        If there are no training triples, or one of their ids is out of range; if the folder holds a
        run and ``resume`` is False, a run of another config, or no checkpoint that fits.

    Notes
    -----
    On a device such as a GPU, where kernels run beside the host, this class does not wait for the
    device in a step. Ids are checked here, once, and :class:`~kgfast.training.ahead.BatchesAhead`
    makes batches. Losses are summed on the device. :meth:`read_losses` reads them for each row of
    the log, and before the model is evaluated or saved. Steps still wait for other processes, and
    for the norm of float16 gradients, which decides whether a step is made.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: Model,
        placement: Placement = ALONE,
        deadline: Deadline | None = None,
        *,
        stored: InFolder | None = None,
        progress: bool = False,
    ) -> None:
        self._config, self._dataset, self._model = config, dataset, model
        self._placement = placement
        self._deadline = deadline or Deadline(config.train, time.perf_counter())
        self._folder = folder = None if stored is None else stored.folder
        self.graph = None if stored is None else stored.graph
        self._shows_progress = progress and placement.leads
        _check_sizes(model, dataset, placement)
        device = model.entity.device
        train, metric = config.train, config.train.save_best_metric
        own = [int(metric.removeprefix("hits@"))] if metric.startswith("hits@") else []
        self._hits = sorted({*HITS, *own})
        hrt = as_triples_tensor(
            dataset.train, num_entities=dataset.num_entities, num_relations=dataset.num_relations
        ).cpu()
        triples, sides = asked_of(hrt, model.num_relations, model.has_inverses)
        self._dropouts = model.random_layers()
        self._generator = torch.Generator(device) if self._dropouts else None
        self._runs_own_code = is_own(config.model.name) or is_own(config.loss.name)
        self._objective = MODES[train.mode](config, triples, dataset.num_entities, sides)
        self._is_deferred = get_backend(backend_for(device)).defers_checks
        self._ahead = BatchesAhead(self._objective.batch, device) if self._is_deferred else None
        self._unread: _Unread | None = None
        batches = (train.epochs or 0) * self._objective.batches.per_epoch
        self.steps = train.steps or math.ceil(batches / train.accumulate)
        self._optimizer = Optimizer(
            model,
            config.optim,
            lazy=self._objective.lazy,
            scaled=train.amp == "fp16",
            placement=placement,
            room=room_of(config),
        )
        # In such a step only the products that make filters are large operators of torch.
        self._leaves_cores_to_kernels = (
            backend_for(device) == "cpu"
            and self._optimizer.runs_on_kernels
            and not get_score(model.score).is_rscf
            and not is_own(config.model.name)
            and not any(getattr(it, "has_large_operators", False) for it in model.modules())
        )
        self._schedule = Schedule(config.sched, config.optim.lr, self.steps, metric)
        stop = train.early_stopping
        self._patience = None if stop is None else Patience(metric, stop.patience, stop.min_delta)
        self._kept = Kept(
            config=config,
            model=model,
            optimizer=self._optimizer,
            schedule=self._schedule,
            patience=self._patience,
            graph=self.graph,
            placement=placement,
        )
        checkpoint = None
        if stored is not None and stored.resume:
            checkpoint = stored.folder.load_last(self._kept.check)
        self.resumed = checkpoint is not None
        self.state = State() if checkpoint is None else self._kept.load(checkpoint)
        placement.check_same({"the step that is resumed": self.state.step})
        is_other_length = checkpoint is not None and self._changes_length(checkpoint[1]["config"])
        if folder is not None and self.resumed and placement.leads:
            folder.finish_save({"step": self.state.step}, train.keep)
        self._bar = self._fresh_bar()
        self._is_out_of_time = False
        if self.resumed and train.max_total_minutes is not None and not self.is_over():
            self._check_time(self._deadline.total_is_up)  # max_minutes leaves time for a step
        if folder is not None and not self.resumed and folder.holds_a_run():
            raise ValueError(f"{folder.path} holds a run: resume that run, or use another folder")
        if stored is not None and placement.leads:
            if not self.resumed or is_other_length:
                stored.folder.write_config(config)
            if not (self.resumed and stored.folder.graph.exists()):
                stored.folder.write_graph(stored.graph)

    def train(
        self, pauses: Callable[[], bool] | None = None, callbacks: Sequence[Callback] = ()
    ) -> bool:
        """Make the steps that are left; return False if the run was interrupted.

        Parameters
        ----------
        pauses : callable, optional
            Called before each step; True saves the run and returns. A later call continues it, with
            the steps, evaluations and logs of a run that never paused.
        callbacks : sequence of Callback
            Callbacks, which process 0 calls. An exception of a callback is raised when the state is
            saved.
        """
        state, train = self.state, self._config.train
        self._model.train()
        self._bar = self._fresh_bar()
        if not self.is_over():
            self._bar.say(self._heading())
        with (
            closing(self),
            Interrupts() as interrupts,
            self._logs() as logs,
            self._bar as bar,
        ):
            listeners = Listeners(logs, callbacks if self._placement.leads else ())
            while not self.is_over():
                if pauses is not None and pauses():
                    self._save()
                    listeners.raise_error()
                    return not interrupts.requested
                self.make_step()
                is_interrupted, state.seconds_training = self._placement.agreed(
                    interrupts.requested or listeners.error is not None, state.seconds_training
                )
                self._check_time(self._deadline.is_up)
                is_last = state.step == self.steps or self._is_out_of_time
                keeps = _is_due(state.step, train.keep_every)
                if is_last or keeps or state.step % train.log_every == 0:
                    bar.update(state.step, self._log_loss(listeners))
                else:
                    bar.update(state.step)
                evaluates = is_last or _is_due(state.step, train.eval_every)
                if evaluates and len(self._dataset.valid):
                    self._validate(listeners, bar, due=_is_due(state.step, train.eval_every))
                    # the step may have taken the remaining time
                    self._check_time(self._deadline.is_up)
                ends = self.is_over()
                if keeps and self._folder is not None:
                    self._save_finite("model", self._folder.save_model)
                is_due = _is_due(state.step, train.save_every, or_if=evaluates)
                if ends or is_interrupted or is_due:
                    self._save()
                if is_interrupted and not ends:
                    # When one process ends, torchrun ends all others: the state is written first.
                    self._placement.together(lambda: None)
                    break
            listeners.raise_error()
        return self.is_over()

    def close(self) -> None:
        """End the thread that makes batches, if there is one; later steps start another."""
        if self._ahead is not None:
            self._ahead.close()

    def is_over(self) -> bool:
        """Return whether the run has made all steps, stopped early or is out of time."""
        return self.state.step >= self.steps or self.state.stopped_early or self._is_out_of_time

    def _changes_length(self, before: Mapping[str, Any]) -> bool:
        """Return whether the run had another length at the checkpoint; refuse made steps."""
        train, name = self._config.train, self._config.sched.name
        made, was = self.state.step, before["train"]
        if (was["epochs"], was["steps"]) == (train.epochs, train.steps):
            return False
        key = "epochs" if train.epochs else "steps"
        if self.steps < made:
            raise ValueError(
                f"train.{key}: {self.steps:,} steps, but the run has made {made:,} already"
            )
        if name in SPANNING and self._placement.leads:
            warnings.warn(
                f"train.{key}: sched.name {name} spans the run, so the first {made:,} steps had "
                f"the rates of the earlier length: the result is not that of one run of "
                f"{self.steps:,} steps",
                stacklevel=4,
            )
        return True

    def _fresh_bar(self) -> RunBar:
        state = self.state

        def limit() -> float:
            return self._deadline.left(state.seconds_training + state.seconds_evaluating)

        return RunBar(self.steps, state.step, enabled=self._shows_progress, limit=limit)

    def _heading(self) -> str:
        """Say in a line what is trained, where, and from which step on."""
        count, threads = self._placement.size, torch.get_num_threads()
        data, model = self._dataset, self._model
        names = [type(it).__name__ for it in model.modules() if isinstance(it, Model)]
        parts = [
            f"{' of '.join(names)}, dim {model.dim}; {data.num_entities:,} entities, "
            f"{data.num_relations:,} relations, {len(data.train):,} triples; {self.steps:,} steps",
            f"{self._model.entity.device}, {threads} thread{'s' * (threads > 1)}"
            + (f" in each of {count} processes" if count > 1 else ""),
        ]
        if self._folder is not None:
            parts.append(f"{self._folder.path}")
        if self.resumed:
            parts.append(f"resumed after step {self.state.step:,}")
        return "; ".join(parts)

    def _check_time(self, is_up: Callable[[float], bool]) -> None:
        """Note whether time is up by the clock of process 0."""
        deadline, state = self._deadline, self.state
        if not deadline.is_set or self._is_out_of_time:
            return
        if deadline.saving is None:
            tensors = self._kept.tensors().values() if self._folder is not None else ()
            deadline.expect_checkpoints_of(sum(it.nbytes for it in tensors))
        if deadline.triple is None:
            self._time_evaluation()
            message = deadline.warning()
            if message is not None and self._placement.leads:
                warnings.warn(message, stacklevel=2)
        is_late = is_up(state.seconds_training + state.seconds_evaluating)
        self._is_out_of_time = bool(self._placement.agreed(False, float(is_late))[1])

    def _time_evaluation(self) -> None:
        """Time growing parts of a split, until triples take longer than the fixed cost.

        The first part also packs and compiles.
        """
        split, total = max(self._deadline.splits, key=lambda it: it[1], default=("valid", 0))
        spent = self.state.seconds_training + self.state.seconds_evaluating
        parts: list[tuple[int, float]] = []
        self._deadline.triple = 0.0
        self.read_losses()
        self._bar.say("timing the ranking of a few triples, for the limit of minutes")
        for count in sorted({min(it, total) for it in PARTS} - {0}):
            start = time.perf_counter()
            self._ranks(split, count)
            own = self._placement.agreed(False, time.perf_counter() - start)[1]
            self._deadline.timed(parts := [*parts, (count, own)])
            is_late = self._placement.agreed(False, float(self._deadline.is_up(spent)))[1]
            if is_late or own >= 4 * parts[0][1]:
                break

    def interruption(self) -> str:
        """Return the message for a user who interrupted the run."""
        where = f"interrupted after step {self.state.step:,} of {self.steps:,}"
        if self._folder is None:
            return f"{where}; nothing is saved, as there is no run folder"
        start, run = "kgfast", f"--run {self._folder.path}"
        if self._placement.size > 1:  # torchrun takes --run as its own option
            start = f"torchrun --nproc-per-node={self._placement.size} -m kgfast"
            run = f"--set train.out_dir={self._folder.path}"
        return (
            f"{where} and saved; go on with: {start} train --config {self._folder.config} "
            f"{run} --resume"
        )

    def load_best(self) -> int:
        """Give the model the best state of the folder, if there is one; return the step."""
        if self._folder is None or not self.state.best_step:
            return self.state.step
        self._placement.together(lambda: None)  # process 0 may still be writing
        return self._kept.load_best(self._folder)

    def evaluated(self, split: str) -> tuple[Metrics, dict[str, Metrics]]:
        """Return the metrics of a split and of each sub-model; both are empty without triples."""
        if not len(self._dataset.split(split)):
            return {}, {}
        return self._metrics_of(self._ranked(split))

    def _ranked(self, split: str) -> RankResult:
        self.read_losses()
        start = time.perf_counter()
        ranks = self._ranks(split)
        own = time.perf_counter() - start
        self._deadline.evaluated(len(self._dataset.split(split)), own)
        seconds = self.state.seconds_evaluating + own
        self.state.seconds_evaluating = self._placement.agreed(False, seconds)[1]
        return ranks

    def _ranks(self, split: str, *most: int) -> RankResult:
        self.read_losses()
        self._optimizer.spares.clear()  # frees memory for the evaluation
        with self._divergence(f"ranks of {split}"):
            return self._placement.ranks(self._model, self._dataset, split, self._config, *most)

    def _metrics_of(self, ranks: RankResult) -> tuple[Metrics, dict[str, Metrics]]:
        if isinstance(ranks, Ranks):
            return ranks.metrics(hits=self._hits), {}
        submodels = {str(dim): it.metrics(hits=self._hits) for dim, it in ranks.items()}
        return submodels[str(max(ranks))], submodels

    def make_step(self) -> None:
        """Make the next step and time it."""
        start, cpu, state = time.perf_counter(), time.process_time(), self.state
        cores = threads.alone() if self._leaves_cores_to_kernels else nullcontext()
        # A user's own code may make ids that are not checked.
        values = Values.FORCED if self._runs_own_code else Values.TRUSTED
        checks = without_values(values) if self._is_deferred else nullcontext()
        with cores, checks, self._optimizer.spares.in_use(), self._divergence("the loss"):
            self._add_loss(self._step(state.step))
        state.loss_count += 1
        state.step += 1
        seconds = time.perf_counter() - start
        state.seconds_training += seconds
        state.seconds_cpu += time.process_time() - cpu
        if self._unread is None:
            self._deadline.step = seconds
        elif self._deadline.is_set:
            each, count = self._deadline.step, state.step - self._unread.first
            if not each or count * each > _UNREAD:
                self.read_losses()

    def _add_loss(self, loss: float | Tensor) -> None:
        """Add the loss of a step to the losses since the last row of the log."""
        state = self.state
        if not isinstance(loss, Tensor):
            state.loss_sum += loss
            return
        if self._unread is None:
            before = loss.new_full((), state.loss_sum, dtype=torch.float64)
            self._unread = _Unread(before, state.step, state.seconds_training)
        self._unread.loss_sum.add_(loss)

    def read_losses(self) -> None:
        """Wait for the losses that are still on the device; raise unless all are finite."""
        if self._unread is None:
            return
        start, state = time.perf_counter(), self.state
        unread, self._unread = self._unread, None
        loss_sum = float(unread.loss_sum)
        if not math.isfinite(loss_sum):
            raise self._diverged(unread.first, f"the loss is {loss_sum}")
        state.loss_sum = loss_sum
        state.seconds_training += time.perf_counter() - start
        seconds = state.seconds_training - unread.seconds
        self._deadline.step = seconds / (state.step - unread.first)

    def _step(self, step: int) -> float | Tensor:
        """Make one step of the optimizer; return the loss, a tensor where reading would wait."""
        count, values = self._config.train.accumulate, []
        optimizer, placement = self._optimizer, self._placement
        for part in range(count):
            batch = self._batch(step * count + part)
            losses, value = self._objective(self._model, batch, placement), None
            with self._dropout_of(batch.number):
                while (loss := self._next(losses)) is not None:
                    own = loss.detach()
                    value = self._checked(own if value is None else value + own, step)
                    scale = optimizer.scaler.scale / count
                    loss.backward(optimizer.spares.constant(scale, (), own.dtype, own.device))
                    optimizer.collect(placement.read_gradients())
            assert value is not None
            values.append(value)
        optimizer.step(step, self._schedule.lr(step))
        return _mean(values)

    def _batch(self, number: int) -> Batch:
        if self._ahead is not None:
            return self._ahead.take(number)
        return self._objective.batch(number).to(self._model.entity.device)

    def _next(self, losses: Iterator[Tensor]) -> Tensor | None:
        """Compute the next loss of a batch, if there is one."""
        with self._autocast(), self._placement.sharing(self._model.entity.device):
            return next(losses, None)

    def _autocast(self) -> AbstractContextManager[Any]:
        amp = self._config.train.amp
        if amp is None:
            return nullcontext()
        return torch.autocast(self._model.entity.device.type, dtype=_AMP[amp])

    @contextmanager
    def _dropout_of(self, number: int) -> Iterator[None]:
        """Let dropout draw from the generator of the run, seeded with the number of the batch.

        A user's own code draws from torch's generators, whose state is restored afterwards.
        """
        seed = mix(self._config.seed, number, Stream.DROPOUT)
        if self._generator is not None:
            self._generator.manual_seed(seed)
        for layer in self._dropouts:
            layer.generator = self._generator
        device = self._model.entity.device
        try:
            with torch.random.fork_rng(
                [device] if device.type == "cuda" else [], enabled=self._runs_own_code
            ):
                if self._runs_own_code:
                    torch.manual_seed(seed)
                yield
        finally:
            for layer in self._dropouts:
                layer.generator = None

    def _checked(self, loss: Tensor, step: int) -> float | Tensor:
        """Return a loss after checking that it is finite; unchecked where reading would wait."""
        if self._is_deferred:
            return loss
        value = float(loss)
        if not math.isfinite(value):
            raise self._diverged(step, f"the loss is {value}")
        return value

    @contextmanager
    def _divergence(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:
            is_value = isinstance(error, ValueError) and first_bad_row(self._model) is not None
            if not (is_value or self._placement.diverges(error)):
                raise
            why = f" ({error})" if isinstance(error, OutOfRangeError) else ""
            raise self._diverged(self.state.step, f"{what} cannot be computed{why}") from error

    def _diverged(self, step: int, what: str) -> FloatingPointError:
        """Make the error of the newest step, or of an earlier one from ``step`` on."""
        wrong = describe(self._model, self._dataset, self._placement.entity_id)
        last = self.state.step - 1
        where = f"at step {step:,}" if step >= last else f"at a step from {step:,} to {last:,}"
        message = f"{what} {where}: {wrong}"
        if self._folder is not None and self._folder.last.exists():
            message += f"; the last good state is {self._folder.last}"
        return FloatingPointError(message)

    def _log_loss(self, listeners: Listeners) -> float:
        """Write a row with the mean loss since the last row; return that loss."""
        self.read_losses()
        state = self.state
        loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        row = {"loss": loss, "lr": self._schedule.lr(state.step - 1), **self._model.logged_values()}
        self._write(listeners, row)
        return loss

    def _write(self, listeners: Listeners, row: dict[str, Any]) -> None:
        state, batches = self.state, self._objective.batches
        made = state.step * self._config.train.accumulate
        where = {
            "step": state.step,
            "epoch": round(made / batches.per_epoch, 4),
            "time": round(state.seconds_training + state.seconds_evaluating, 3),
        }
        listeners.write(where | row)

    def _validate(self, listeners: Listeners, bar: RunBar, *, due: bool) -> None:
        """Evaluate on valid, log the metrics, save the best state, update schedule and patience.

        An evaluation that is not ``due``, made because time is up, changes neither of the two: the
        steps to come are those of a run that had the time.
        """
        ranks, state = self._ranked("valid"), self.state
        metrics, submodels = self._metrics_of(ranks)
        for dim, row in submodels.items() or [(None, metrics)]:
            of_dim = {} if dim is None else {"dim": int(dim)}
            self._write(listeners, {"split": "valid", **of_dim, **row})
        bar.evaluated(state.step, metrics, submodels)
        value = metrics[self._config.train.save_best_metric]
        if gain(self._config.train.save_best_metric, value, state.best) > 0:
            state.best, state.best_step = value, state.step
            state.valid, state.valid_of_submodels = metrics, submodels
            if self._folder is not None:
                self._kept.save(self._folder, "model", state, self._folder.save_best)
        if due:
            self._schedule.observe(value)
        stop = self._config.train.early_stopping
        if due and self._patience is not None and stop is not None:
            if stop.side is not None:
                whole = ranks if isinstance(ranks, Ranks) else ranks[max(ranks)]
                of_side = whole.side(stop.side).metrics(hits=self._hits)
                value = of_side[self._config.train.save_best_metric]
            state.stopped_early = self._patience.exhausted_by(value)

    def _save(self) -> None:
        """Save the newest state, timed, if there is a folder; else check the tables at the end."""
        if self._folder is None:
            if self.is_over():
                self._check_tables()
            return
        write = partial(self._folder.save_last, keep=self._config.train.keep)
        self._deadline.saving = self._save_finite("state", write)

    def _save_finite(self, kind: Kind, write: Write) -> float:
        """Write a checkpoint unless a table is not finite; return the seconds of writing."""
        assert self._folder is not None
        self._check_tables()
        start = time.perf_counter()
        self._kept.save(self._folder, kind, self.state, write)
        return time.perf_counter() - start

    def _check_tables(self) -> None:
        self.read_losses()
        if first_bad_row(self._model) is not None:
            raise self._diverged(self.state.step, "the loss will not be finite")

    def _logs(self) -> AbstractContextManager[Logs | None]:
        if self._folder is None or not self._placement.leads:
            return nullcontext()
        metric = self._config.train.save_best_metric
        return Logs(self._folder.path, self.state.step or None, metric=metric)


def _check_sizes(model: Model, dataset: Dataset, placement: Placement) -> None:
    """Raise a ValueError unless a model has a row for each name of a dataset."""
    for what in ("entities", "relations"):
        own, others = (getattr(holder, f"num_{what}") for holder in (model, dataset))
        expected = placement.num_held(others) if what == "entities" else others
        if own != expected:
            raise ValueError(f"the model has {own:,} {what}, dataset {dataset.name} {others:,}")


def _mean(losses: list[float | Tensor]) -> float | Tensor:
    """Return the mean of the losses of batches; the mean of several is computed in float64."""
    if len(losses) == 1:
        return losses[0]
    return sum(it.double() if isinstance(it, Tensor) else it for it in losses) / len(losses)


def _is_due(step: int, every: int, *, or_if: bool = False) -> bool:
    """Return whether a step is a multiple of ``every``; for 0, return ``or_if``."""
    return step % every == 0 if every else or_if

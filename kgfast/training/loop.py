"""The loop of a run: steps with logs, evaluations and checkpoints between them."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
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
from kgfast.processes.placement import ALONE, Placement, RankResult
from kgfast.progress import RunBar
from kgfast.rng import Stream, mix
from kgfast.training.build import room_of
from kgfast.training.callbacks import Callback
from kgfast.training.checkpoint import Stored, of_part
from kgfast.training.config import Config, is_own
from kgfast.training.data import Batch, BatchesAhead, asked_of
from kgfast.training.divergence import describe, first_bad_row
from kgfast.training.logs import Logs, Row
from kgfast.training.objective import MODES
from kgfast.training.optimizer import Optimizer
from kgfast.training.run_folder import RunFolder
from kgfast.training.run_graph import RunGraph
from kgfast.training.schedule import PARTS, SPANNING, Deadline, Interrupts, rate
from kgfast.training.shard_files import Kind, ShardFiles
from kgfast.training.state import Resumable, State, gain

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}
_UNREAD = 1.0  # seconds of steps with unread losses, at most, if time is limited

Metrics = dict[str, float]


class _Unread(NamedTuple):
    """Losses of steps that are on the device."""

    loss_sum: Tensor  # float64: the sum in the state, and of the steps since
    first: int  # first of these steps
    seconds: float  # seconds of training before that step


class Run:
    """Run of a trainer, as :meth:`kgfast.training.Trainer.opened` yields it.

    ``placement`` divides the run among processes, and ``deadline`` says how much time is left for
    steps. ``folder`` takes logs and checkpoints; without one nothing is written. ``graph`` is what
    the folder stores of the dataset.

    Attributes
    ----------
    state : State
    steps : int
        Number of steps of the whole run.
    resumed : bool
        True if the run was resumed from a checkpoint.

    Notes
    -----
    On a device such as a GPU, where kernels run beside the host, this class does not wait for the
    device in a step. Ids are checked here, once, and :class:`~kgfast.training.data.BatchesAhead`
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
        folder: RunFolder | None = None,
        graph: RunGraph | None = None,
        resume: bool = False,
        progress: bool = False,
    ) -> None:
        self._config, self._dataset, self._model = config, dataset, model
        self._placement, self._folder, self.graph = placement, folder, graph
        self._deadline = deadline or Deadline(config.train, time.perf_counter())
        self._shows_progress = progress and placement.leads
        self._callbacks: list[Callback] = []
        self._error: Exception | None = None  # a callback's; raised when the state is saved
        self._logs: Logs | None = None
        self._unread: _Unread | None = None
        self._is_out_of_time = False
        _check_sizes(model, dataset, placement)
        train, metric, device = config.train, config.train.save_best_metric, model.entity.device
        more = [int(metric.removeprefix("hits@"))] if metric.startswith("hits@") else []
        self._hits = sorted({*HITS, *more})
        hrt = as_triples_tensor(
            dataset.train, num_entities=dataset.num_entities, num_relations=dataset.num_relations
        ).cpu()
        triples, sides = asked_of(hrt, model.num_relations, model.has_inverses)
        self._objective = MODES[train.mode](config, triples, dataset.num_entities, sides)
        batches = (train.epochs or 0) * self._objective.batches.per_epoch
        self.steps = train.steps or math.ceil(batches / train.accumulate)
        self._random_layers = model.random_layers()
        self._generator = torch.Generator(device) if self._random_layers else None
        self._runs_own_code = is_own(config.model.name) or is_own(config.loss.name)
        self._is_deferred = get_backend(backend_for(device)).defers_checks
        self._ahead = BatchesAhead(self._objective.batch, device) if self._is_deferred else None
        is_lazy = self._objective.lazy
        self._optimizer = Optimizer(
            model, config.optim, lazy=is_lazy, placement=placement, room=room_of(config)
        )
        # In such a step only the products that make filters are large operators of torch.
        self._leaves_cores_to_kernels = (
            backend_for(device) == "cpu"
            and self._optimizer.runs_on_kernels
            and not get_score(model.score).is_rscf
            and not is_own(config.model.name)
            and not any(getattr(it, "has_large_operators", False) for it in model.modules())
        )
        rows = None if graph is None else graph.rows
        self._resumable = Resumable(config, model, self._optimizer, rows)
        stored = None
        if folder is not None and resume:
            stored = folder.load_last(self._resumable.check)
        self.resumed = stored is not None
        self.state = State.fresh(config) if stored is None else self._resumable.load(stored)
        self._optimizer.loss_scale = self.state.loss_scale
        placement.check_same({"the step that is resumed": self.state.step})
        is_other_length = stored is not None and self._changes_length(stored[1]["config"]["train"])
        self._bar = self._fresh_bar()
        if self.resumed and train.max_total_minutes is not None and not self.is_over():
            self._check_time(self._deadline.total_is_up)  # max_minutes leaves time for a step
        if folder is None:
            return
        if not self.resumed and folder.holds_a_run():
            raise ValueError(f"{folder.path} holds a run: resume that run, or use another folder")
        if placement.leads:
            if self.resumed:
                folder.finish_save(self.state.step, train.keep)
            elif graph is not None:
                folder.write_graph(graph)
            if not self.resumed or is_other_length:
                folder.write_config(config)

    def train(self, callbacks: Sequence[Callback] = ()) -> bool:
        """Make the steps that are left; return False if the run was interrupted.

        Process 0 calls the callbacks. The exception of a callback is raised when the state is
        saved.
        """
        state, train, folder = self.state, self._config.train, self._folder
        self._callbacks = list(callbacks) if self._placement.leads else []
        self._model.train()
        self._bar = self._fresh_bar()
        if not self.is_over():
            self._bar.say(self._heading())
        with closing(self), Interrupts() as interrupts, self._opened_logs(), self._bar:
            while not self.is_over():
                self.make_step()
                is_interrupted, state.seconds_training = self._placement.agreed(
                    interrupts.requested or self._error is not None, state.seconds_training
                )
                self._check_time(self._deadline.is_up)
                is_last = state.step == self.steps or self._is_out_of_time
                keeps = _is_due(state.step, train.keep_every)
                if is_last or keeps or _is_due(state.step, train.log_every):
                    self._bar.update(state.step, self._log_loss())
                else:
                    self._bar.update(state.step)
                evaluates = is_last or _is_due(state.step, train.eval_every)
                if evaluates and len(self._dataset.valid):
                    self._validate(due=_is_due(state.step, train.eval_every))
                    self._check_time(self._deadline.is_up)  # the step may have taken what was left
                if keeps and folder is not None:
                    self._write("model", folder.save_model)
                saves = _is_due(state.step, train.save_every) if train.save_every else evaluates
                if self.is_over() or is_interrupted or saves:
                    self._save()
                if is_interrupted and not self.is_over():
                    # When one process ends, torchrun ends all others: the state is written first.
                    self._placement.together(lambda: None)
                    break
            if self._error is not None:
                raise self._error
        return self.is_over()

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

    def _step(self, step: int) -> float | Tensor:
        """Make one step of the optimizer; return the loss, a tensor where reading would wait."""
        model, optimizer, placement = self._model, self._optimizer, self._placement
        device, count = model.entity.device, self._config.train.accumulate
        values: list[float | Tensor] = []
        for part in range(count):
            batch = self._batch(step * count + part)
            losses, value = self._objective(model, batch, placement), None
            with self._drawing(batch.number):
                while True:
                    with self._autocast(), placement.sharing(device):
                        loss = next(losses, None)
                    if loss is None:
                        break
                    alone = loss.detach()
                    value = self._checked(alone if value is None else value + alone, step)
                    scale = optimizer.scale / count
                    loss.backward(optimizer.spares.constant(scale, (), alone.dtype, device))
                    optimizer.collect(placement.read_gradients())
            assert value is not None
            values.append(value)
        optimizer.step(step, self._rate(step))
        if count == 1:
            return values[0]
        return sum(it.double() if isinstance(it, Tensor) else it for it in values) / count

    def _batch(self, number: int) -> Batch:
        if self._ahead is not None:
            return self._ahead.take(number)
        batch, device = self._objective.batch(number), self._model.entity.device
        return batch if device.type == "cpu" else batch.to(device)

    def _rate(self, step: int) -> float:
        config = self._config
        return rate(config.sched, config.optim.lr, step, self.steps, self.state.reductions)

    def _autocast(self) -> AbstractContextManager[Any]:
        amp = self._config.train.amp
        if amp is None:
            return nullcontext()
        return torch.autocast(self._model.entity.device.type, dtype=_AMP[amp])

    def _drawing(self, number: int) -> AbstractContextManager[None]:
        """Let layers draw from the run's generator, seeded with the number of the batch."""
        if self._generator is None and not self._runs_own_code:
            return nullcontext()
        return self._seeded(mix(self._config.seed, number, Stream.DROPOUT))

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Seed the run's generator; a user's own code draws from torch's, restored afterwards."""
        if self._generator is not None:
            self._generator.manual_seed(seed)
        device = self._model.entity.device
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=self._runs_own_code):
            if self._runs_own_code:
                torch.manual_seed(seed)
            try:
                for layer in self._random_layers:
                    layer.generator = self._generator
                yield
            finally:
                for layer in self._random_layers:
                    layer.generator = None

    def _checked(self, loss: Tensor | float, step: int) -> float | Tensor:
        """Return a loss after checking that it is finite; unchecked where reading would wait."""
        if self._is_deferred:
            return loss
        value = float(loss)
        if not math.isfinite(value):
            raise self._diverged(step, f"the loss is {value}")
        return value

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

    def close(self) -> None:
        """End the thread that makes batches, if there is one; later steps start another."""
        if self._ahead is not None:
            self._ahead.close()

    def is_over(self) -> bool:
        """Return whether the run has made all steps, stopped early or is out of time."""
        return self.state.step >= self.steps or self.state.stopped_early or self._is_out_of_time

    # Logs and messages.

    @contextmanager
    def _opened_logs(self) -> Iterator[None]:
        if self._folder is None or not self._placement.leads:
            yield
            return
        metric = self._config.train.save_best_metric
        with Logs(self._folder.path, self.state.step or None, metric=metric) as self._logs:
            yield
        self._logs = None

    def _log_loss(self) -> float:
        """Write a row with the mean loss since the last row; return that loss."""
        self.read_losses()
        state = self.state
        loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        self._log({"loss": loss, "lr": self._rate(state.step - 1), **self._model.logged_values()})
        return loss

    def _log(self, row: Row) -> None:
        """Write a row, and give a copy to the callbacks, until one raises."""
        state, made = self.state, self.state.step * self._config.train.accumulate
        where = {
            "step": state.step,
            "epoch": round(made / self._objective.batches.per_epoch, 4),
            "time": round(state.seconds_training + state.seconds_evaluating, 3),
        }
        if self._logs is not None:
            self._logs.write(where | row)
        try:
            for it in self._callbacks if self._error is None else ():
                (it.on_evaluation if "split" in row else it.on_step)(where | row)
        except Exception as error:
            self._error = error

    def _fresh_bar(self) -> RunBar:
        state = self.state

        def limit() -> float:
            return self._deadline.left(state.seconds_training + state.seconds_evaluating)

        return RunBar(self.steps, state.step, enabled=self._shows_progress, limit=limit)

    def _heading(self) -> str:
        """Say in a line what is trained, where, and from which step on."""
        count, cores = self._placement.size, torch.get_num_threads()
        data, model = self._dataset, self._model
        names = [type(it).__name__ for it in model.modules() if isinstance(it, Model)]
        words = [
            f"{' of '.join(names)}, dim {model.dim}; {data.num_entities:,} entities, "
            f"{data.num_relations:,} relations, {len(data.train):,} triples; {self.steps:,} steps",
            f"{model.entity.device}, {cores} thread{'s' * (cores > 1)}"
            + (f" in each of {count} processes" if count > 1 else ""),
        ]
        words += [] if self._folder is None else [f"{self._folder.path}"]
        words += [f"resumed after step {self.state.step:,}"] if self.resumed else []
        return "; ".join(words)

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

    # Evaluations, and the time for them.

    def evaluated(self, split: str) -> tuple[Metrics, dict[str, Metrics]]:
        """Return the metrics of a split and of each sub-model; both are empty without triples."""
        if not len(self._dataset.split(split)):
            return {}, {}
        return self._metrics_of(self._ranked(split))

    def _ranked(self, split: str) -> RankResult:
        self.read_losses()
        start = time.perf_counter()
        ranks = self._ranks(split)
        seconds = time.perf_counter() - start
        self._deadline.evaluated(len(self._dataset.split(split)), seconds)
        seconds += self.state.seconds_evaluating
        self.state.seconds_evaluating = self._placement.agreed(False, seconds)[1]
        return ranks

    def _ranks(self, split: str, *most: int) -> RankResult:
        self.read_losses()
        self._optimizer.spares.clear()  # frees memory for the evaluation
        with self._divergence(f"ranks of {split}"):
            batch_size = self._config.data.test_bs
            return self._placement.ranks(self._model, self._dataset, split, batch_size, *most)

    def _metrics_of(self, ranks: RankResult) -> tuple[Metrics, dict[str, Metrics]]:
        if isinstance(ranks, Ranks):
            return ranks.metrics(hits=self._hits), {}
        submodels = {str(dim): it.metrics(hits=self._hits) for dim, it in ranks.items()}
        return submodels[str(max(ranks))], submodels

    def _validate(self, *, due: bool) -> None:
        """Evaluate on valid, log the metrics, save the best state, update schedule and patience.

        An evaluation that is not ``due``, made because time is up, changes neither of the two: the
        steps to come are those of a run that had the time.
        """
        ranks, state, train = self._ranked("valid"), self.state, self._config.train
        metrics, submodels = self._metrics_of(ranks)
        for dim, row in submodels.items() or [(None, metrics)]:
            of_dim = {} if dim is None else {"dim": int(dim)}
            self._log({"split": "valid", **of_dim, **row})
        self._bar.evaluated(state.step, metrics, submodels)
        metric, sched, stop = train.save_best_metric, self._config.sched, train.early_stopping
        value = metrics[metric]
        if gain(metric, value, state.best) > 0:
            state.best, state.best_step = value, state.step
            state.valid, state.valid_of_submodels = metrics, submodels
            if self._folder is not None:
                self._save_as("model", self._folder.save_best)
        if not due:
            return
        if sched.name == "plateau":
            state.reductions += state.plateau.exhausted_by(value, metric, sched.patience)
        if stop is not None:
            if stop.side is not None:
                whole = ranks if isinstance(ranks, Ranks) else ranks[max(ranks)]
                value = whole.side(stop.side).metrics(hits=self._hits)[metric]
            state.stopped_early = state.stopping.exhausted_by(
                value, metric, stop.patience, stop.min_delta
            )

    def _check_time(self, is_up: Callable[[float], bool]) -> None:
        """Note whether time is up by the clock of process 0."""
        deadline, state = self._deadline, self.state
        if not deadline.is_set or self._is_out_of_time:
            return
        if deadline.saving is None:
            tensors = self._resumable.tensors("state").values() if self._folder is not None else ()
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
        deadline, agreed = self._deadline, self._placement.agreed
        split, total = max(deadline.splits, key=lambda it: it[1], default=("valid", 0))
        spent = self.state.seconds_training + self.state.seconds_evaluating
        timed: list[tuple[int, float]] = []
        deadline.triple = 0.0
        self.read_losses()
        self._bar.say("timing the ranking of a few triples, for the limit of minutes")
        for count in sorted({min(it, total) for it in PARTS} - {0}):
            start = time.perf_counter()
            self._ranks(split, count)
            seconds = agreed(False, time.perf_counter() - start)[1]
            deadline.timed(timed := [*timed, (count, seconds)])
            is_late = agreed(False, float(deadline.is_up(spent)))[1]
            if is_late or seconds >= 4 * timed[0][1]:
                break

    # Checkpoints.

    def _save(self) -> None:
        """Save the newest state, timed, if there is a folder; else check the tables at the end."""
        folder, keep = self._folder, self._config.train.keep
        if folder is not None:
            self._deadline.saving = self._write("state", lambda it: folder.save_last(it, keep))
        elif self.is_over():
            self._check_tables()

    def _write(self, kind: Kind, write: Callable[[Stored], None]) -> float:
        """Write a checkpoint unless a table is not finite; return the seconds of writing."""
        self._check_tables()
        start = time.perf_counter()
        self._save_as(kind, write)
        return time.perf_counter() - start

    def _check_tables(self) -> None:
        self.read_losses()
        if first_bad_row(self._model) is not None:
            raise self._diverged(self.state.step, "the loss will not be finite")

    def _save_as(self, kind: Kind, write: Callable[[Stored], None]) -> None:
        """Write a checkpoint: the rows of shards by all processes, then the head by process 0."""
        assert self._folder is not None
        placement, path = self._placement, self._folder.path
        stored = self._resumable.stored(kind, self.state)
        if placement.fresh.step > 1:
            shards, rows = ShardFiles.apart(kind, stored, placement.size, placement.num_entities)
            placement.together(lambda: shards.save_rows(path, placement.rank, rows))
        if placement.leads:
            write(stored)

    def load_best(self) -> int:
        """Give the model the best state of the folder, if there is one; return the step."""
        if self._folder is None or not self.state.best_step:
            return self.state.step
        self._placement.together(lambda: None)  # process 0 may still be writing
        tensors, meta = self._folder.load_best()
        self._model.load_state_dict(of_part("model", tensors))
        return int(meta["step"])

    def _changes_length(self, before: Mapping[str, Any]) -> bool:
        """Return whether the run had another length at the checkpoint; refuse made steps."""
        train, name, made = self._config.train, self._config.sched.name, self.state.step
        if (before["epochs"], before["steps"]) == (train.epochs, train.steps):
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


def _check_sizes(model: Model, dataset: Dataset, placement: Placement) -> None:
    """Raise a ValueError unless a model has a row for each name of a dataset."""
    for what in ("entities", "relations"):
        rows, names = (getattr(holder, f"num_{what}") for holder in (model, dataset))
        expected = placement.num_held(names) if what == "entities" else names
        if rows != expected:
            raise ValueError(f"the model has {rows:,} {what}, dataset {dataset.name} {names:,}")


def _is_due(step: int, every: int) -> bool:
    """Return whether a step is a multiple of ``every``; 0: never."""
    return bool(every) and step % every == 0

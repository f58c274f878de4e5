"""The loop of a run: steps with logs, evaluations and checkpoints between them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

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
from kgfast.processes.assignment import ALONE, Assignment
from kgfast.progress import RunBar
from kgfast.rng import Stream, mix
from kgfast.training.build import room_of
from kgfast.training.callbacks import Callback
from kgfast.training.checkpoint import Stored, blocks, has_entities, in_order, of_part
from kgfast.training.config import Config, is_own
from kgfast.training.data import Batch, BatchesAhead, asked_of
from kgfast.training.divergence import describe, first_bad_row
from kgfast.training.logs import Logs, Row
from kgfast.training.objective import Objective
from kgfast.training.optimizer import Optimizer
from kgfast.training.run_folder import RunFolder, RunGraph
from kgfast.training.schedule import rate
from kgfast.training.state import Resumable, State, gain

Metrics = dict[str, float]


class Run:
    """Run of a trainer, as :meth:`kgfast.training.Trainer.opened` yields it.

    ``assignment`` divides the run among processes. ``folder`` takes logs and checkpoints; without
    one nothing is written. ``graph`` is what the folder stores of the dataset.

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
    the log, and before the model is evaluated or saved. Steps still wait for other processes.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: Model,
        assignment: Assignment = ALONE,
        *,
        folder: RunFolder | None = None,
        graph: RunGraph | None = None,
        resume: bool = False,
        progress: bool = False,
    ) -> None:
        self._config, self._dataset, self._model = config, dataset, model
        self._assignment, self._folder, self.graph = assignment, folder, graph
        self._shows_progress = progress and assignment.leads
        self._callbacks: list[Callback] = []
        self._logs: Logs | None = None
        self._unread: tuple[Tensor, int] | None = None  # sum on the device, and its first step
        _check_sizes(model, dataset, assignment)
        train, metric, device = config.train, config.train.save_best_metric, model.entity.device
        more = [int(metric.removeprefix("hits@"))] if metric.startswith("hits@") else []
        self._hits = sorted({*HITS, *more})
        hrt = as_triples_tensor(
            dataset.train, num_entities=dataset.num_entities, num_relations=dataset.num_relations
        ).cpu()
        triples, sides = asked_of(hrt, model.num_relations, model.has_inverses)
        self._objective = Objective(config, triples, dataset.num_entities, sides)
        self._per_epoch = self._objective.batches.per_epoch
        self.steps = train.steps or (train.epochs or 0) * self._per_epoch
        self._random_layers = model.random_layers()
        self._generator = torch.Generator(device) if self._random_layers else None
        self._runs_own_code = is_own(config.model.name) or is_own(config.loss.name)
        self._is_deferred = get_backend(backend_for(device)).defers_checks
        self._ahead = BatchesAhead(self._objective.batch, device) if self._is_deferred else None
        is_lazy = self._objective.lazy
        self._optimizer = Optimizer(
            model, config.optim, lazy=is_lazy, assignment=assignment, room=room_of(config)
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
        stored = folder.load_last() if folder is not None and resume else None
        self.resumed = stored is not None
        self.state = State()
        if folder is not None and stored is not None:
            self.state = self._resumable.load(stored, folder.last)
        assignment.check_same({"the step that is resumed": self.state.step})
        is_other_length = stored is not None and self._changes_length(stored[1]["config"]["train"])
        self._bar = RunBar(self.steps, self.state.step, enabled=self._shows_progress)
        if folder is None:
            return
        if not self.resumed and folder.holds_a_run():
            raise ValueError(f"{folder.path} holds a run: resume that run, or use another folder")
        if assignment.leads:
            if not self.resumed and graph is not None:
                folder.write_graph(graph)
            if not self.resumed or is_other_length:
                folder.write_config(config)

    def train(self, callbacks: Sequence[Callback] = ()) -> None:
        """Make the steps that are left. Process 0 calls the callbacks."""
        state, train, folder = self.state, self._config.train, self._folder
        self._callbacks = list(callbacks) if self._assignment.leads else []
        self._model.train()
        self._bar = RunBar(self.steps, state.step, enabled=self._shows_progress)
        if not self.is_over():
            self._bar.say(self._heading())
        with closing(self), self._opened_logs():
            while not self.is_over():
                self.make_step()
                is_last = self.is_over()
                keeps = _is_due(state.step, train.keep_every)
                if is_last or keeps or _is_due(state.step, train.log_every):
                    self._bar.update(state.step, self._log_loss())
                is_due = _is_due(state.step, train.eval_every)
                evaluates = is_last or is_due
                if evaluates and len(self._dataset.valid):
                    self._validate(due=is_due)
                if keeps and folder is not None:
                    self._save(folder.save_model, of_model=True)
                saves = _is_due(state.step, train.save_every) if train.save_every else evaluates
                if self.is_over() or (folder is not None and saves):
                    self._save(None if folder is None else folder.save_last)

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
        state.seconds_training += time.perf_counter() - start
        state.seconds_cpu += time.process_time() - cpu

    def _step(self, step: int) -> float | Tensor:
        """Make one step of the optimizer; return the loss, a tensor where reading would wait."""
        model, optimizer, assignment = self._model, self._optimizer, self._assignment
        device, batch = model.entity.device, self._batch(step)
        losses = self._objective(model, batch, assignment)
        total: float | Tensor | None = None
        draws = self._generator is not None or self._runs_own_code
        with self._drawing(step) if draws else nullcontext():
            while True:
                with self._autocast(), assignment.sharing(device):
                    loss = next(losses, None)
                if loss is None:
                    break
                value = loss.detach()
                total = self._checked(value if total is None else total + value, step)
                loss.backward(optimizer.spares.constant(1.0, (), value.dtype, device))
                optimizer.collect(assignment.read_gradients())
        optimizer.step(step, self._rate(step))
        assert total is not None
        return total

    def _batch(self, number: int) -> Batch:
        if self._ahead is not None:
            return self._ahead.take(number)
        batch, device = self._objective.batch(number), self._model.entity.device
        return batch if device.type == "cpu" else batch.to(device)

    def _rate(self, step: int) -> float:
        config = self._config
        return rate(config.sched, config.optim.lr, step, self.steps)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._config.train.amp is None:
            return nullcontext()
        return torch.autocast(self._model.entity.device.type, dtype=torch.bfloat16)

    @contextmanager
    def _drawing(self, step: int) -> Iterator[None]:
        """Let layers draw from the run's generator, seeded by the step.

        A user's own code draws from the generator of torch, which is restored afterwards.
        """
        seed, device = mix(self._config.seed, step, Stream.DROPOUT), self._model.entity.device
        if self._generator is not None:
            self._generator.manual_seed(seed)
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
        if not isinstance(loss, Tensor):
            self.state.loss_sum += loss
            return
        if self._unread is None:
            before = loss.new_full((), self.state.loss_sum, dtype=torch.float64)
            self._unread = before, self.state.step
        self._unread[0].add_(loss)

    def read_losses(self) -> None:
        """Wait for the losses that are still on the device; raise unless all are finite."""
        if self._unread is None:
            return
        start = time.perf_counter()
        (on_device, first), self._unread = self._unread, None
        loss_sum = float(on_device)
        if not math.isfinite(loss_sum):
            raise self._diverged(first, f"the loss is {loss_sum}")
        self.state.loss_sum = loss_sum
        self.state.seconds_training += time.perf_counter() - start

    def close(self) -> None:
        """End the thread that makes batches, if there is one; later steps start another."""
        if self._ahead is not None:
            self._ahead.close()

    def is_over(self) -> bool:
        """Return whether the run has made all steps or stopped early."""
        return self.state.step >= self.steps or self.state.stopped_early

    # Logs and messages.

    @contextmanager
    def _opened_logs(self) -> Iterator[None]:
        if self._folder is None or not self._assignment.leads:
            yield
            return
        with Logs(self._folder.path, self.state.step or None) as self._logs:
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
        """Write a row, and give a copy to the callbacks."""
        state = self.state
        where = {
            "step": state.step,
            "epoch": round(state.step / self._per_epoch, 4),
            "time": round(state.seconds_training + state.seconds_evaluating, 3),
        }
        if self._logs is not None:
            self._logs.write(where | row)
        for callback in self._callbacks:
            (callback.on_evaluation if "split" in row else callback.on_step)(where | row)

    def _heading(self) -> str:
        """Say in a line what is trained, where, and from which step on."""
        data, model, count = self._dataset, self._model, self._assignment.size
        names = " of ".join(type(it).__name__ for it in model.modules() if isinstance(it, Model))
        words = [
            f"{names}, dim {model.dim}; {data.num_entities:,} entities, {data.num_relations:,} "
            f"relations, {len(data.train):,} triples; {self.steps:,} steps",
            f"{model.entity.device}" + (f" in each of {count} processes" if count > 1 else ""),
        ]
        words += [] if self._folder is None else [f"{self._folder.path}"]
        words += [f"resumed after step {self.state.step:,}"] if self.resumed else []
        return "; ".join(words)

    @contextmanager
    def _divergence(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:
            is_value = isinstance(error, ValueError) and first_bad_row(self._model) is not None
            if not (is_value or self._assignment.diverges(error)):
                raise
            why = f" ({error})" if isinstance(error, OutOfRangeError) else ""
            raise self._diverged(self.state.step, f"{what} cannot be computed{why}") from error

    def _diverged(self, step: int, what: str) -> FloatingPointError:
        """Make the error of the newest step, or of an earlier one from ``step`` on."""
        wrong = describe(self._model, self._dataset, self._assignment.entity_id)
        last = self.state.step - 1
        where = f"at step {step:,}" if step >= last else f"at a step from {step:,} to {last:,}"
        message = f"{what} {where}: {wrong}"
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
        if isinstance(ranks, Ranks):
            return ranks.metrics(hits=self._hits), {}
        submodels = {str(dim): it.metrics(hits=self._hits) for dim, it in ranks.items()}
        return submodels[str(max(ranks))], submodels

    def _validate(self, *, due: bool) -> None:
        """Evaluate on valid, log the metrics, save the best state, and update the patience.

        An evaluation that is not ``due``, at the end, leaves the patience of a longer run alone.
        """
        metrics, submodels = self.evaluated("valid")
        state, train = self.state, self._config.train
        for dim, row in submodels.items() or [(None, metrics)]:
            of_dim = {} if dim is None else {"dim": int(dim)}
            self._log({"split": "valid", **of_dim, **row})
        self._bar.evaluated(state.step, metrics, submodels)
        metric, stop = train.save_best_metric, train.early_stopping
        value = metrics[metric]
        if gain(metric, value, state.best) > 0:
            state.best, state.best_step = value, state.step
            state.valid, state.valid_of_submodels = metrics, submodels
            if self._folder is not None:
                self._write(self._folder.save_best, of_model=True)
        if due and stop is not None:
            state.stopped_early = state.stopping.exhausted_by(value, metric, stop.patience)

    # Checkpoints.

    def _save(self, write: Callable[[Stored], None] | None, *, of_model: bool = False) -> None:
        """Write a checkpoint, if there is a folder, unless a table is not finite."""
        self.read_losses()
        if first_bad_row(self._model) is not None:
            raise self._diverged(self.state.step, "the loss will not be finite")
        if write is not None:
            self._write(write, of_model=of_model)

    def _write(self, write: Callable[[Stored], None], *, of_model: bool) -> None:
        """Write a checkpoint by process 0, to which the others send the rows of their shards."""
        assignment = self._assignment
        tensors, meta = self._resumable.stored(self.state, of_model=of_model)
        names = filter(has_entities, tensors)
        of_entities = {name: assignment.joined(tensors[name]) for name in names}
        if assignment.leads:
            write(({**tensors, **of_entities}, meta))
        elif assignment.fresh.step > 1:
            for name in in_order(of_entities):
                for _ in blocks(of_entities[name]):
                    pass

    def load_best(self) -> int:
        """Give the model the best state of the folder, if there is one; return the step."""
        if self._folder is None or not self.state.best_step:
            return self.state.step
        self._assignment.together(lambda: None)  # process 0 may still be writing
        tensors, meta = self._folder.load_best()
        self._model.load_state_dict(of_part("model", tensors))
        return int(meta["step"])

    def _changes_length(self, before: Mapping[str, Any]) -> bool:
        """Return whether the run had another length at the checkpoint; refuse made steps."""
        train, made = self._config.train, self.state.step
        if (before["epochs"], before["steps"]) == (train.epochs, train.steps):
            return False
        if self.steps < made:
            key = "epochs" if train.epochs else "steps"
            raise ValueError(
                f"train.{key}: {self.steps:,} steps, but the run has made {made:,} already"
            )
        return True


def _check_sizes(model: Model, dataset: Dataset, assignment: Assignment) -> None:
    """Raise a ValueError unless a model has a row for each name of a dataset."""
    for what in ("entities", "relations"):
        rows, names = (getattr(holder, f"num_{what}") for holder in (model, dataset))
        expected = assignment.num_held(names) if what == "entities" else names
        if rows != expected:
            raise ValueError(f"the model has {rows:,} {what}, dataset {dataset.name} {names:,}")


def _is_due(step: int, every: int) -> bool:
    """Return whether a step is a multiple of ``every``; 0: never."""
    return bool(every) and step % every == 0

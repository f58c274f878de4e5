"""The trainer: training, evaluation and test of a config."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.identity import names_digest
from kgfast.environment import provenance
from kgfast.eval import Ranks
from kgfast.eval.metrics import table_of
from kgfast.processes.assignment import ALONE, Assignment
from kgfast.storage import digest
from kgfast.text import shown
from kgfast.training.build import build_model, device_of, follow, load_dataset, room_of
from kgfast.training.config import Config
from kgfast.training.logs import Callback
from kgfast.training.loop import Run
from kgfast.training.run_folder import RunFolder, check_same_graph
from kgfast.training.trackers import TRACKERS
from kgfast.whole_files import write_whole

# Keys that may differ between processes, although a resumed run may change more keys.
_OF_A_PROCESS = ("device", "threads", "dataset.root", "train.out_dir", "train.table_folder")


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a run.

    Attributes
    ----------
    steps, planned_steps, best_step : int
        Steps made, steps planned, and the step with the best metric on valid (0: no evaluation).
    valid, test : dict
        Filtered metrics of the best state, or without a run folder of the last state. Empty for an
        empty split. For croppable embeddings, metrics of the widest sub-model.
    valid_of_submodels, test_of_submodels : dict
        Metrics of each sub-model, by its width as a string; empty for other models.
    seconds_training, seconds_evaluating : float
        Wall-clock seconds, summed over all invocations of a resumed run.
    stopped_early : bool
    tested_step : int
        The step of the tested model.
    seconds_cpu : float
        CPU seconds of the training steps, of all threads of process 0; other programs on the
        machine change them less than ``seconds_training``.
    """

    steps: int
    planned_steps: int
    best_step: int
    valid: dict[str, float]
    test: dict[str, float]
    valid_of_submodels: dict[str, dict[str, float]]
    test_of_submodels: dict[str, dict[str, float]]
    seconds_training: float
    seconds_evaluating: float
    stopped_early: bool
    tested_step: int
    seconds_cpu: float

    def __repr__(self) -> str:
        steps = f"{self.steps:,} step{'' if self.steps == 1 else 's'}"
        if self.steps < self.planned_steps:
            steps += f" of {self.planned_steps:,} (stopped early)"
        best = f"best after {self.best_step:,}" if self.best_step else "none evaluated"
        head = (
            f"{steps} in {self.seconds_training:,.1f} s, {best}; "
            f"evaluations took {self.seconds_evaluating:,.1f} s"
        )
        both = {"valid": self.valid, "test": self.test}
        rows = {name: metrics for name, metrics in both.items() if metrics}
        if self.test:
            is_best = self.tested_step == self.best_step
            which = "best checkpoint on valid" if is_best else "last checkpoint"
            head += f"\ntest triples, filtered, by the {which}"
            head += f" (step {self.tested_step:,})"
        if self.test_of_submodels:
            rows = {f"test, {dim}": metrics for dim, metrics in self.test_of_submodels.items()}
        return f"{head}\n{table_of(rows)}" if rows else head


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
        self.device, self.assignment = _placed(config)
        assignment, room = self.assignment, room_of(config)
        self.folder = None if run_dir is None else RunFolder(run_dir)
        if self.folder is not None:
            self.folder.room = room
        with assignment.telling():
            for name in dict.fromkeys(config.train.track if assignment.leads else ()):
                if self.folder is None:
                    raise ValueError("train.track: a tracker needs a run folder; run_dir is None")
                self.callbacks.append(TRACKERS[name](self.folder, config))
            if room is not None and self.device.type != "cpu":
                raise ValueError(
                    f"train.table_folder: files are mapped into the memory of the CPU; device is "
                    f"{self.device}"
                )
            follow(config, trust=True)
            self.dataset = self._data() if dataset is None else dataset
            if assignment.size > 1:
                assignment.check_same(self._facts())
            data = self.dataset
            sizes = data.num_entities, data.num_relations, data.relations.num_times
            self.model = build_model(config, *sizes, room).to(self.device)

    def _data(self) -> Dataset:
        """Load the dataset of the config; if its folder is gone, the graph of the run folder."""
        try:
            return load_dataset(self.config)
        except FileNotFoundError:
            if self.folder is None or not self.folder.graph.exists():
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
            the graph of the run's beginning, in any order of names and lines. A finished run goes
            on if the config has more steps. Otherwise nothing is changed, and ``fit`` returns the
            stored result.

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
        with self.opened(resume) as run:
            result = self._result_of_before(run)
            if result is None:
                run.train(self.callbacks)
                result = self._finish(run)
            for callback in self.callbacks if self.assignment.leads else ():
                callback.on_end(result)
            return result

    @contextmanager
    def opened(self, resume: bool = False) -> Iterator[Run]:
        """Open the run for a caller that makes the steps; errors are those of :meth:`fit`.

        While the run is open, the folder is locked and torch has the config's number of threads.
        """
        folder = self.folder
        locks = folder is not None and self.assignment.leads
        lock = folder.locked() if folder is not None and locks else nullcontext()
        with self.assignment.telling(), lock, _threads(self.config.threads):
            if resume and folder is not None and folder.holds_a_run():
                graph = folder.load_graph()
                check_same_graph(graph, self.dataset)
                self.dataset = replace(graph, name=self.dataset.name)
            elif self.config.train.early_stopping is not None and not len(self.dataset.valid):
                raise ValueError(
                    "train.early_stopping: needs evaluations, but dataset "
                    f"{shown(self.dataset.name)} has no valid triples"
                )
            yield Run(
                self.config,
                self.dataset,
                self.model,
                self.assignment,
                folder=folder,
                resume=resume,
                progress=self.progress,
            )

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

    def _result_of_before(self, run: Run) -> Result | None:
        """Load the best model and the result of a finished run; return None if there is none."""
        if self.folder is None or not run.is_over():
            return None
        try:
            result = TypeAdapter(Result).validate_python(self.folder.read_result())
        except (FileNotFoundError, ValueError):
            return None
        if result.steps != run.state.step:  # the run was resumed, and then killed
            return None
        run.load_best()
        if self.progress and self.assignment.leads:
            print(f"{self.folder.path} was finished already, and stays unchanged", file=sys.stderr)
        return result

    def _finish(self, run: Run) -> Result:
        tested_step = run.load_best()
        test, test_of_submodels = run.evaluated("test")
        state = run.state.model_dump()
        result = Result(
            steps=state["step"],
            planned_steps=run.steps,
            test=test,
            test_of_submodels=test_of_submodels,
            tested_step=tested_step,
            **{field.name: state[field.name] for field in fields(Result) if field.name in state},
        )
        if self.folder is not None and self.assignment.leads:
            text = json.dumps(vars(result) | provenance(self.device), indent=2) + "\n"
            write_whole(self.folder.result, lambda fresh: fresh.write_text(text), lasting=True)
        return result


def _placed(config: Config) -> tuple[torch.device, Assignment]:
    """Return the device and the assignment of a config, for one process or for torchrun's."""
    if dist.is_available():
        from kgfast.processes.steps import num_processes

        if num_processes() > 1:
            from kgfast.processes.together import Together

            processes = Together(config.distributed.timeout)
            device = processes.together(lambda: device_of(config))
            processes.send_from(device)
            return device, processes
    return device_of(config), ALONE


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

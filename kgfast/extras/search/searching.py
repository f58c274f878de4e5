"""The search: trials one after the other, up to a number or a time.

A trial is a run of ``kgfast train``, whose evaluations on valid are reported to optuna.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import optuna
import torch
from optuna.trial import TrialState
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from kgfast.datasets import Dataset
from kgfast.locks import locked
from kgfast.text import escaped, shown
from kgfast.training import Callback, Config, Trainer, read_rows
from kgfast.training.config import MAY_CHANGE
from kgfast.whole_files import write_whole

_DONE, _STOPPED, _OPEN = "done", "stopped", "open"  # outcomes of trials
_REPEATS = "repeats trial"
_OUTCOME, _SECONDS = "outcome", "seconds"  # notes of kgfast on a trial
_REDUCTION = 3  # one of so many trials continues from a rung
_IDLE = 100  # trials without a step of training that end a search
_TRIES = 200  # tries of a value with values of other ranges, before the value is refused


def search(
    config: Config,
    folder: str | os.PathLike[str],
    *,
    dataset: Dataset | None = None,
    resume: bool = False,
    progress: bool = True,
) -> optuna.Study:
    """Try values of the keys with ranges in the config; rate trials by filtered MRR on valid.

    Every trial is a run of the config with other values and the config's seed. optuna's
    ``TPESampler`` (Bergstra et al. 2011) draws the values, and its ``SuccessiveHalvingPruner`` (Li
    et al. 2020, arXiv 1810.05934) ends trials early. The test set is not ranked. ``folder`` gets
    ``config.yaml``, optuna's ``trials.db``, ``best.yaml``, and a run folder per trial
    (docs/how-to/search.md).

    Parameters
    ----------
    config : Config
        Config with a section ``search``, and in it ``trials``, ``minutes`` or both.
    folder
        Folder of the search.
    dataset : Dataset, optional
        Default: the dataset of the config.
    resume : bool
        Continue the search in the folder, if there is one. Ended trials stay, and an interrupted
        trial continues. ``trials`` and ``minutes`` count from the first start. With an equal number
        of threads, trials are equal to those of an uninterrupted search.
    progress : bool
        Show progress on the error stream.

    Returns
    -------
    optuna.Study
        ``best_value`` is the MRR of the best trial that was trained to its end, ``best_params`` has
        its values, and ``trials`` all trials; :func:`rows_of` makes rows of them.

    Raises
    ------
    ValueError
        If the ranges do not fit the config, there is neither ``trials`` nor ``minutes``, or no
        validation triple; if the folder holds a search and ``resume`` is False, or a search of
        another config; if another process writes the folder.
    """
    space, path = Space(config), Path(folder)
    data = config.dataset.load() if dataset is None else dataset
    if not len(data.valid):
        raise ValueError(f"dataset {data.name} has no validation triples to compare by")
    with locked(path):
        study = _begun(config, space.settings.first_rung, path, resume)
        searching = _Searching(space, path, data, study, progress)
        if config.train.track:
            searching.say("train.track: trials are not sent to trackers")
        if study.trials:
            searching.say(f"{path}: resumed after {len(study.trials)} trials")
            searching.keep_best()
        with suppress(_TimeIsUp):  # the trial is open, and continues with more minutes
            while not searching.is_over():
                searching.try_next()
        return study


def load_search(folder: str | os.PathLike[str]) -> optuna.Study:
    """Load a search, which may be running.

    Raises
    ------
    FileNotFoundError
        If the folder holds no search.
    ValueError
        If its storage is damaged.
    """
    file = Path(folder) / "trials.db"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no search: trials.db is missing")
    return _study_in(file)


def rows_of(study: optuna.Study) -> list[dict[str, Any]]:
    """Return the trials of a search, those that were trained to their end first, the best first.

    A row has the ``number`` of the trial, its ``values`` by key, the filtered MRR on valid of each
    evaluation (``rungs``, by epochs, or steps where the config counts steps), the best or last
    ``mrr`` (None without an evaluation), the ``seconds`` of training and evaluations, and the
    ``outcome``: ``done``, ``stopped`` where others were better, ``open`` if the search ended
    before, else the reason.
    """
    rows = [
        {
            "number": trial.number,
            "values": trial.params,
            "rungs": trial.intermediate_values,
            "mrr": trial.value or next(reversed(trial.intermediate_values.values()), None),
            "seconds": trial.user_attrs.get(_SECONDS, 0.0),
            "outcome": trial.user_attrs.get(_OUTCOME, _OPEN),
        }
        for trial in study.trials
    ]

    def merit(row: dict[str, Any]) -> tuple[bool, int, float]:
        is_done = row["outcome"] == _DONE
        return is_done, 0 if is_done else max(row["rungs"], default=0), row["mrr"] or 0.0

    return sorted(rows, key=merit, reverse=True)


class Space:
    """The configs that trials may have."""

    def __init__(self, config: Config) -> None:
        if config.search is None:
            raise ValueError(
                "search.ranges is missing: give ranges of keys, such as search: "
                "{ranges: {optim.lr: {low: 1e-4, high: 1e-1, log: true}}}"
            )
        if config.search.trials is None and config.search.minutes is None:
            raise ValueError("search.minutes: set the minutes, or search.trials")
        self.settings, self.base = config.search, config.model_copy(update={"search": None})
        self._ranges, self._ends = config.search.ranges, {}
        for key in self._ranges:
            if key.partition(".")[0] in ("dataset", "search") or key in MAY_CHANGE:
                raise ValueError(f"search.ranges.{key}: must be equal in all trials")
            self._ends[key] = [self._checked(key, value) for value in self._values(key)]

    def draw(self, trial: Any) -> dict[str, Any]:
        """Draw a value for each key; a trial of optuna that has its values keeps them."""
        values = {}
        for key, ends in self._ends.items():
            if self._ranges[key].choices is not None:
                choices = {  # optuna takes neither lists nor objects
                    json.dumps(value) if isinstance(value, list | dict) else value: value
                    for value in ends
                }
                values[key] = choices[trial.suggest_categorical(key, list(choices))]
            else:
                are_whole = all(isinstance(end, int) for end in ends)
                suggest = trial.suggest_int if are_whole else trial.suggest_float
                values[key] = suggest(key, *ends, log=self._ranges[key].log)
        return values

    def _values(self, key: str) -> Sequence[Any]:
        values = self._ranges[key]
        return (values.low, values.high) if values.choices is None else values.choices

    def _checked(self, key: str, value: Any) -> Any:
        """Return a value in the type of a config: alone, or with values of other ranges."""
        generator, alone = Random(0), ""  # noqa: S311, a search is repeated by its seed
        others = [name for name in self._ranges if name != key]
        for _ in range(_TRIES if others else 1):
            drawn = {name: generator.choice(self._values(name)) for name in others if alone}
            try:
                typed = self.base.updated(drawn | {key: value}).flat().get(key, value)
                was_int = type(self.base.flat().get(key)) is int  # an option of one's own code
                is_whole = was_int and isinstance(typed, float) and typed.is_integer()
                return int(typed) if is_whole else typed
            except ValueError as error:
                alone = alone or str(error)
        raise ValueError(f"search.ranges.{key}: {shown(value)} cannot be: {alone}")


class _TimeIsUp(Exception):
    """End of the minutes of a search, within a trial."""


@dataclass
class _Searching(Callback):
    """Search in a folder: trains trials, and hands the evaluations of each to optuna."""

    space: Space
    path: Path
    dataset: Dataset
    study: optuna.Study
    shows_progress: bool

    def is_over(self) -> bool:
        most, ended = self.space.settings.trials, self._ended()
        if len(ended) >= _IDLE and not any(it.user_attrs.get(_SECONDS) for it in ended[-_IDLE:]):
            self.say(f"the last {_IDLE} trials had nothing new to train")
            return True
        return self._is_late(0.0) or (most is not None and len(ended) >= most)

    def try_next(self) -> None:
        """Train a new trial, or the interrupted one; an exception leaves the trial open."""
        trials = self.study.get_trials(deepcopy=False)
        if trials and not trials[-1].state.is_finished():
            trial = optuna.Trial(self.study, trials[-1]._trial_id)
        else:
            # A seed for each number: a search that was interrupted draws the same.
            seed = (self.space.base.seed * 1_000_003 + len(trials)) % 2**32
            self.study.sampler = optuna.samplers.TPESampler(seed=seed)
            trial = self.study.ask()
        outcome, mrr = self._trained(trial)
        trial.set_user_attr(_OUTCOME, outcome)
        # the sampler learns nothing of a failed trial
        failed = TrialState.FAIL if outcome.startswith(_REPEATS) else TrialState.PRUNED
        self.study.tell(trial, mrr, state=TrialState.COMPLETE if outcome == _DONE else failed)
        self.keep_best()
        shown = "" if mrr is None else f"  MRR {mrr:.4f}"
        values = "  ".join(f"{key} {value}" for key, value in trial.params.items())
        self.say(f"trial {trial.number}  {outcome}{shown}  {values}")

    def on_evaluation(self, row: dict[str, Any]) -> None:
        """Report an evaluation of the present trial; raise if the trial or the search ends."""
        trial, config = self._trial, self._of_trial
        unit, total = _length_of(config)
        if row.get("dim") != (None if config.med is None else max(config.med.dims)):
            return
        trial.set_user_attr(_SECONDS, row["time"])
        trials = self.study.get_trials(deepcopy=False)
        if int(row[unit]) not in trials[trial.number].intermediate_values:
            trial.report(row["mrr"], int(row[unit]))
        if row[unit] == total:
            return
        if trial.should_prune():
            raise optuna.TrialPruned
        if self._is_late(row["time"]):
            raise _TimeIsUp

    def _trained(self, trial: optuna.Trial) -> tuple[str, float | None]:
        """Train a trial; return the outcome, and the MRR if it was trained to its end."""
        values = self.space.draw(trial)
        for other in self.study.get_trials(deepcopy=False)[: trial.number]:
            if other.params == trial.params:
                return f"{_REPEATS} {other.number}", None
        path = self.path / "trials" / str(trial.number)
        progress = self.shows_progress and sys.stderr.isatty()
        try:
            try:
                config = self.space.base.updated(values | {"train.track": []})
                trainer = Trainer(config, path, dataset=self.dataset, progress=progress)
            except ValueError as error:
                return f"contradicts: {error}", None
            self._trial, self._of_trial = trial, config
            with trainer.opened(resume=True):  # without a test
                for row in read_rows(path):
                    if "split" in row and row["step"] <= trainer.state.step:
                        self.on_evaluation(row)  # a kill may have left it out
                try:
                    trainer.train([self])
                finally:
                    seconds = trainer.state.seconds_training + trainer.state.seconds_evaluating
                    trial.set_user_attr(_SECONDS, round(seconds, 3))
                trainer.finish(tests=False)
        except optuna.TrialPruned:
            return _STOPPED, None
        except FloatingPointError as error:
            return f"diverged: {error}", None
        except (MemoryError, torch.OutOfMemoryError) as error:
            return f"out of memory: {error}", None
        return _DONE, trainer.state.valid["mrr"]

    def _is_late(self, seconds: float) -> bool:
        """Return whether the search is out of time, ``seconds`` into the present trial."""
        minutes = self.space.settings.minutes
        before = sum(trial.user_attrs.get(_SECONDS, 0.0) for trial in self._ended())
        return minutes is not None and before + seconds >= 60 * minutes

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state.is_finished()]

    def keep_best(self) -> None:
        """Write the config of the best trial, and drop the checkpoints of others that ended."""
        is_done = any(trial.state is TrialState.COMPLETE for trial in self._ended())
        best = self.study.best_trial if is_done else None
        if best is not None:
            config = self.space.base.updated(self.space.draw(best))
            write_whole(self.path / "best.yaml", config.to_yaml, lasting=True)
        for trial in self._ended():
            if best is None or trial.number != best.number:
                for path in self.path.glob(f"trials/{trial.number}/*.safetensors"):
                    path.unlink()

    def say(self, line: str) -> None:
        if self.shows_progress:
            print(escaped(line), file=sys.stderr)


def _length_of(config: Config) -> tuple[str, int]:
    """Return the unit of a run's length, and the length."""
    if config.train.epochs:
        return "epoch", config.train.epochs
    return "step", config.train.steps or 1


def _begun(config: Config, first_rung: int | None, path: Path, resume: bool) -> optuna.Study:
    """Begin the study of a folder, or continue it; refuse a folder that holds another search."""
    file = path / "trials.db"
    if file.exists():
        if not resume:
            raise ValueError(
                f"{path} holds a search: continue with --resume, or name another folder"
            )
        before, now = Config.from_yaml(path / "config.yaml").flat(), config.flat()
        changed = [
            f"{key} was {before.get(key)}, is {now.get(key)}"
            for key in before | now
            if before.get(key) != now.get(key) and key not in MAY_CHANGE
        ]
        if changed:
            raise ValueError(f"the search was started with another config: {', '.join(changed)}")
    write_whole(path / "config.yaml", config.to_yaml, lasting=True)
    rung = first_rung or max(1, _length_of(config)[1] // _REDUCTION**2)
    study = _study_in(file)
    study.pruner = optuna.pruners.SuccessiveHalvingPruner(rung, _REDUCTION)
    return study


def _study_in(file: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options: Any = {"study_name": "kgfast", "direction": "maximize", "load_if_exists": True}
    try:
        storage = URL.create("sqlite", database=str(file))  # a path may contain "?"
        return optuna.create_study(storage=storage.render_as_string(), **options)
    except (RuntimeError, SQLAlchemyError) as error:
        raise ValueError(f"{file}: damaged: not the storage of a search") from error

"""The search: trials one after the other, up to a number or a time.

A trial is a run of ``kgfast train``, whose evaluations on valid are reported to optuna.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from kgfast.datasets import Dataset
from kgfast.extras.search.space import Space
from kgfast.locks import locked
from kgfast.text import escaped
from kgfast.training import Callback, Config, RunFolder, Trainer, load_dataset
from kgfast.training.config import may_change
from kgfast.whole_files import write_durably

_DONE, _STOPPED, _OPEN = "done", "stopped", "open"  # outcomes of trials
_OUTCOME, _SECONDS = "outcome", "seconds"  # notes of kgfast on a trial


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
    ``TPESampler`` (Bergstra et al. 2011) draws the values. Its ``SuccessiveHalvingPruner`` (Li et
    al. 2020, arXiv 1810.05934) compares trials at their evaluations, first after
    ``search.first_rung`` epochs, then after ``search.reduction`` times as many each, and continues
    the best ``1 / reduction``. The test set is not ranked.

    ``folder`` gets ``config.yaml``, optuna's storage ``trials.db``, ``best.yaml`` (the config of
    the best trial), and a run folder ``trials/<number>`` per trial. Ended trials keep config and
    log; the best trial also keeps checkpoints.

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
        If the ranges do not fit the config (see :class:`~kgfast.extras.search.space.Space`), there
        is neither ``trials`` nor ``minutes``, or no validation triple; if the folder holds a search
        and ``resume`` is False, or a search of another config; if another process writes the
        folder.
    KeyboardInterrupt
        On Ctrl-C, when the current step is done and saved.
    """
    _check(config)
    space, path = Space(config), Path(folder)
    data = load_dataset(config) if dataset is None else dataset
    if not len(data.valid):
        raise ValueError(f"dataset {data.name} has no validation triples to compare by")
    path.mkdir(parents=True, exist_ok=True)
    with locked(path), _quiet():
        study = _begun(config, path, resume)
        searching = _Searching(config, space, path, data, study, progress)
        if study.trials:
            searching.say(f"{path}: resumed after {len(study.trials)} trials")
        try:
            while not searching.is_over():
                searching.try_next()
        except KeyboardInterrupt:
            file = path / "config.yaml"
            again = f"continue with: kgfast search --config {file} --run {path} --resume"
            print(f"interrupted; {again}", file=sys.stderr)
            raise
        except _TimeIsUp:
            pass  # the trial is open, and continues with more minutes
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
            "mrr": next(reversed(trial.intermediate_values.values()), None)
            if trial.value is None
            else trial.value,
            "seconds": trial.user_attrs.get(_SECONDS, 0.0),
            "outcome": trial.user_attrs.get(_OUTCOME, _OPEN),
        }
        for trial in study.trials
    ]

    def merit(row: dict[str, Any]) -> tuple[bool, int, float]:
        is_done = row["outcome"] == _DONE
        return is_done, 0 if is_done else max(row["rungs"], default=0), row["mrr"] or 0.0

    return sorted(rows, key=merit, reverse=True)


class _TimeIsUp(Exception):
    """End of the minutes of a search, within a trial."""


@dataclass
class _Searching:
    """Search in a folder."""

    config: Config
    space: Space
    path: Path
    dataset: Dataset
    study: optuna.Study
    progress: bool

    def is_over(self) -> bool:
        assert self.config.search is not None
        ended, most = self._ended(), self.config.search.trials
        return self.is_late(0.0) or (most is not None and len(ended) >= most)

    def is_late(self, seconds: float) -> bool:
        """Return whether time is up after so many seconds of the present trial."""
        assert self.config.search is not None
        before = sum(trial.user_attrs.get(_SECONDS, 0.0) for trial in self._ended())
        minutes = self.config.search.minutes
        return minutes is not None and before + seconds >= 60 * minutes

    def try_next(self) -> None:
        """Train a new trial, or the interrupted one; an exception leaves the trial open."""
        trial = self._next()
        state, ended, mrr = self._trained(trial)
        trial.set_user_attr(_OUTCOME, ended)
        self.study.tell(trial, mrr, state=state)
        self._keep_best()
        shown = "" if mrr is None else f"  MRR {mrr:.4f}"
        values = "  ".join(f"{key} {value}" for key, value in trial.params.items())
        self.say(f"trial {trial.number}  {ended}{shown}  {values}")

    def say(self, line: str) -> None:
        if self.progress:
            print(escaped(line), file=sys.stderr)

    def _next(self) -> optuna.Trial:
        trials = self.study.get_trials(deepcopy=False)
        if trials and not trials[-1].state.is_finished():
            return optuna.Trial(self.study, trials[-1]._trial_id)
        # The seed is that of the trial's number, so a search that was interrupted draws the same.
        seed = (self.config.seed * 1_000_003 + len(trials)) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)
        return self.study.ask()

    def _trained(self, trial: optuna.Trial) -> tuple[TrialState, str, float | None]:
        """Train a trial; return how it ended, and the MRR if it was trained to its end."""
        values = self.space.draw(trial)
        for other in self.study.get_trials(deepcopy=False)[: trial.number]:
            if other.params == trial.params:  # the sampler learns nothing of a failed trial
                return TrialState.FAIL, f"repeats trial {other.number}", None
        try:
            config = self.space.config_of(values | {"dataset.test_on": "valid"})
        except ValueError as error:
            return TrialState.PRUNED, f"contradicts: {error}", None
        reports = _Reports(trial, config, self.is_late)
        trainer = Trainer(
            config,
            self._run(trial.number).path,
            dataset=self.dataset,
            progress=self.progress and sys.stderr.isatty(),
            callbacks=[reports],
        )
        try:
            result = trainer.fit(resume=True)
        except optuna.TrialPruned:
            return TrialState.PRUNED, _STOPPED, None
        except FloatingPointError as error:
            return TrialState.PRUNED, f"diverged: {error}", None
        except (MemoryError, torch.OutOfMemoryError) as error:
            return TrialState.PRUNED, f"out of memory: {error}", None
        finally:
            trial.set_user_attr(_SECONDS, reports.seconds)
        return TrialState.COMPLETE, _DONE, result.valid["mrr"]

    def _ended(self) -> list[optuna.trial.FrozenTrial]:
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state.is_finished()]

    def _run(self, number: int) -> RunFolder:
        return RunFolder(self.path / "trials" / str(number))

    def _keep_best(self) -> None:
        """Write the config of the best trial, and drop the checkpoints of others that ended."""
        ended = self._ended()
        done = [trial for trial in ended if trial.state is TrialState.COMPLETE]
        best = self.study.best_trial if done else None
        for trial in ended:
            if best is None or trial.number != best.number:
                self._run(trial.number).drop_states()
        if best is not None:
            config = self.space.config_of(self.space.draw(best))
            write_durably(self.path / "best.yaml", config.to_yaml, "the best config")


class _Reports(Callback):
    """Evaluations of a run, reported to optuna, which may stop the trial."""

    def __init__(
        self, trial: optuna.Trial, config: Config, is_late: Callable[[float], bool]
    ) -> None:
        self._trial, self._is_late = trial, is_late
        self._unit, self._total = _length_of(config)
        self._width = None if config.med is None else max(config.med.dims)
        self.seconds = float(trial.user_attrs.get(_SECONDS, 0.0))

    def on_evaluation(self, row: dict[str, Any]) -> None:
        self.seconds, reached = row["time"], int(row[self._unit])
        if row.get("dim") != self._width:
            return
        self._trial.set_user_attr(_SECONDS, self.seconds)
        trials = self._trial.study.get_trials(deepcopy=False)
        if reached not in trials[self._trial.number].intermediate_values:
            self._trial.report(row["mrr"], reached)
        if reached == self._total:
            return
        if self._trial.should_prune():
            raise optuna.TrialPruned
        if self._is_late(self.seconds):
            raise _TimeIsUp


def _check(config: Config) -> None:
    """Raise ValueError unless the section ``search`` of a config is complete."""
    if config.search is None:
        raise ValueError(
            "search.ranges is missing: give ranges of keys, such as search: "
            "{ranges: {optim.lr: {low: 1e-4, high: 1e-1, log: true}}}"
        )
    if config.search.trials is None and config.search.minutes is None:
        raise ValueError(
            "search.minutes: set the minutes, or set search.trials to a number of trials"
        )


def _length_of(config: Config) -> tuple[str, int]:
    """Return the unit of a run's length, and the length."""
    if config.train.epochs:
        return "epoch", config.train.epochs
    return "step", config.train.steps or 1


def _begun(config: Config, path: Path, resume: bool) -> optuna.Study:
    """Begin the study of a folder, or continue it; refuse a folder that holds another search."""
    file, section = path / "trials.db", config.search
    assert section is not None
    if file.exists():
        if not resume:
            raise ValueError(
                f"{path} holds a search: continue with --resume, or name another folder"
            )
        before, now = Config.from_yaml(path / "config.yaml").flat(), config.flat()
        changed = [
            f"{key} was {before.get(key)}, is {now.get(key)}"
            for key in before | now
            if before.get(key) != now.get(key) and not may_change(key)
        ]
        if changed:
            raise ValueError(f"the search was started with another config: {', '.join(changed)}")
    elif (path / "trials").exists():
        raise ValueError(f"{path} holds trials without trials.db: name another folder")
    write_durably(path / "config.yaml", config.to_yaml, "the config")
    rung = section.first_rung or max(1, _length_of(config)[1] // section.reduction**2)
    study = _study_in(file)
    study.pruner = optuna.pruners.SuccessiveHalvingPruner(rung, section.reduction)
    return study


def _study_in(file: Path) -> optuna.Study:
    with _quiet():
        try:
            return optuna.create_study(
                storage=f"sqlite:///{file}",
                study_name="kgfast",
                direction="maximize",
                load_if_exists=True,
            )
        except (RuntimeError, SQLAlchemyError) as error:
            raise ValueError(f"{file}: damaged: not the storage of a search") from error


@contextmanager
def _quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)

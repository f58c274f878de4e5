"""The search: trials one after the other, up to a number or a time."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kgfast.datasets import Dataset
from kgfast.extras.search.progress import Shown
from kgfast.extras.search.space import Space
from kgfast.extras.search.study import Study, read
from kgfast.extras.search.trial import Course, train_trial
from kgfast.extras.search.trials import Outcome, Trials
from kgfast.locks import locked
from kgfast.training import Config, RunFolder, Trainer, load_dataset
from kgfast.training.config import SearchConfig, may_change
from kgfast.whole_files import write_durably

_FRUITLESS = 50  # trials in a row that saw no rung


def search(
    config: Config,
    folder: str | os.PathLike[str],
    *,
    dataset: Dataset | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Trials:
    """Try values of the keys with ranges in the config; rate trials by filtered MRR on valid.

    Every trial is a run of the config with other values and the config's seed. Rungs stand after
    ``search.first_rung`` epochs, and after ``search.reduction`` times as many each. A trial
    continues past a rung if it is among the best ``1 / reduction`` of the trials that reached the
    rung (asynchronous successive halving: Li et al. 2020, arXiv 1810.05934, by optuna's
    ``SuccessiveHalvingPruner``). optuna's ``TPESampler`` (Bergstra et al. 2011) draws the values.
    The test set is not ranked.

    ``folder`` gets ``config.yaml``, the journal ``trials.log``, ``best.yaml`` (the config of the
    best trial), and a run folder ``trials/<number>`` per trial. Ended trials keep config and log;
    the best trial also keeps checkpoints.

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
    Trials

    Raises
    ------
    ValueError
        If the ranges do not fit the config (see :class:`~kgfast.extras.search.space.Space`), there
        is neither ``trials`` nor ``minutes``, or no validation triple; if the folder holds a search
        and ``resume`` is False, or a search of another config; if another process writes the
        folder; if many trials in a row diverge or contradict.
    ImportError
        If optuna is not installed.
    KeyboardInterrupt
        On Ctrl-C, when the current step is done and saved.
    """
    with ExitStack() as stack:
        found = _Searching(config, Path(folder))
        found.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(found.path))
        found.begin(resume, load_dataset(config) if dataset is None else dataset)
        shown = stack.enter_context(Shown(enabled=progress))
        try:
            return found.go_on(shown)
        except KeyboardInterrupt:
            print(f"interrupted; {_how_to_go_on(found.path)}", file=sys.stderr)
            raise


def read_trials(folder: str | os.PathLike[str]) -> Trials:
    """Read the trials of a search, which may be running.

    Raises
    ------
    FileNotFoundError
        If the folder holds no search.
    ValueError
        If the config cannot be read.
    """
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise FileNotFoundError(f"{path} holds no search: config.yaml is missing")
    return read(path / "trials.log", _unit(Config.from_yaml(path / "config.yaml")))


class _Searching:
    """Search in a folder."""

    def __init__(self, config: Config, path: Path) -> None:
        self._section = _section(config)
        self._space = Space(config)
        self._config, self.path = config, path
        total = config.train.epochs or config.train.steps or 1
        reduction = self._section.reduction
        self._first_rung = self._section.first_rung or max(1, total // reduction**2)

    def begin(self, resume: bool, dataset: Dataset) -> None:
        """Open the study; refuse a folder that holds another search."""
        if not len(dataset.valid):
            raise ValueError(f"dataset {dataset.name} has no validation triples to compare by")
        self._dataset = dataset
        file, journal = self.path / "config.yaml", self.path / "trials.log"
        if journal.exists():
            if not resume:
                raise ValueError(
                    f"{self.path} holds a search: continue with --resume, or name another folder"
                )
            _check_same(Config.from_yaml(file), self._config)
        write_durably(file, self._config.to_yaml, "the config")
        self._study = Study(
            journal,
            first_rung=self._first_rung,
            reduction=self._section.reduction,
            seed=self._config.seed,
        )

    def go_on(self, shown: Shown) -> Trials:
        """Try until the end."""
        before = self._trials()
        if before.all:
            shown.say(f"{self.path}: resumed after {before.summary()}")
        began = time.monotonic() - before.seconds
        self._elapsed: Callable[[], float] = lambda: time.monotonic() - began
        while not self._is_over():
            drawn = self._study.next(self._space.distributions)
            if drawn is None:
                shown.say("no values are left that are new")
                break
            self._study.begin(drawn, self._space.values_of(drawn.params))
            self._try(drawn, shown)
            trials = self._trials()
            self._keep_best(trials)
            shown.ended(trials, trials.all[-1])
            self._check_fruit(trials)
        return self._trials()

    def _trials(self) -> Trials:
        return Trials(self._study.trials(), _unit(self._config))

    def _is_over(self) -> bool:
        most = self._section.trials
        return self._is_late() or (most is not None and len(self._trials().ended) >= most)

    def _is_late(self) -> bool:
        minutes = self._section.minutes
        return minutes is not None and self._elapsed() >= 60 * minutes

    def _share(self, part: float) -> float:
        """Return the finished share of the search when ``part`` of the present trial is done."""
        shares = [0.0]
        if self._section.trials is not None:
            shares.append((self._ended + part) / self._section.trials)
        if self._section.minutes is not None:
            shares.append(self._elapsed() / (60 * self._section.minutes))
        return min(1.0, max(shares))

    def _try(self, drawn: Any, shown: Shown) -> None:
        self._ended = len(self._trials().ended)
        try:
            config = self._space.config_of(self._space.values_of(drawn.params))
        except ValueError as error:
            self._study.end(drawn, Outcome.contradicts, message=str(error))
            return
        trainer = Trainer(
            config, self._folder(drawn.number).path, dataset=self._dataset, progress=False
        )
        course = Course(self._study, drawn, self._is_late)
        course.on_step = lambda run: shown.at(
            self._share(run.state.step / run.steps), drawn.number, run.state.step, run.steps
        )
        try:
            end = train_trial(trainer, course, self._first_rung, self._section.reduction)
        finally:
            self._study.spent(drawn, course.seconds)
        if end.mrr is not None:
            course.at_end(end.reached, end.mrr)
        if end.outcome is not Outcome.open:
            self._study.end(drawn, end.outcome, end.mrr, end.message)

    def _folder(self, number: int) -> RunFolder:
        return RunFolder(self.path / "trials" / str(number))

    def _keep_best(self, trials: Trials) -> None:
        best = trials.best
        if best is not None:
            config = self._space.config_of(best.values)
            text = f"# Trial {best.number}: MRR {best.mrr:.4f} on valid, of {trials.summary()}.\n"

            def write(path: Path) -> None:
                config.to_yaml(path)
                path.write_text(text + path.read_text())

            write_durably(self.path / "best.yaml", write, "the best config")
        for trial in trials.ended:
            if best is None or trial.number != best.number:
                self._folder(trial.number).drop_states()

    def _check_fruit(self, trials: Trials) -> None:
        last = trials.ended[-_FRUITLESS:]
        if len(last) == _FRUITLESS and all(trial.mrr is None for trial in last):
            raise ValueError(
                f"the last {_FRUITLESS} trials came to nothing; the last one: "
                f"{last[-1].outcome.value}: {last[-1].message}"
            )


def _section(config: Config) -> SearchConfig:
    """Return the section ``search`` of a config; raise ValueError if it is incomplete."""
    if config.search is None:
        raise ValueError(
            "search.ranges is missing: give ranges of keys, such as search: "
            "{ranges: {optim.lr: {low: 1e-4, high: 1e-1, log: true}}}"
        )
    if config.search.trials is None and config.search.minutes is None:
        raise ValueError(
            "search.minutes: set the minutes, or set search.trials to a number of trials"
        )
    return config.search


def _unit(config: Config) -> str:
    return "epochs" if config.train.epochs else "steps"


def _check_same(begun: Config, config: Config) -> None:
    changed = begun.training_differences(config)
    old, new = (
        {f"search.{key}": value for key, value in vars(_section(it)).items()}
        | {"train.epochs": it.train.epochs, "train.steps": it.train.steps}
        for it in (begun, config)
    )
    changed |= {
        key: (old[key], new[key]) for key in old if not may_change(key) and old[key] != new[key]
    }
    if changed:
        raise ValueError(
            "the search was started with another config: "
            + ", ".join(f"{key} was {was}, is {now}" for key, (was, now) in changed.items())
        )


def _how_to_go_on(path: Path) -> str:
    return f"continue with: kgfast search --config {path / 'config.yaml'} --run {path} --resume"

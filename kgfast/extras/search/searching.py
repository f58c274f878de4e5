"""The search: trials one after the other, until their number or their time is up."""

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
from kgfast.extras.search.trial import train_trial
from kgfast.extras.search.trials import Outcome, Trials
from kgfast.locks import locked
from kgfast.training import Config, Run, RunFolder, Trainer, load_dataset
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
    """Try values of the keys that the config has ranges for; the best by filtered MRR on valid.

    Every trial is a run of the config with values of its own and the config's seed. At rungs, after
    ``search.first_rung`` epochs and ``search.reduction`` times as many each, it goes on if it is
    among the best ``1 / reduction`` of those that came there (asynchronous successive halving: Li
    et al. 2020, arXiv 1810.05934, by optuna's ``SuccessiveHalvingPruner``). Values are drawn by
    optuna's ``TPESampler`` (Bergstra et al. 2011). The test set is not ranked.

    ``folder`` gets ``config.yaml``, the journal ``trials.log``, ``best.yaml``, which is the config
    of the best trial, and a run folder ``trials/<number>`` of each. Those of trials that ended keep
    their config and log; that of the best its checkpoints too.

    Parameters
    ----------
    config : Config
        With a section ``search``, and there ``trials``, ``minutes`` or both.
    folder
        Of the search.
    dataset : Dataset, optional
        That of the config by default.
    resume : bool
        Go on with the search of the folder, if it holds one: trials that ended are kept, one that
        was cut off is gone on with. ``trials`` and ``minutes`` count from the first start. With the
        same number of threads the trials are those of a search that was never cut off.
    progress : bool
        Show it on the error stream.

    Returns
    -------
    Trials

    Raises
    ------
    ValueError
        If the ranges do not fit the config
        (see :class:`~kgfast.extras.search.space.Space`), there is neither ``trials`` nor
        ``minutes``, or no validation triple; if the folder holds a search and ``resume`` is False,
        or one of another config, or another process writes it; if trials diverge or contradict
        again and again.
    ImportError
        If optuna is not installed.
    KeyboardInterrupt
        On Ctrl-C, when the step that it fell into is done and saved.
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
    """The trials of a search, which may be running.

    Raises
    ------
    FileNotFoundError
        If the folder holds none.
    ValueError
        If its config cannot be read.
    """
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise FileNotFoundError(f"{path} holds no search: config.yaml is missing")
    return read(path / "trials.log", _unit(Config.from_yaml(path / "config.yaml")))


class _Searching:
    """A search in its folder; the course of one trial after the other."""

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
                    f"{self.path} holds a search: go on with --resume, or name another folder"
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
        began = time.monotonic() - self._trials().seconds
        self._elapsed: Callable[[], float] = lambda: time.monotonic() - began
        while not self._is_over():
            drawn = self._study.next(self._space.distributions)
            if drawn is None:
                shown.say("no values are left that no trial had")
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
        """Of the search that is done, if the present trial is done by a part."""
        shares = [0.0]
        if self._section.trials is not None:
            shares.append((self._ended + part) / self._section.trials)
        if self._section.minutes is not None:
            shares.append(self._elapsed() / (60 * self._section.minutes))
        return min(1.0, max(shares))

    def _try(self, drawn: Any, shown: Shown) -> None:
        """Train a trial, and note what came of it."""
        self._ended = len(self._trials().ended)
        try:
            config = self._space.config_of(self._space.values_of(drawn.params))
        except ValueError as error:
            self._study.end(drawn, Outcome.contradicts, message=str(error))
            return
        trainer = Trainer(
            config, self._folder(drawn.number).path, dataset=self._dataset, progress=False
        )
        course = _Course(self._study, drawn, self._is_late)
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
        """Write the config of the best trial, and drop the checkpoints of the others that ended."""
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
                f"the last {_FRUITLESS} trials came to nothing; the last of them: "
                f"{last[-1].outcome.value}: {last[-1].message}"
            )


class _Course:
    """What a trial asks of its search."""

    def __init__(self, study: Study, drawn: Any, is_late: Callable[[], bool]) -> None:
        self._study, self._drawn, self._is_late = study, drawn, is_late
        self._reported = study.reported(drawn)
        self.on_step: Callable[[Run], None] = lambda run: None
        self._run: Run | None = None

    @property
    def seconds(self) -> float:
        """Of training and evaluations so far."""
        state = None if self._run is None else self._run.state
        return 0.0 if state is None else state.seconds_training + state.seconds_evaluating

    def at_rung(self, rung: int, mrr: Callable[[], float]) -> bool:
        if rung not in self._reported:
            self._reported[rung] = mrr()
            self._study.report(self._drawn, rung, self._reported[rung])
            self._study.spent(self._drawn, self.seconds)
        return self._study.stops(self._drawn)

    def at_end(self, reached: int, mrr: float) -> None:
        """Take the MRR of the whole run."""
        if reached not in self._reported:
            self._study.report(self._drawn, reached, mrr)

    def made_step(self, run: Run) -> bool:
        self._run = run
        self.on_step(run)
        return self._is_late()


def _section(config: Config) -> SearchConfig:
    """What the config says of the search, if that is enough."""
    if config.search is None:
        raise ValueError(
            "search.ranges is missing: say what trials differ in, such as "
            "search: {ranges: {optim.lr: {low: 1e-4, high: 1e-1, log: true}}}"
        )
    if config.search.trials is None and config.search.minutes is None:
        raise ValueError("search.minutes: say for how long, or with search.trials how many trials")
    return config.search


def _unit(config: Config) -> str:
    return "epochs" if config.train.epochs else "steps"


def _check_same(begun: Config, config: Config) -> None:
    """That a search goes on as it began."""
    changed = begun.training_differences(config)
    old, new = (vars(_section(it)) for it in (begun, config))
    changed |= {
        f"search.{key}": (old[key], new[key])
        for key in old
        if not may_change(f"search.{key}") and old[key] != new[key]
    }
    if changed:
        raise ValueError(
            "the search was started with another config: "
            + ", ".join(f"{key} was {was}, is {now}" for key, (was, now) in changed.items())
        )


def _how_to_go_on(path: Path) -> str:
    return f"go on with: kgfast search --config {path / 'config.yaml'} --run {path} --resume"

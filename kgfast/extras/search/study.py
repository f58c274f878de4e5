"""Stored trials of a search, and optuna's decisions: the next values, and the trials to stop.

optuna writes the trials to a journal, a file of lines that are appended.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kgfast.extras.search.trials import Outcome, Trial, Trials
from kgfast.frames import needed
from kgfast.text import reading

_NAME = "kgfast"
_DAMAGED = "damaged: not the journal of a search"
_REDRAWS = 100  # repeated draws of used values, before the search ends
_VALUES, _OUTCOME, _SECONDS, _MESSAGE = "values", "outcome", "seconds", "message"


class Study:
    """Trials of a search in a journal, which no other process may write.

    The seed, the number of a trial and all earlier results decide the values of the trial.
    """

    def __init__(self, path: Path, *, first_rung: int, reduction: int, seed: int) -> None:
        self._optuna = needed("optuna", "kgfast search")
        self._seed = seed
        _mend(path)
        pruner = self._optuna.pruners.SuccessiveHalvingPruner(
            min_resource=first_rung, reduction_factor=reduction
        )
        with reading(path, _DAMAGED), _quiet(self._optuna):
            self._study = self._optuna.create_study(
                storage=_storage(self._optuna, path),
                study_name=_NAME,
                direction="maximize",
                pruner=pruner,
                load_if_exists=True,
            )

    def next(self, distributions: Mapping[str, Any]) -> Any:
        """Return an interrupted trial, or a new one; None if no untried values are left."""
        states = self._optuna.trial.TrialState
        for _ in range(_REDRAWS):
            trials = self._study.get_trials(deepcopy=False)
            cut_off = [it for it in trials if it.state == states.RUNNING]
            if cut_off:
                trial = self._optuna.trial.Trial(self._study, cut_off[0]._trial_id)
            else:
                self._study.sampler = self._sampler(len(trials))
                trial = self._study.ask(dict(distributions))
            before = [it.params for it in trials if it.number < trial.number and _counts(it)]
            if set(trial.params) == set(distributions) and trial.params not in before:
                return trial
            self._study.tell(trial, state=states.FAIL)  # killed during the draw, or a repeated draw
        return None

    def _sampler(self, number: int) -> Any:
        """Return the sampler of a trial: an interrupted trial draws equal values again."""
        seed = (self._seed * 1_000_003 + number) % 2**32
        return self._optuna.samplers.TPESampler(seed=seed)

    def begin(self, trial: Any, values: Mapping[str, Any]) -> None:
        """Store the values of a trial."""
        if _VALUES not in trial.user_attrs:
            trial.set_user_attr(_VALUES, dict(values))

    def report(self, trial: Any, rung: int, mrr: float) -> None:
        trial.report(mrr, rung)

    def stops(self, trial: Any) -> bool:
        """Return whether a trial stops at the reported rung, since others were better."""
        return bool(trial.should_prune())

    def reported(self, trial: Any) -> dict[int, float]:
        """Return the reported MRRs of a trial by rung."""
        return dict(self._study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def spent(self, trial: Any, seconds: float) -> None:
        """Store the seconds of a trial so far."""
        trial.set_user_attr(_SECONDS, seconds)

    def end(
        self, trial: Any, outcome: Outcome, mrr: float | None = None, message: str = ""
    ) -> None:
        """Store the end of a trial; a trial without a rung is the worst to the sampler."""
        states = self._optuna.trial.TrialState
        trial.set_user_attr(_OUTCOME, outcome.value)
        if message:
            trial.set_user_attr(_MESSAGE, message)
        if outcome is Outcome.done:
            self._study.tell(trial, mrr)
        else:
            self._study.tell(trial, state=states.PRUNED)

    def trials(self) -> tuple[Trial, ...]:
        """Return all trials that were begun."""
        return _trials(self._study)


def read(path: Path, unit: str) -> Trials:
    """Read the trials of a journal that may be written meanwhile."""
    optuna = needed("optuna", "kgfast search")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: {path.parent} holds no search")
    with reading(path, _DAMAGED), _quiet(optuna):
        try:
            study = optuna.load_study(study_name=_NAME, storage=_storage(optuna, path))
        except KeyError:  # killed before its first line
            return Trials((), unit)
        return Trials(_trials(study), unit)


def _trials(study: Any) -> tuple[Trial, ...]:
    return tuple(_trial(it) for it in study.get_trials(deepcopy=False) if _counts(it))


def _counts(trial: Any) -> bool:
    """Return whether a trial was begun, and not drawn again."""
    return trial.state.name != "FAIL" and _VALUES in trial.user_attrs


def _trial(trial: Any) -> Trial:
    noted = trial.user_attrs
    outcome = Outcome(noted.get(_OUTCOME, Outcome.open.value))
    if not trial.state.is_finished():  # killed before its end was stored
        outcome = Outcome.open
    rungs = dict(sorted(trial.intermediate_values.items()))
    last = next(reversed(rungs.values()), None)
    return Trial(
        number=trial.number,
        values=noted[_VALUES],
        outcome=outcome,
        rungs=rungs,
        mrr=trial.value if outcome is Outcome.done else last,
        seconds=noted.get(_SECONDS, 0.0),
        message=noted.get(_MESSAGE, ""),
    )


def _storage(optuna: Any, path: Path) -> Any:
    journal = optuna.storages.journal
    return optuna.storages.JournalStorage(journal.JournalFileBackend(os.fspath(path)))


def _mend(path: Path) -> None:
    """Remove the leftovers of a killed process: an incomplete line, and a lock."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    if path.is_file():
        raw = path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            os.truncate(path, whole)


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)

"""Values that trials may have: the ranges of a config, checked against the keys."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from kgfast.text import shown
from kgfast.training import Config
from kgfast.training.config import IGNORED, RangeConfig, assigned, may_change

_TRIES = 200  # tries of a value with values of other ranges, before the value is refused
_SAME_FOR_ALL = ("dataset", "search")


class Space:
    """The configs that trials may have.

    A ValueError has a line for each key that does not exist or must be equal in all trials. It also
    has a line for each value that a key cannot have, or that contradicts other sections for all
    values of other ranges.
    """

    def __init__(self, config: Config) -> None:
        assert config.search is not None
        self._base = {key: value for key, value in config.to_dict().items() if key != "search"}
        self._ranges = config.search.ranges
        self._ends: dict[str, list[Any]] = {}
        problems = []
        for key in self._ranges:
            try:
                self._ends[key] = self._checked_ends(key)
            except ValueError as error:
                problems.append(f"search.ranges.{key}: {error}")
        if problems:
            raise ValueError("\n".join(problems))

    def draw(self, trial: Any) -> dict[str, Any]:
        """Draw a value for each key; a trial of optuna that has its values keeps them."""
        return {key: self._drawn(trial, key, ends) for key, ends in self._ends.items()}

    def config_of(self, values: Mapping[str, Any]) -> Config:
        """Return the config of a trial; raise ValueError if values contradict each other."""
        return Config.from_dict(assigned(self._base, values))

    def _drawn(self, trial: Any, key: str, ends: list[Any]) -> Any:
        if self._ranges[key].choices is not None:
            choices = {_plain(value): value for value in ends}
            return choices[trial.suggest_categorical(key, list(choices))]
        suggest = trial.suggest_int if isinstance(ends[0], int) else trial.suggest_float
        return suggest(key, *ends, log=self._ranges[key].log)

    def _checked_ends(self, key: str) -> list[Any]:
        """Return both bounds of a range, or its choices, in the types of a config."""
        if key in IGNORED:
            raise ValueError(f"changes nothing: {IGNORED[key]}")
        if key.partition(".")[0] in _SAME_FOR_ALL or may_change(key):
            raise ValueError("must be equal in all trials: the key does not change learning")
        values = [self._checked(key, value) for value in _ends_of(self._ranges[key])]
        if self._ranges[key].choices is not None:
            if len(set(map(_plain, values))) < len(values):
                raise ValueError("has a choice twice")
        elif any(isinstance(it, bool) or not isinstance(it, int | float) for it in values):
            raise ValueError("is no number and needs choices")
        return values

    def _checked(self, key: str, value: Any) -> Any:
        """Return a value in the type of a config: alone, or with values of other ranges."""
        generator = Random(0)  # noqa: S311, a search is repeated by its seed
        others = {name: _ends_of(it) for name, it in self._ranges.items() if name != key}
        alone = ""
        for _ in range(1 + _TRIES if others else 1):
            drawn = {name: generator.choice(ends) for name, ends in others.items()} if alone else {}
            try:
                return self.config_of(drawn | {key: value}).flat().get(key, value)
            except ValueError as error:
                alone = alone or str(error)
        raise ValueError(f"{shown(value)} cannot be: {alone}")


def _ends_of(it: RangeConfig) -> Sequence[Any]:
    return it.choices if it.choices is not None else (it.low, it.high)


def _plain(value: Any) -> Any:
    """Return the text of a list or an object, since optuna takes neither."""
    return json.dumps(value) if isinstance(value, list | dict) else value

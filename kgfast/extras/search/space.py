"""Values that trials may have: the ranges of a config, checked against the keys."""

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from kgfast.frames import needed
from kgfast.text import shown
from kgfast.training import Config
from kgfast.training.config import IGNORED, RangeConfig, assigned, may_change

_TRIES = 200  # tries of a value with values of other ranges, before the value is refused
_SAME_FOR_ALL = ("dataset", "search")

Values = Mapping[str, Any]


class Space:
    """The configs that trials may have.

    ``distributions`` are optuna's, by key. A ValueError has a line for each key that does not exist
    or must be equal in all trials. It also has a line for each value that a key cannot have, or
    that contradicts other sections for all values of other ranges.
    """

    def __init__(self, config: Config) -> None:
        assert config.search is not None
        self._base = {key: it for key, it in config.to_dict().items() if key != "search"}
        self._ranges = config.search.ranges
        self._choices: dict[str, dict[Any, Any]] = {}
        self.distributions: dict[str, Any] = {}
        problems: list[str] = []
        for key in self._ranges:
            try:
                self.distributions[key] = self._distribution(key)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(problems))

    def values_of(self, params: Values) -> dict[str, Any]:
        """Return the values of keys from drawn parameters."""
        return {key: self._choices.get(key, {}).get(it, it) for key, it in params.items()}

    def config_of(self, values: Values) -> Config:
        """Return the config of a trial; raise ValueError if values contradict each other."""
        return Config.from_dict(assigned(self._base, values))

    def _distribution(self, key: str) -> Any:
        """Return optuna's distribution of a key; choices that are lists stand as text."""
        optuna = needed("optuna", "kgfast search")
        problem = _fixed(key)
        if problem:
            raise ValueError(f"search.ranges.{key}: {problem}")
        values = [self._checked(key, value) for value in _ends(self._ranges[key])]
        if self._ranges[key].choices is not None:
            self._choices[key] = dict(zip(map(_drawn, values), values, strict=True))
            if len(self._choices[key]) < len(values):
                raise ValueError(f"search.ranges.{key}: has a choice twice")
            return optuna.distributions.CategoricalDistribution(list(self._choices[key]))
        low, high = values
        if any(isinstance(it, bool) or not isinstance(it, int | float) for it in values):
            raise ValueError(f"search.ranges.{key}: is no number and needs choices")
        kind = "IntDistribution" if isinstance(low, int) else "FloatDistribution"
        return getattr(optuna.distributions, kind)(low, high, log=self._ranges[key].log)

    def _checked(self, key: str, value: Any) -> Any:
        """Return a value in the form of a config: alone, or with values of other ranges."""
        try:
            return _at(self.config_of({key: value}), key)
        except ValueError as error:
            alone = str(error)
        generator = Random(0)  # noqa: S311, a search is repeated by its seed
        others = {name: _ends(it) for name, it in self._ranges.items() if name != key}
        for _ in range(_TRIES if others else 0):
            drawn = {name: generator.choice(ends) for name, ends in others.items()}
            try:
                return _at(self.config_of(drawn | {key: value}), key)
            except ValueError:
                continue
        raise ValueError(f"search.ranges.{key}: {shown(value)} cannot be: {alone}")


def _fixed(key: str) -> str | None:
    """Return the reason why a key cannot differ between trials; None if it can."""
    if key in IGNORED:
        return f"changes nothing: {IGNORED[key]}"
    if key.partition(".")[0] in _SAME_FOR_ALL or may_change(key):
        return "must be equal in all trials: the key does not change learning"
    return None


def _ends(it: RangeConfig) -> Sequence[Any]:
    return it.choices if it.choices is not None else (it.low, it.high)


def _at(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        # key of a mapping of options
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


def _drawn(value: Any) -> Any:
    """Return the text of a list or an object, since optuna takes neither."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def names_of(values: Values) -> Iterator[tuple[str, str]]:
    """Return keys without sections, where that is clear, and values as text.

    >>> list(names_of({"optim.lr": 0.00123456, "model.name": "cp"}))
    [('lr', '0.001235'), ('model.name', 'cp')]
    """
    last = [key.rpartition(".")[2] for key in values]
    for key, value in values.items():
        name = key.rpartition(".")[2]
        is_clear = last.count(name) == 1 and name not in ("name", "weight")
        yield name if is_clear else key, f"{value:.4g}" if isinstance(value, float) else str(value)

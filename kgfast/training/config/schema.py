"""The config: all sections together, read, checked, compared and written."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_origin

from pydantic import BaseModel, ValidationError, model_validator

from kgfast import safe_yaml
from kgfast.graph import nearest_names
from kgfast.losses import LOSSES
from kgfast.text import shown
from kgfast.training.config.files import find_config, nested, override, read_yaml
from kgfast.training.config.sections import (
    CONVE_OPTIONS,
    MODELS,
    RangeConfig,
    Sections,
    is_own,
    losses_of,
)

# Keys that may change when a run is resumed.
_FREE = frozenset(
    ["device", "threads", "dataset.root", "dataset.test_on", "data.test_bs"]
    + ["distributed.tables", "distributed.timeout", "search.minutes", "search.trials"]
    + ["train.eval_every", "train.save_every", "train.log_every"]
    + ["train.keep_every", "train.out_dir", "train.table_folder"]
)
_LENGTH = ("train.epochs", "train.steps")  # a resumed run may change these, a search may not
_MOST = 20  # messages at most

_OWN = "your own"
_OTHERS_THAN_CONVE = (*(name for name in MODELS if name != "conve"), _OWN)
_DISTANCES = ("rotate", "transe")
_PENALTIES = {
    "n3": ("distmult", "complex", "cp"),
    "dura": ("distmult", "complex", "cp", "rescal"),
}
# A key with another value than its default goes with some values of another key.
_GOES_WITH: list[tuple[str, str, Sequence[str]]] = [
    *((f"model.{key}", "model.name", ("conve",)) for key in CONVE_OPTIONS),
    ("model.norm", "model.name", _DISTANCES),
    ("model.reciprocal", "model.name", _OTHERS_THAN_CONVE),
    ("model.use_rscf", "model.name", ("rotate", "transe", "distmult", "complex")),
    ("med", "model.name", tuple(name for name in _OTHERS_THAN_CONVE if name != "rescal")),
    ("med", "train.mode", ("negative",)),
    *(
        (f"data.{key}", "train.mode", ("negative",))
        for key in ("neg_size", "negatives", "filter_negatives", "subsampling")
    ),
    ("data.target_weights", "loss.name", ("cross_entropy",)),
    *(
        (f"loss.{key}", "loss.name", [name for name in LOSSES if key in hyperparameters[name]])
        for hyperparameters in [{name: LOSSES[name].hyperparameters() for name in LOSSES}]
        for key in ("alpha", "margin", "label_smoothing", "smoothing_style", "precision")
    ),
    ("loss.precision", "model.name", [*(it for it in MODELS if it not in _DISTANCES), _OWN]),
    ("loss.relation_weight", "model.name", _OTHERS_THAN_CONVE),
    ("loss.relation_weight", "train.mode", ("negative", "1vsall")),
    ("optim.eps", "optim.name", ("adam", "row_adam", "adagrad", "row_adagrad")),
    ("distributed.tables", "train.mode", ("negative",)),
    ("distributed.tables", "model.name", tuple(name for name in MODELS if name != "cp")),
    ("train.table_folder", "model.name", MODELS),
    ("train.table_folder", "train.mode", ("negative",)),
    ("train.table_folder", "optim.name", ("row_adam", "row_adagrad")),
]


class Config(Sections):
    """The config of a run.

    docs/reference/config.md has every key.

    Examples
    --------
    >>> config = Config.from_dict({
    ...     "dataset": {"name": "wn18rr"},
    ...     "model": {"name": "rotate", "base_dim": 128},
    ...     "optim": {"lr": 1e-3},
    ...     "train": {"steps": 1000},
    ... })
    >>> config.data.train_bs, config.optim.name
    (1024, 'row_adam')
    """

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lines = [*_mismatches(self), *_contradictions(self)]
        if lines:
            raise ValueError("\n".join(lines))
        return self

    @classmethod
    def from_yaml(
        cls, path: str | os.PathLike[str], overrides: Sequence[str] | None = None
    ) -> "Config":
        """Read a file.

        Parameters
        ----------
        path
            A YAML mapping of sections, or the name of a config of the package:
            ``wn18rr/rotate_fast``.
        overrides : sequence of str
            Dotted keys and YAML values, ``"optim.lr=1e-3"``, that replace values of the file.
            ``train.steps`` also replaces ``train.epochs`` and the other way round, as do
            ``model.init_range`` and ``model.init_std``.

        Raises
        ------
        FileNotFoundError
            If there is neither a file nor a config; the message has the nearest names.
        ValueError
            For every mistake, a line each: the file, the dotted key, the allowed values and, for an
            unknown key, the nearest one.
        """
        path = find_config(path)
        values = read_yaml(path)
        changed = override(values, overrides or ())
        return cls._checked(values, f"{path}: ", changed)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Make a config of a mapping of sections, with the checks of :meth:`from_yaml`."""
        return cls._checked(nested(values), "", [])

    @classmethod
    def _checked(cls, values: dict[str, Any], source: str, overridden: Sequence[str]) -> "Config":
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            mistakes = list(_described(error, list(_keys(cls))))
        lines = []
        for key, message in mistakes[:_MOST]:
            is_set = any(key == other or key.startswith(f"{other}.") for other in overridden)
            lines.append(f"{'--set: ' if is_set else source}{message}")
        if len(mistakes) > _MOST:
            lines.append(f"... and {len(mistakes) - _MOST:,} more")
        raise ValueError("\n".join(lines))

    def training_differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """Return the dotted keys that differ and must not, with the values of (this, other).

        A resumed run may change places, frequencies and lengths, but not the model, the data and
        the method of training.
        """
        mine, theirs = (_flat(it.to_dict() | {"search": None}) for it in (self, other))
        return {
            key: (mine.get(key), theirs.get(key))
            for key in dict.fromkeys([*mine, *theirs])
            if mine.get(key) != theirs.get(key) and not may_change(key) and key not in _LENGTH
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all values, with defaults, for :meth:`from_dict`."""
        return self.model_dump()

    def flat(self) -> dict[str, Any]:
        """Return all values by their dotted keys."""
        return _flat(self.to_dict())

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write all values to a file for :meth:`from_yaml`."""
        Path(path).write_text(safe_yaml.dump(self.to_dict()))


def may_change(key: str) -> bool:
    """Return whether a resumed run may have another value of a dotted key.

    Examples
    --------
    >>> may_change("train.log_every"), may_change("optim.lr")
    (True, False)
    """
    return key in _FREE


def _mismatches(config: Config) -> Iterator[str]:
    """Yield a line for each key that does not go with the value of another key."""
    for key, other, allowed in _GOES_WITH:
        value = _OWN if is_own(_at(config, other)) else _at(config, other)
        if _is_set(config, key) and value not in allowed:
            yield f"{key}: goes with {other} {', '.join(allowed)}; {other} is {value}"


def _at(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name) if name else getattr(config, section)


def _is_set(config: Config, key: str) -> bool:
    """Return whether a key has another value than its default, and a section is switched on."""
    section, _, name = key.partition(".")
    if not name:
        return config.med is not None
    inside = getattr(config, section)
    return bool(getattr(inside, name) != type(inside).model_fields[name].default)


def _contradictions(config: Config) -> Iterator[str]:
    """Yield a line per other contradiction, beginning with a dotted key and a colon."""
    model, med, train, loss = config.model, config.med, config.train, config.loss
    sched, penalty = config.sched, config.regularizer
    if is_own(model.name) and _is_set(config, "model.gamma"):
        yield f"model.gamma: give {model.name} its own by model.options"
    for key, section in (("model", model), ("loss", loss)):
        if section.options and not is_own(section.name):
            yield f"{key}.options: only a {key} of your own has options; got {section.name}"
    if model.init_range is not None and model.init_std is not None:
        yield "model.init_std: model.init_range says how entries start already; leave one out"
    if model.name == "conve" and train.mode == "negative":
        yield "train.mode: must be kvsall or 1vsall for conve; got negative"
    if config.distributed.tables == "sharded":
        if med is not None and med.crop == "split":
            yield "distributed.tables: shards cannot rank parts of rows, as med.crop split does"
        if config.filters_relations:
            yield f"distributed.tables: shards cannot filter the relations of {model.name} by RSCF"
    if med is not None:
        for key in ("loss.name", "loss.alpha", "loss.margin", "data.subsampling"):
            if train.mode == "negative" and _is_set(config, key):
                yield f"{key}: med has its own loss; leave it out"
    if (train.epochs is None) == (train.steps is None):
        which = "neither" if train.epochs is None else "both: set one of them to null"
        yield f"train.epochs: exactly one of train.epochs and train.steps must be set; got {which}"
    if train.early_stopping is not None and not train.eval_every:
        yield "train.early_stopping: needs evaluations; set train.eval_every"
    names = losses_of(train.mode)
    if loss.name not in names and not (is_own(loss.name) and train.mode == "negative"):
        allowed = ", ".join(names)
        yield f"loss.name: must be one of {allowed} with train.mode {train.mode}; got {loss.name}"
    fitting = _PENALTIES.get(penalty.name, (model.name,))
    if model.name not in fitting:
        models = ", ".join(fitting)
        yield f"regularizer.name: {penalty.name} goes with {models}; got model.name {model.name}"
    if penalty.name == "dura" and train.mode == "kvsall":
        yield "regularizer.name: dura is of triples, of which a query of kvsall has many"
    for key, one, other in (
        ("regularizer.weight", penalty.name != "none", penalty.weight),
        ("sched.milestones", sched.name == "step", sched.milestones),
    ):
        if one != bool(other):
            name = _at(config, f"{key.partition('.')[0]}.name")
            yield f"{key}: {other} and the name {name} contradict each other"
    if sched.milestones != sorted(set(sched.milestones)):
        yield f"sched.milestones: must increase; got {sched.milestones}"
    for key, values in config.search.ranges.items() if config.search is not None else ():
        problem = _problem_of(values)
        if problem is not None:
            yield f"search.ranges.{key}: {problem}"


def _problem_of(values: RangeConfig) -> str | None:
    if values.choices is not None:
        is_alone = (values.low, values.high, values.log) == (None, None, False)
        return None if is_alone else "has choices; leave low, high and log out"
    if values.low is None or values.high is None:
        return "needs low and high, or choices"
    if values.low >= values.high:
        return f"low must be less than high; got {values.low:g} and {values.high:g}"
    return "low must be greater than 0 with log" if values.log and values.low <= 0 else None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def _keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        if get_origin(field.annotation) is dict:  # a mapping has keys of any name
            continue
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def _described(error: ValidationError, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a dotted key and a message for each mistake; ``keys`` are all existing keys."""
    for mistake in error.errors(include_url=False):
        key = _cut(".".join(map(str, mistake["loc"])), 100)
        kind = mistake["type"]
        if kind == "extra_forbidden":
            yield key, f"unknown key {key}{_nearest(key, keys)}"
        elif kind == "missing":
            yield key, f"{key} is missing"
        elif kind == "value_error":  # contradictions
            for line in str(mistake["ctx"]["error"]).split("\n"):
                yield line.partition(":")[0], _cut(line, 400)
        else:
            is_section = kind in ("model_type", "model_attributes_type", "dict_type")
            problem = "must be a section with keys" if is_section else mistake["msg"]
            yield key, f"{key}: {problem}; got {shown(mistake['input'])}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _nearest(key: str, keys: Sequence[str]) -> str:
    """Suggest the most similar key of the section, else a key of that name elsewhere."""
    section, _, name = key.rpartition(".")
    siblings = {it.rpartition(".")[2]: it for it in keys if it.rpartition(".")[0] == section}
    similar = [siblings[it] for it in nearest_names(name, siblings, 1)]
    similar = similar or [it for it in keys if it.rpartition(".")[2] == name]
    if similar:
        return f"; did you mean {similar[0]}?"
    return f"; {section or 'the file'} may hold {', '.join(siblings)}" if siblings else ""

"""The config: all sections together, read, checked, compared and written."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_origin

from pydantic import BaseModel, ValidationError, model_validator

from kgfast import safe_yaml
from kgfast.graph import nearest_names
from kgfast.text import shown
from kgfast.training.config.checks import problems
from kgfast.training.config.files import drop_ignored, find_config, nested, override, read_yaml
from kgfast.training.config.sections import Sections

# Keys that may change when a run is resumed.
_FREE = frozenset(
    ["device", "threads", "dataset.root", "dataset.test_on", "data.test_bs"]
    + ["distributed.tables", "distributed.timeout", "search.minutes", "search.trials"]
    + ["train.max_minutes", "train.max_total_minutes", "train.eval_every", "train.save_every"]
    + ["train.log_every", "train.keep", "train.keep_every", "train.out_dir", "train.table_folder"]
)
_LENGTH = ("train.epochs", "train.steps")  # a resumed run may change these, a search may not
_MOST = 20  # messages at most


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
        lines = list(problems(self))
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
        drop_ignored(values, source)
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

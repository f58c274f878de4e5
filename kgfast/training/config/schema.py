"""The whole config: its sections together, read, checked, compared and written."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, get_origin

from pydantic import BaseModel, ValidationError, model_validator

from kgfast import safe_yaml
from kgfast.training.config.checks import problems
from kgfast.training.config.errors import describe
from kgfast.training.config.files import drop_ignored, nested, override, read_yaml
from kgfast.training.config.names import find_config
from kgfast.training.config.search import SearchConfig, problems_of_ranges
from kgfast.training.config.sections import Sections

# What may change when a run is resumed.
_FREE_OF_TRAIN = (
    *("max_minutes", "max_total_minutes", "eval_every", "save_every", "log_every", "out_dir"),
    "table_folder",
)
_KEPT = ("keep", "keep_every")
_FREE = frozenset(
    ["device", "threads", "dataset.root", "dataset.test_on", "data.test_bs"]
    + ["distributed.tables", "distributed.timeout", "search.minutes", "search.trials"]
    + [f"train.{key}" for key in (*_FREE_OF_TRAIN, *_KEPT)]
)


class Config(Sections):
    """The config of a run.

    Attributes
    ----------
    seed : int
        Of the first tables and of everything that is drawn.
    device : str
        ``auto``: the GPU if there is one.
    threads : int, optional
        Of torch and the kernels; as many as torch has by default. A run that goes on with another
        number stays the same to the bit, but for conve and for MED around RSCF: their gradients
        hold matrix products of torch, whose last bits depend on it.

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

    search: SearchConfig | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lines = [*problems(self), *(problems_of_ranges(self.search) if self.search else ())]
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
            ``"optim.lr=1e-3"``: a dotted key and a YAML value, over what the file says. Steps
            replace the epochs of the file and epochs its steps, as ``model.init_range`` and
            ``model.init_std`` replace each other.

        Raises
        ------
        FileNotFoundError
            If there is neither; the message has the nearest names.
        ValueError
            For everything that is wrong in it, a line each: the file, the dotted key, what is
            allowed and, for an unknown key, the nearest one.
        """
        path = find_config(path)
        values = read_yaml(path)
        changed = override(values, overrides or ())
        return cls._checked(values, f"{path}: ", changed)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Config":
        """Check a mapping of sections, as :meth:`from_yaml` does."""
        return cls._checked(nested(values), "", [])

    @classmethod
    def _checked(cls, values: dict[str, Any], source: str, overridden: Sequence[str]) -> "Config":
        drop_ignored(values, source)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems_by_key = describe(error, list(_keys(cls)))
        lines = [
            f"{'--set: ' if any(_within(key, other) for other in overridden) else source}{message}"
            for key, message in problems_by_key
        ]
        raise ValueError("\n".join(lines))

    def training_differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """The dotted keys that another config changes and a resumed run must not: (this, other).

        Where, how often and for how long is free; what is learned, and how, is not. What a search
        tries is no part of a run.
        """
        mine, theirs = (_flat(it.to_dict() | {"search": None}) for it in (self, other))
        return {
            key: (mine.get(key), theirs.get(key))
            for key in dict.fromkeys([*mine, *theirs])
            if mine.get(key) != theirs.get(key) and not may_change(key)
        }

    def to_dict(self) -> dict[str, Any]:
        """All values, defaults too; :meth:`from_dict` of it is this config."""
        return self.model_dump()

    def flat(self) -> dict[str, Any]:
        """All values by their dotted keys."""
        return _flat(self.to_dict())

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write all values as a file that :meth:`from_yaml` reads."""
        Path(path).write_text(safe_yaml.dump(self.to_dict()))


def may_change(key: str) -> bool:
    """Whether a resumed run may have another value of a dotted key.

    Examples
    --------
    >>> may_change("train.log_every"), may_change("optim.lr")
    (True, False)
    """
    return key in _FREE


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys and values."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def _keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted names of everything that may be set."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if get_origin(field.annotation) is dict:  # whose keys are anybody's
            continue
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def _within(key: str, changed: str) -> bool:
    """Whether a key is, or lies in, one that was overridden."""
    return key == changed or key.startswith(changed + ".")

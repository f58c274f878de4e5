"""The config: all sections together, read, checked, compared and written; its files."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from kgfast import safe_yaml
from kgfast.graph import did_you_mean, nearest_names
from kgfast.losses import LOSSES
from kgfast.text import reading, shortened, shown
from kgfast.training.config import sections
from kgfast.training.config.sections import MODELS, Count, CountOrZero, Section, is_own, losses_of

# Keys that may change when a run is resumed.
MAY_CHANGE = frozenset(
    ["device", "threads", "dataset.root", "data.test_bs"]
    + ["distributed.timeout", "search.minutes", "search.trials"]
    + ["train.eval_every", "train.save_every", "train.log_every", "train.keep_every"]
    + ["train.out_dir", "train.table_folder", "train.capture", "train.track"]
)
_LENGTH = ("train.epochs", "train.steps")  # a resumed run may change these, a search may not
_MOST = 20  # messages at most

_OWN = "your own"
_DISTANCES = ("rotate", "transe")
_PENALTIES = {
    "n3": ("distmult", "complex", "cp", "tntcomplex"),
    "dura": ("distmult", "complex", "cp", "tntcomplex", "rescal"),
}


def _models_but(*names: str) -> list[str]:
    return [name for name in (*MODELS, _OWN) if name not in names]


_Rule = tuple[str, str, Sequence[str | None]]


def _takers(section: str, keys: Iterable[str], classes: Mapping[str, type]) -> Iterator[_Rule]:
    """Yield for each argument of some classes that it goes with the names of these."""
    for key in keys:
        takers = [name for name, cls in classes.items() if key in signature(cls).parameters]
        if takers:
            yield f"{section}.{key}", f"{section}.name", takers


# Keys that, with another value than their default, go with some values of another key.
_GOES_WITH: list[_Rule] = [
    *_takers("model", sections.ModelConfig.model_fields, MODELS),
    *_takers("loss", sections.LossConfig.model_fields, LOSSES),
    ("model.init_std", "model.init_range", (None,)),
    ("model.reciprocal", "model.name", _models_but("conve")),
    ("model.use_rscf", "model.name", _DISTANCES),
    ("model.use_rscf med train.table_folder data.subsampling", "train.mode", ("negative",)),
    ("model.options", "model.name", (_OWN,)),
    ("med", "model.name", _models_but("conve", "tntcomplex", "rescal")),
    ("loss.name loss.alpha loss.margin data.subsampling", "med", (None,)),
    ("data.neg_size data.negatives data.filter_negatives", "train.mode", ("negative",)),
    ("data.target_weights", "loss.name", ("cross_entropy",)),
    ("data.subsampling", "loss.name", ("nssa", _OWN)),
    ("loss.precision", "model.name", _models_but(*_DISTANCES)),
    ("loss.relation_weight", "model.name", _models_but("conve", "tntcomplex")),
    ("loss.relation_weight", "train.mode", ("negative", "1vsall")),
    ("loss.options", "loss.name", (_OWN,)),
    ("regularizer.time_weight", "model.name", ("tntcomplex",)),
    ("regularizer.weight", "regularizer.name", ("n3", "l2", "dura")),
    ("optim.eps", "optim.name", ("row_adam", "adam", "row_adagrad", "adagrad")),
    ("sched.milestones sched.factor", "sched.name", ("step",)),
    ("train.table_folder", "model.name", tuple(MODELS)),
    ("train.table_folder", "optim.name", ("row_adam", "row_adagrad")),
]


class Config(Section):
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

    seed: CountOrZero = 0
    """The seed of the first tables and of everything that is drawn."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """``auto``: the GPU if there is one."""
    threads: Annotated[Count, Field(le=1024)] | None = None
    """Threads of torch and the kernels; as many as torch has by default. A run that is resumed with
    another number has the same bits, except for conve and MED around RSCF (matrix products)."""
    dataset: sections.DatasetConfig
    model: sections.ModelConfig
    med: sections.MedConfig | None = None
    train: sections.TrainConfig
    data: sections.DataConfig = sections.DataConfig()
    loss: sections.LossConfig = sections.LossConfig()
    regularizer: sections.RegularizerConfig = sections.RegularizerConfig()
    optim: sections.OptimConfig
    sched: sections.SchedConfig = sections.SchedConfig()
    distributed: sections.DistributedConfig = sections.DistributedConfig()
    search: sections.SearchConfig | None = None

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
        """Read a file, or a config of the package such as ``wn18rr/rotate_fast``.

        ``overrides`` are dotted keys with YAML values, ``"optim.lr=1e-3"``, that replace values of
        the file; ``train.steps`` also replaces ``train.epochs``, and the other way round.

        Raises
        ------
        FileNotFoundError
            If there is neither a file nor a config; the message has the nearest names.
        ValueError
            For every mistake, a line each: the file, the dotted key, the allowed values and, for an
            unknown key, the nearest one.
        """
        path = find_config(path)
        with reading(path, "not a config"), path.open("rb") as file:
            text = file.read(safe_yaml.MOST_BYTES + 1).decode("utf-8-sig")
            values = safe_yaml.parse(text, path)
            if not isinstance(values, dict):
                raise ValueError(f"{path}: expected sections such as 'model:'; got {shown(values)}")
        override(values, overrides or ())
        return cls.from_dict(values, f"{path}{' and --set' if overrides else ''}: ")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "") -> "Config":
        """Make a config of a mapping of sections, with the checks of :meth:`from_yaml`.

        Each line of an error begins with ``source``.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = [f"{source}{line}" for line in _described(error, list(_keys(cls)))]
        if len(lines) > _MOST:
            lines[_MOST:] = [f"... and {len(lines) - _MOST:,} more"]
        raise ValueError("\n".join(lines))

    def updated(self, by_key: Mapping[str, Any]) -> "Config":
        """Return a config with other values of dotted keys, such as ``{"optim.lr": 0.5}``."""
        values = self.to_dict()
        for key, value in by_key.items():
            put(values, key, value)
        return Config.from_dict(values)

    def training_differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """Return the dotted keys that differ and must not, with the values of (this, other).

        A resumed run may change places, frequencies and lengths, but not the model, the data and
        the method of training.
        """
        mine, theirs = (each.model_copy(update={"search": None}).flat() for each in (self, other))
        return {
            key: (mine.get(key), theirs.get(key))
            for key in mine | theirs
            if mine.get(key) != theirs.get(key) and key not in MAY_CHANGE and key not in _LENGTH
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


def find_config(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file, else of a packaged config such as ``wn18rr/rotate_fast``.

    The name may begin with ``configs/`` and end with ``.yaml``. The FileNotFoundError for an
    unknown name has the nearest names.

    >>> find_config("wn18rr/rotate_fast").name
    'rotate_fast.yaml'
    """
    path, packaged = Path(name), packaged_configs()
    if len(path.name) < 256 and path.is_file():
        return path
    plain_name = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if plain_name in packaged:
        return packaged[plain_name]
    folders = {key.partition("/")[0]: key for key in packaged}
    hint = did_you_mean(plain_name, packaged) or f"; the package has {', '.join(folders.values())}"
    raise FileNotFoundError(
        f"{shortened(str(name), 200)}: no such config file, nor one of the package{hint}"
    )


def packaged_configs() -> dict[str, Path]:
    """Return the files of the packaged configs by name, sorted.

    >>> "default/rotate" in packaged_configs()
    True
    """
    root = Path(str(resources.files("kgfast.configs")))
    files = sorted(root.glob("*/*.yaml"))
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def override(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Put every ``a.b=c`` into the values of a file, ``c`` read as YAML.

    An override of ``train.epochs`` or ``train.steps`` unsets the other one of the file.
    """
    other_length = dict([_LENGTH, _LENGTH[::-1]])
    keys = []
    for text in overrides:
        key, equals, value = text.partition("=")
        source = f"--set {shortened(text, 80)}"
        if not equals or not all(key.split(".")) or key.count(".") > safe_yaml.DEEPEST:
            raise ValueError(f"{source}: expected key=value, such as optim.lr=1e-3")
        parsed = safe_yaml.parse(value, source, numbered=False)
        put(values, key, parsed)
        keys.append(key)
        other = other_length.get(key)
        if other and other not in keys and parsed is not None:
            put(values, other, None)


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the value of a dotted key in nested values."""
    is_range = dotted.startswith("search.ranges.")  # of a key with dots
    *sections, last = dotted.split(".", 2 if is_range else -1)
    for section in sections:
        inside = values.get(section)
        if not isinstance(inside, dict):
            inside = values[section] = {}
        values = inside
    values[last] = value


def _mismatches(config: Config) -> Iterator[str]:
    """Yield a line for each key that does not go with the value of another key."""
    values, changed = config.flat(), _flat(config.model_dump(exclude_defaults=True))
    for keys, other, allowed in _GOES_WITH:
        value = values.get(other, "set")
        value = _OWN if is_own(str(value)) else value
        names = ", ".join(str(name or "null") for name in allowed)
        for key in keys.split() if value not in allowed else ():
            if any(f"{name}.".startswith(f"{key}.") for name in changed):
                yield f"{key}: goes with {other} {names}; {other} is {value}"


def _contradictions(config: Config) -> Iterator[str]:
    """Yield a line per other contradiction, beginning with a dotted key and a colon."""
    model, train, loss, penalty = config.model, config.train, config.loss, config.regularizer
    if model.name == "conve" and train.mode == "negative":
        yield "train.mode: must be kvsall or 1vsall for conve; got negative"
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
    if penalty.name != "none" and not penalty.weight:
        yield f"regularizer.weight: must be greater than 0 with regularizer.name {penalty.name}"
    if config.sched.name == "step" and not config.sched.milestones:
        yield "sched.milestones: needs a fraction of the run with sched.name step"
    for key, values in config.search.ranges.items() if config.search is not None else ():
        bounds = [x for x in (values.low, values.high) if x is not None]
        is_range = len(bounds) == 2 and (bounds[0] > 0 or not values.log) and bounds[0] <= bounds[1]
        if (values.choices is None) != is_range:
            yield f"search.ranges.{key}: needs either low <= high (low > 0 with log), or choices"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def _keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _keys(kind, f"{prefix}{name}.")


def _described(error: ValidationError, keys: Sequence[str]) -> Iterator[str]:
    """Yield a line for each mistake, with its dotted key; ``keys`` are all existing keys."""
    for mistake in error.errors(include_url=False):
        key, kind = ".".join(map(str, mistake["loc"]))[:100], mistake["type"]
        if not key:  # contradictions
            yield from (line[:400] for line in str(mistake["ctx"]["error"]).split("\n"))
        elif kind == "extra_forbidden":
            near = [name for name in keys if name.rpartition(".")[2] == key.rpartition(".")[2]]
            near = near or nearest_names(key, keys, 1)
            hint = f"did you mean {near[0]}?" if near else "docs/reference/config.md lists all keys"
            yield f"unknown key {key}; {hint}"
        elif kind == "missing":
            yield f"{key} is missing"
        else:
            is_section = kind in ("model_type", "model_attributes_type", "dict_type")
            problem = "must be a section with keys" if is_section else mistake["msg"]
            problem = problem.removeprefix("Value error, ")
            yield f"{key}: {problem}; got {shown(mistake['input'])}"

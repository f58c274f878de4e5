"""Checkpoints, and the folder of a run: its files, its state, its result, and its first graph.

A checkpoint is a file of tensors, with everything that is no tensor as JSON in the header. A run
stores its vocabularies and triples once, in ``graph.safetensors``, because they define the entity
of each row of a table. Later data are compared with this graph: another order of names or lines
changes nothing, another graph is an error.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.identity import names_digest
from kgfast.eval.metrics import table_of
from kgfast.graph import TimedRelations, Triples, Vocabulary
from kgfast.tables.files import Room, metadata_of, read, write
from kgfast.text import reading, shown
from kgfast.training.config import Config
from kgfast.whole_files import write_whole

VERSION = 1
_KEY = "kgfast"
_NAMES = ("entities", "relations", "times")
Stored = tuple[Mapping[str, Any], dict[str, Any]]  # tensors or tables by name, and the meta
Kind = TypeVar("Kind")


class State(BaseModel):
    """Numbers of a run that are no tensors and do not follow from the config."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt = 0  # steps made
    best: float | None = None  # value of the best metric on valid
    best_step: NonNegativeInt = 0
    valid: dict[str, float] = {}  # all metrics of the best state; for MED, of the widest sub-model
    valid_of_submodels: dict[str, dict[str, float]] = {}  # metrics by width
    loss_sum: float = 0.0  # sum since the last row of the log
    loss_count: NonNegativeInt = 0
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_cpu: float = 0.0  # part of seconds_training, by all threads of process 0
    stopped_early: bool = False
    in_vain: NonNegativeInt = 0  # evaluations since the best one


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a run.

    Attributes
    ----------
    steps, planned_steps, best_step : int
        Steps made, steps planned, and the step with the best metric on valid (0: no evaluation).
    valid, test : dict
        Filtered metrics of the best state, or without a run folder of the last state. Empty for an
        empty split. For croppable embeddings, metrics of the widest sub-model.
    valid_of_submodels, test_of_submodels : dict
        Metrics of each sub-model, by its width as a string; empty for other models.
    seconds_training, seconds_evaluating : float
        Wall-clock seconds, summed over all invocations of a resumed run.
    stopped_early : bool
    tested_step : int
        The step of the tested model.
    seconds_cpu : float
        CPU seconds of the training steps, of all threads of process 0; other programs on the
        machine change them less than ``seconds_training``.
    """

    steps: int
    planned_steps: int
    best_step: int
    valid: dict[str, float]
    test: dict[str, float]
    valid_of_submodels: dict[str, dict[str, float]]
    test_of_submodels: dict[str, dict[str, float]]
    seconds_training: float
    seconds_evaluating: float
    stopped_early: bool
    tested_step: int
    seconds_cpu: float

    def __repr__(self) -> str:
        steps = f"{self.steps:,} step{'' if self.steps == 1 else 's'}"
        if self.steps < self.planned_steps:
            steps += f" of {self.planned_steps:,} (stopped early)"
        best = f"best after {self.best_step:,}" if self.best_step else "none evaluated"
        head = (
            f"{steps} in {self.seconds_training:,.1f} s, {best}; "
            f"evaluations took {self.seconds_evaluating:,.1f} s"
        )
        both = {"valid": self.valid, "test": self.test}
        rows = {name: metrics for name, metrics in both.items() if metrics}
        if self.test:
            is_best = self.tested_step == self.best_step
            which = "best checkpoint on valid" if is_best else "last checkpoint"
            head += f"\ntest triples, filtered, by the {which} (step {self.tested_step:,})"
        if self.test_of_submodels:
            rows = {f"test, {dim}": metrics for dim, metrics in self.test_of_submodels.items()}
        return f"{head}\n{table_of(rows)}" if rows else head


def checked(kind: type[Kind], values: Any) -> Kind:
    """Make a state or a result of values that a file has; a ValueError names the first mistake."""
    name = kind.__name__.lower()
    try:
        checked_values = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{where}: {first['msg']}; got {shown(first['input'])}") from None
    for key in kind.__annotations__.keys() - values.keys():
        raise ValueError(f"{name}.{key} is missing")
    return checked_values


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; an older file under the path stays intact until the new one is complete.

    A temporary folder is made beside the file. Tensors may be on any device; tables are read in
    blocks. A TypeError says that JSON cannot hold ``meta``, an OSError names the path.
    """
    header = {_KEY: json.dumps({"version": VERSION, "meta": meta})}
    write_whole(path, lambda fresh: write(fresh, tensors, header), lasting=True)


def load(
    path: str | os.PathLike[str], room: Room | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a checkpoint, on the CPU, and its meta; ``room`` as in RunFolder.

    A FileNotFoundError, or a ValueError if the file is truncated, damaged, no checkpoint of kgfast,
    or of another version, names the path.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    metadata = metadata_of(path)
    with reading(path, "a safetensors file, but not a checkpoint of kgfast"):
        stored = json.loads(metadata[_KEY])
        version, meta = stored["version"], dict(stored["meta"])
        if type(version) is not int:
            raise TypeError(f"version {shown(version)}")
    if version != VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads {VERSION}: train again, or use "
            "the kgfast that wrote the file"
        )
    return read(path, room), meta


def of_part(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors ``model.<name>`` or ``optim.<name>`` by their own names."""
    start = f"{kind}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


class RunFolder:
    """The files of a run, which docs/reference/files.md describes; a first write makes the folder.

    ``room`` allocates the float32 tensors of states that are read, for tables larger than memory.
    """

    def __init__(self, path: str | os.PathLike[str], room: Room | None = None) -> None:
        self.path, self.room = Path(path), room
        self.last = self.path / "last.safetensors"
        self.best = self.path / "best.safetensors"
        self.config = self.path / "config.yaml"
        self.graph = self.path / "graph.safetensors"
        self.result = self.path / "result.json"

    def holds_a_run(self) -> bool:
        """Return whether there is a state to resume, or a result."""
        return any(path.exists() for path in (self.last, self.result))

    def load(self, path: Path) -> Stored:
        """Read a state; errors are those of :func:`load`."""
        return load(path, self.room)

    def models(self) -> list[Path]:
        """Return the paths of every ``model_<n>``, sorted by step."""
        files = self.path.glob("model_*.safetensors")
        numbered = [path for path in files if re.fullmatch(r"model_\d+", path.stem)]
        return sorted(numbered, key=lambda path: int(path.stem[6:]))

    def load_last(self) -> Stored:
        """Return the newest state."""
        if not self.last.exists():
            raise FileNotFoundError(f"{self.path} holds no checkpoint")
        return self.load(self.last)

    def load_best(self) -> Stored:
        """Return the best model, or the last state where no evaluation chose one."""
        return self.load(self.best) if self.best.exists() else self.load_last()

    def read_config(self) -> Config:
        """Read the config of the run."""
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path}: no such folder")
        if not self.config.is_file():
            raise FileNotFoundError(f"{self.path}: not the folder of a run: config.yaml is missing")
        return Config.from_yaml(self.config)

    def write_graph(self, dataset: Dataset) -> None:
        """Write names (JSON in bytes) and triples; remove what a run without a state left."""
        for old in (self.best, self.path / "trackers.json", *self.models()):
            old.unlink(missing_ok=True)
        tensors = {name: dataset.split(name).hrt.cpu() for name in SPLITS}
        vocabularies = dataset.entities, *dataset.relations.columns
        for what, names in zip(_NAMES, vocabularies, strict=False):
            text = bytearray(json.dumps(list(names)).encode())
            tensors[what] = torch.from_numpy(np.frombuffer(text, np.uint8))
        save(self.graph, tensors, {"graph": names_digest(dataset)})

    def load_graph(self, meta: Mapping[str, Any] | None = None) -> Dataset:
        """Return the graph that the run began with; ``meta`` is that of a state of the run.

        A ValueError names a damaged file, and a state of a run of other names.
        """
        if not self.graph.is_file():
            raise ValueError(f"{self.graph} is missing: the rows of the tables have no names")
        tensors, header = load(self.graph)
        with reading(self.graph, "not the graph of a run"):
            names: Any = {
                what: Vocabulary(json.loads(tensors[what].numpy().tobytes()))
                for what in _NAMES
                if what != "times" or what in tensors
            }
            if "times" in names:
                names["relations"] = TimedRelations(names["relations"], names.pop("times"))
            train, valid, test = (Triples(tensors[split], **names) for split in SPLITS)
            graph = Dataset("", train, valid, test, **names)
            if header["graph"] != names_digest(graph):
                raise ValueError("the digest is not that of the names")
        if meta is not None and meta.get("graph") != header["graph"]:
            raise ValueError(
                f"{self.path}: the rows of the checkpoint belong to other names than those of "
                f"{self.graph.name}: one of the two comes from another run"
            )
        return graph

    def read_result(self) -> dict[str, Any]:
        """Read the result of the run; a FileNotFoundError says that the run has not ended."""
        if not self.result.is_file():
            raise FileNotFoundError(f"{self.result}: the run has not ended")
        with reading(self.result, "not the result of a run"):
            result: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
            checked(Result, result)
            return result

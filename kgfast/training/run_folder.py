"""The folder of a run: its files, and the graph at its beginning.

A run stores its vocabularies and triples once, in ``graph.safetensors``, because they define the
entity of each row of a table. Later data are read through this file: another order of names or
lines changes nothing, another graph is an error.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.identity import differences, fingerprint, names_digest
from kgfast.graph import Triples, Vocabulary
from kgfast.locks import locked
from kgfast.models.fresh import Room
from kgfast.text import reading, shown
from kgfast.training.checkpoint import Stored, load, save
from kgfast.training.config import Config
from kgfast.training.logs import is_number
from kgfast.whole_files import write_whole


class RunGraph:
    """Graph at the beginning of a run.

    Parameters
    ----------
    dataset : Dataset
        Names in the order of the rows of tables; triples in the order from which batches are drawn.

    Attributes
    ----------
    entities, relations : Vocabulary
    splits : dict of str to Tensor
        Train, valid and test, int64 ``[T, 3]``, on the CPU.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.entities, self.relations = dataset.entities, dataset.relations
        self.splits = {name: dataset.split(name).hrt.cpu() for name in SPLITS}

    @cached_property
    def rows(self) -> str:
        """Digest of the names in the order of rows, which a checkpoint stores too."""
        return names_digest(self._dataset)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Digests of the names and of each split, which depend on no order and no id."""
        return fingerprint(self._dataset)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph by :func:`kgfast.training.checkpoint.save`; names are JSON in bytes."""
        tensors = dict(self.splits)
        for what, names in (("entities", self.entities), ("relations", self.relations)):
            text = bytearray(json.dumps(list(names)).encode())
            tensors[what] = torch.from_numpy(np.frombuffer(text, np.uint8))
        save(path, tensors, {"graph": self.rows, "fingerprint": self.fingerprint})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RunGraph":
        """Read a graph that :meth:`save` wrote; a ValueError names a damaged file."""
        tensors, meta = load(path)
        with reading(Path(path), "not the graph of a run"):
            entities, relations = (
                Vocabulary(json.loads(tensors[what].numpy().tobytes()))
                for what in ("entities", "relations")
            )
            train, valid, test = (
                Triples(tensors[name], entities=entities, relations=relations) for name in SPLITS
            )
            graph = cls(Dataset("", train, valid, test, entities, relations))
            if meta["graph"] != graph.rows:
                raise ValueError("the digest is not that of the names")
        return graph

    def read(self, dataset: Dataset, source: str) -> Dataset:
        """Return a dataset with the ids and the order of the run, if both have one graph.

        Names and triples may be in any order. A ValueError lists the first five names or triples
        that are missing or new; ``source`` names the dataset there.
        """
        same_names = (dataset.entities, dataset.relations) == (self.entities, self.relations)
        if same_names and all(
            torch.equal(dataset.split(name).hrt.cpu(), hrt) for name, hrt in self.splits.items()
        ):
            return dataset
        problems = differences(self._dataset, dataset, "the run")
        if problems:
            raise ValueError(f"{source} is not the graph of this run: {'; '.join(problems)}")
        return self.named(dataset.name)

    def named(self, name: str) -> Dataset:
        """Return the graph as a dataset of a name."""
        return replace(self._dataset, name=name)


class RunFolder:
    """The files of a run.

    ========================  ============================================================
    ``config.yaml``           the config, all values
    ``graph.safetensors``     names and triples: see :class:`kgfast.training.RunGraph`
    ``metrics.jsonl``         see :mod:`kgfast.training.logs`
    ``last.safetensors``      the newest state: where a run resumes
    ``best.safetensors``      the best model by ``train.save_best_metric``
    ``model_<n>.safetensors`` models of other steps (``train.keep_every``)
    ``result.json``           the result, written at the end
    ``.lock``                 the process that writes the run: see :func:`kgfast.locks.locked`
    ========================  ============================================================

    Parameters
    ----------
    path
        The folder; made when something is first written.

    Attributes
    ----------
    room : callable, optional
        Allocates the float32 tensors of states that are read, for tables larger than memory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.room: Room | None = None
        self.last = self.path / "last.safetensors"
        self.best = self.path / "best.safetensors"
        self.config = self.path / "config.yaml"
        self.graph = self.path / "graph.safetensors"
        self.result = self.path / "result.json"

    def locked(self) -> AbstractContextManager[None]:
        """Lock the run for writing; raise a ValueError that names the process that holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self.path)

    def holds_a_run(self) -> bool:
        """Return whether there is a state to resume, or a result."""
        return any(path.exists() for path in (self.last, self.result))

    def save_last(self, stored: Stored) -> None:
        """Write the newest state."""
        save(self.last, *stored)

    def save_best(self, stored: Stored) -> None:
        """Write the best model."""
        save(self.best, *stored)

    def save_model(self, stored: Stored) -> None:
        """Write ``model_<n>``, ``n`` being the step of the meta."""
        save(self.path / f"model_{stored[1]['step']}.safetensors", *stored)

    def load(self, path: Path) -> Stored:
        """Read a state; errors are those of :func:`kgfast.training.checkpoint.load`."""
        return load(path, self.room)

    def drop_states(self) -> None:
        """Delete every file of tensors; the config, the log and the result stay."""
        for path in self.path.glob("*.safetensors"):
            path.unlink()

    def models(self) -> list[Path]:
        """Return the paths of every ``model_<n>``, sorted by step."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        matches = [re.fullmatch(r"model_(\d+)\.safetensors", path.name) for path in paths]
        steps = sorted(int(match[1]) for match in matches if match)
        return [self.path / f"model_{step}.safetensors" for step in steps]

    def load_last(self) -> Stored | None:
        """Return the newest state, or None if nothing was saved yet."""
        return self.load(self.last) if self.last.exists() else None

    def load_best(self) -> Stored:
        """Return the best model, or the last state where no evaluation chose one."""
        if self.best.exists():
            return self.load(self.best)
        stored = self.load_last()
        if stored is None:
            raise FileNotFoundError(f"{self.path} holds no checkpoint")
        return stored

    def read_config(self, overrides: Sequence[str] | None = None) -> Config:
        """Read the config of the run; ``overrides`` are those of :meth:`Config.from_yaml`."""
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path}: no such folder")
        if not self.config.is_file():
            raise FileNotFoundError(f"{self.path}: not the folder of a run: config.yaml is missing")
        return Config.from_yaml(self.config, overrides)

    def write_config(self, config: Config) -> None:
        """Write the config of the run."""
        write_whole(self.config, config.to_yaml, lasting=True)

    def write_graph(self, graph: RunGraph) -> None:
        """Write the names and triples that the run began with."""
        graph.save(self.graph)

    def load_graph(self) -> RunGraph:
        """Return the graph that the run began with."""
        if not self.graph.is_file():
            raise ValueError(f"{self.graph} is missing: the rows of the tables have no names")
        return RunGraph.load(self.graph)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result of the run."""
        text = json.dumps(result, indent=2) + "\n"
        write_whole(self.result, lambda fresh: fresh.write_text(text), lasting=True)

    def read_result(self) -> dict[str, Any]:
        """Read the result of the run; a FileNotFoundError says that the run has not ended."""
        if not self.result.is_file():
            raise FileNotFoundError(f"{self.result}: the run has not ended")
        with reading(self.result, "not the result of a run"):
            result: dict[str, Any] = dict(json.loads(self.result.read_text(encoding="utf-8")))
            numbers = {name: result.get(name) for name in ("steps", "best_step")}
            numbers["seconds_training"] = result.get("seconds_training")
            numbers["mrr of test"] = dict(result.get("test") or {}).get("mrr")
            for name, value in numbers.items():
                if not is_number(value):
                    raise ValueError(f"{name} must be a finite number; got {shown(value)}")
            return result

"""The folder of a run: files, and the treatment of broken files."""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from kgfast.locks import locked
from kgfast.text import reading, shown
from kgfast.training.checkpoint import Room, Stored, load, save
from kgfast.training.config import Config
from kgfast.training.logs import is_number
from kgfast.training.run_graph import RunGraph
from kgfast.training.shard_files import FOLDER, ShardFiles, drop_unused, names_of_rows
from kgfast.whole_files import set_aside, sync, write_durably


class RunFolder:
    """The files of a run.

    ========================  ============================================================
    ``config.yaml``           the config, all values
    ``graph.safetensors``     names and triples: see :class:`kgfast.training.RunGraph`
    ``metrics.jsonl, .csv``   see :mod:`kgfast.training.logs`
    ``last.safetensors``      the newest state: where a run resumes
    ``previous.safetensors``  the state before it
    ``best.safetensors``      the best state by ``train.save_best_metric``
    ``step_<n>.safetensors``  copies of states (``train.keep``)
    ``model_<n>.safetensors`` models without optimizer state (``train.keep_every``)
    ``result.json``           the result, written at the end
    ``shards/``               rows of states that several processes saved
    ``.lock``                 the process that writes the run: see :func:`kgfast.locks.locked`
    ``<name>.broken``         an unreadable file or folder that stood in the way of a new file
    ========================  ============================================================

    Parameters
    ----------
    path
        The folder; made when something is first written.

    Attributes
    ----------
    rows : pair of int
        ``(first, step)``: states are read with rows ``first, first + step, ...`` of the entities.
    room : callable, optional
        Allocates the float32 tensors of states that are read, for tables larger than memory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.rows = (0, 1)
        self.room: Room | None = None
        self.next = self.path / "next.safetensors"
        self.last = self.path / "last.safetensors"
        self.previous = self.path / "previous.safetensors"
        self.best = self.path / "best.safetensors"
        self.config = self.path / "config.yaml"
        self.graph = self.path / "graph.safetensors"
        self.result = self.path / "result.json"
        # Paths of states, the newest first; ``next`` exists only after a kill during a save.
        self._states = (self.next, self.last, self.previous)
        self._broken: set[Path] = set()
        self._read: Path | None = None  # the newest state, once read

    def locked(self) -> AbstractContextManager[None]:
        """Lock the run for writing; raise a ValueError that names the process that holds it."""
        self._make()
        return locked(self.path)

    def holds_a_run(self) -> bool:
        """Return whether there is a state to resume, or a result."""
        return any(path.exists() for path in (*self._states, self.result))

    def save_last(self, stored: Stored, keep: int = 0) -> None:
        """Write the newest state; the former one becomes ``previous``, unless it was broken.

        With ``keep``, copy the state to ``step_<n>`` and delete all but the newest ``keep`` copies.
        """
        self._make()
        for path in self._states:
            if path.is_dir() or (path in self._broken and path.exists()):
                set_aside(path)
        self._broken.clear()
        save(self.next, *stored)
        self._put_in_place(stored[1]["step"], keep)

    def finish_save(self, step: int, keep: int = 0) -> None:
        """Finish a save that a kill cut short, if :meth:`load_last` read the state of that save.

        ``step`` is that of the state. The caller has held the lock since reading the state.
        """
        if self._read == self.next:
            self._put_in_place(step, keep)

    def _put_in_place(self, step: int, keep: int) -> None:
        """Copy ``next`` if ``keep``, then rename ``next`` to ``last``: the rename ends a save."""
        if keep:
            copy = self.path / f"step_{step}.safetensors"
            write_durably(copy, partial(shutil.copyfile, self.next), "a checkpoint")
            self._clear("step")
            for path in self._numbered("step")[:-keep]:
                path.unlink()
        if self.last.exists():
            os.replace(self.last, self.previous)
        os.replace(self.next, self.last)
        sync(self.path)
        self._drop_rows(step)

    def save_best(self, stored: Stored) -> None:
        """Write the best state."""
        self._make()
        save(self.best, *stored)
        self._drop_rows(stored[1]["step"])

    def save_model(self, stored: Stored) -> None:
        """Write ``model_<n>``, ``n`` being the step of the meta."""
        self._make()
        save(self.path / f"model_{stored[1]['step']}.safetensors", *stored)
        self._clear("model")

    def _drop_rows(self, step: int) -> None:
        """Delete the rows of states that are gone; ``step`` is that of the newest state."""
        heads = [*self._states, self.best, *self._numbered("step"), *self.models()]
        drop_unused(self.path, [head for head in heads if head.is_file()], step)

    def load(self, path: Path) -> Stored:
        """Read a state with all rows, saved by any number of processes.

        Errors are those of :func:`kgfast.training.checkpoint.load`.
        """
        tensors, meta = load(path, self.room)
        shards, (first, step) = ShardFiles.of(meta), self.rows
        if shards is not None:
            return tensors | shards.read_rows(self.path, first, step, self.room), meta
        if step > 1:
            for name in names_of_rows(tensors):
                tensors[name] = tensors[name][first::step].clone()
        return tensors, meta

    def drop_states(self) -> None:
        """Delete every file of tensors; the config, the logs and the result stay."""
        for path in [*self.path.glob("*.safetensors"), *(self.path / FOLDER).glob("*.safetensors")]:
            path.unlink()

    def models(self) -> list[Path]:
        """Return the paths of every ``model_<n>``, sorted by step."""
        return self._numbered("model")

    def _numbered(self, kind: str, suffix: str = "") -> list[Path]:
        """Return paths named ``<kind>_<n>.safetensors`` and a suffix, sorted by ``n``."""
        pattern = re.compile(rf"{kind}_(\d+)\.safetensors{re.escape(suffix)}")
        paths = self.path.iterdir() if self.path.is_dir() else ()
        steps = {path: int(it[1]) for path in paths if (it := pattern.fullmatch(path.name))}
        return sorted(steps, key=steps.__getitem__)

    def _clear(self, kind: str) -> None:
        for path in self._numbered(kind, ".tmp"):
            shutil.rmtree(path)

    def load_last(self, check: Callable[[Stored], object] = lambda stored: None) -> Stored | None:
        """Return the newest readable state, or None if nothing was saved yet.

        ``check`` raises a ValueError for a state that the run cannot resume from. Such a state is
        skipped like an unreadable one: the state before is read, with a warning. A ValueError says
        that there are states and none can be read.
        """
        broken: list[str] = []
        for path in self._states:
            try:
                stored = self.load(path)
                with reading(path, "not a state of this run"):
                    check(stored)
            except FileNotFoundError:  # there is none, or the writer has just renamed the file
                continue
            except ValueError as error:
                broken.append(str(error))
                self._broken.add(path)
                continue
            if broken:
                warnings.warn(f"{'; '.join(broken)}; resuming from {path}", stacklevel=2)
            self._read = path
            return stored
        if broken:
            raise ValueError("; ".join(broken))
        return None

    def load_best(self) -> Stored:
        """Return the best state, or the last where no evaluation chose one."""
        try:
            return self.load(self.best)
        except FileNotFoundError:
            pass
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
        self._make()
        write_durably(self.config, config.to_yaml, "the config")

    def write_graph(self, graph: RunGraph) -> None:
        """Write the names and triples that the run began with."""
        self._make()
        graph.save(self.graph)

    def load_graph(self) -> RunGraph:
        """Return the graph that the run began with."""
        if not self.graph.is_file():
            raise ValueError(f"{self.graph} is missing: the rows of the tables have no names")
        return RunGraph.load(self.graph)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result of the run."""
        text = json.dumps(result, indent=2) + "\n"
        self._make()
        write_durably(self.result, lambda fresh: fresh.write_text(text), "the result")

    def read_result(self) -> dict[str, Any]:
        """Read the result of the run; a FileNotFoundError says that the run has not ended."""
        if not self.result.is_file():
            raise FileNotFoundError(f"{self.result}: the run has not ended")
        with reading(self.result, "not the result of a run"):
            result: dict[str, Any] = dict(json.loads(self.result.read_text(encoding="utf-8")))
            numbers = {it: result.get(it) for it in ("steps", "best_step", "seconds_training")}
            numbers["mrr of test"] = dict(result.get("test") or {}).get("mrr")
            for name, value in numbers.items():
                if not is_number(value):
                    raise ValueError(f"{name} must be a finite number; got {shown(value)}")
            return result

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

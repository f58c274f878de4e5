"""The folder of a run: which file is what, and how one that is broken costs no more than itself."""

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

from torch import Tensor

from kgfast.locks import locked
from kgfast.text import reading, shown
from kgfast.training.checkpoint import Room, State, load, save
from kgfast.training.config import Config
from kgfast.training.logs import is_number
from kgfast.training.run_graph import RunGraph
from kgfast.training.shard_files import FOLDER, ShardFiles, drop_unused, names_of_rows
from kgfast.whole_files import set_aside, sync, write_durably


class RunFolder:
    """The files of a run.

    ========================  ============================================================
    ``config.yaml``           the config, all values
    ``graph.safetensors``     names and triples: see :class:`~kgfast.training.run_graph.RunGraph`
    ``metrics.jsonl, .csv``   see :mod:`kgfast.training.logs`
    ``last.safetensors``      the newest state: where a run resumes
    ``previous.safetensors``  the one before
    ``best.safetensors``      the best by ``train.save_best_metric``
    ``step_<n>.safetensors``  copies that ``train.keep`` asks for
    ``model_<n>.safetensors`` models that ``train.keep_every`` asks for, nothing to resume from
    ``result.json``           written at the end
    ``shards/``               rows that the states of several processes do not hold themselves:
                              see :mod:`kgfast.training.shard_files`
    ``.lock``                 who writes the run: see :func:`~kgfast.locks.locked`
    ``<name>.broken``         what stood in the way of a file and could not be read
    ========================  ============================================================

    Parameters
    ----------
    path
        Made when something is first written.

    Attributes
    ----------
    rows : pair of int
        ``(first, step)``: states are read with rows ``first, first + step, ...`` of the entities.
    room : callable, optional
        Makes the float32 tensors of states that are read, where memory has no room for them.
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
        self._broken: set[Path] = set()
        self._read: Path | None = None  # the newest state, when it was read

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock that a process needs to write the run; an error names who holds it."""
        self._make()
        return locked(self.path)

    def holds_a_run(self) -> bool:
        """Whether there is a state to resume, or a result that a new run would overwrite."""
        return any(path.exists() for path in (*self._states, self.result))

    @property
    def _states(self) -> tuple[Path, ...]:
        """Where a state may be, the newest first; ``next`` only if a kill fell into its save."""
        return self.next, self.last, self.previous

    def save_last(
        self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], keep: int = 0
    ) -> None:
        """Write the newest state; the former one becomes ``previous``, unless it was broken.

        With ``keep``, ``step_<n>`` is a copy, and all but the newest ``keep`` copies are deleted.
        """
        self._make()
        for path in self._states:
            if path.is_dir() or (path in self._broken and path.exists()):
                set_aside(path)
        self._broken.clear()
        save(self.next, tensors, meta)
        self._put_in_place(meta, keep)

    def finish_save(self, meta: Mapping[str, Any], keep: int = 0) -> None:
        """Finish the save that a kill left before its end, if the state that was read is of one.

        Parameters
        ----------
        meta : mapping
            Of the state that :meth:`load_last` read; the caller holds the lock since.
        keep : int
            As :meth:`save_last` takes it.
        """
        if self._read == self.next:
            self._put_in_place(meta, keep)

    def _put_in_place(self, meta: Mapping[str, Any], keep: int) -> None:
        """Make ``next`` the last state, as the end of all that is to be done with it."""
        if keep:
            copy = self.path / f"step_{meta['step']}.safetensors"
            write_durably(copy, partial(shutil.copyfile, self.next), "a checkpoint")
            self._clear("step")
            for path in self._numbered("step")[:-keep]:
                path.unlink()
        if self.last.exists():
            os.replace(self.last, self.previous)
        os.replace(self.next, self.last)
        sync(self.path)
        self._drop_rows(meta)

    def save_best(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write the best state."""
        self._make()
        save(self.best, tensors, meta)
        self._drop_rows(meta)

    def save_model(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write ``model_<n>``; all of them are kept."""
        self._make()
        save(self.path / f"model_{step}.safetensors", tensors, meta)
        self._clear("model")

    def _drop_rows(self, meta: Mapping[str, Any]) -> None:
        """Delete the rows of states that are gone; ``meta`` is that of the newest."""
        heads = [*self._states, self.best, *self._numbered("step"), *self.models()]
        drop_unused(self.path, [head for head in heads if head.is_file()], int(meta["step"]))

    def load(self, path: Path) -> State:
        """A state, with its rows, whoever saved them.

        Raises
        ------
        FileNotFoundError, ValueError
            As of :func:`kgfast.training.checkpoint.load`; where files of rows are missing.
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
        """Delete all that holds tensors: what is left is the config, the log and the result."""
        for path in [*self.path.glob("*.safetensors"), *(self.path / FOLDER).glob("*.safetensors")]:
            path.unlink()

    def models(self) -> list[Path]:
        """Return every ``model_<n>``, by its step; nothing is written."""
        return self._numbered("model")

    def _numbered(self, kind: str, suffix: str = "") -> list[Path]:
        """Return what is named ``<kind>_<n>.safetensors`` and a suffix, by its step."""
        pattern = re.compile(rf"{kind}_(\d+)\.safetensors{re.escape(suffix)}")
        paths = self.path.iterdir() if self.path.is_dir() else ()
        steps = {path: int(it[1]) for path in paths if (it := pattern.fullmatch(path.name))}
        return sorted(steps, key=steps.__getitem__)

    def _clear(self, kind: str) -> None:
        """Delete what a kill left of files of a kind that were being written."""
        for path in self._numbered(kind, ".tmp"):
            shutil.rmtree(path)

    def load_last(self, check: Callable[[State], object] | None = None) -> State | None:
        """The newest state that can be read; None if nothing was saved yet.

        Parameters
        ----------
        check : callable, optional
            Raises ValueError for a state that cannot be gone on with; the one before is taken then,
            as for one that cannot be read, with a warning that says what is wrong.

        Raises
        ------
        ValueError
            If there are states and none can be read.
        """
        broken: list[str] = []
        for path in self._states:
            try:
                state = self.load(path)
            except FileNotFoundError:  # there is none, or it was renamed just now
                continue
            except ValueError as error:
                broken.append(str(error))
                self._broken.add(path)
                continue
            try:
                if check is not None:
                    check(state)
            except ValueError as error:
                broken.append(f"{path}: {error}")
                self._broken.add(path)
                continue
            if broken:
                warnings.warn(f"{'; '.join(broken)}; resuming from {path}", stacklevel=2)
            self._read = path
            return state
        if broken:
            raise ValueError("; ".join(broken))
        return None

    def load_best(self) -> State:
        """The best state, or the last where no evaluation chose one.

        Raises
        ------
        FileNotFoundError
            If there is neither.
        ValueError
            If it cannot be read.
        """
        try:
            return self.load(self.best)
        except FileNotFoundError:
            pass
        state = self.load_last()
        if state is None:
            raise FileNotFoundError(f"{self.path} holds no checkpoint")
        return state

    def read_config(self, overrides: Sequence[str] | None = None) -> Config:
        """Read the config of the run, with keys changed as :meth:`Config.from_yaml` changes them.

        Raises
        ------
        FileNotFoundError
            If the folder is not that of a run.
        ValueError
            If the config is malformed.
        """
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path}: no such folder")
        if not self.config.is_file():
            raise FileNotFoundError(f"{self.path}: not the folder of a run: it has no config.yaml")
        return Config.from_yaml(self.config, overrides)

    def write_config(self, config: Config) -> None:
        """Write the config of the run."""
        self._make()
        write_durably(self.config, config.to_yaml, "the config")

    def write_graph(self, graph: RunGraph) -> None:
        """Write the names and triples that the run began with."""
        self._make()
        graph.save(self.graph)

    def load_graph(self) -> RunGraph | None:
        """The names and triples that the run began with; None of a run of an earlier kgfast.

        Raises
        ------
        ValueError
            If they cannot be read.
        """
        try:
            return RunGraph.load(self.graph)
        except FileNotFoundError:
            return None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what came of the run."""
        text = json.dumps(result, indent=2) + "\n"
        self._make()
        write_durably(self.result, lambda fresh: fresh.write_text(text), "the result")

    def read_result(self) -> dict[str, Any]:
        """What came of the run.

        Raises
        ------
        FileNotFoundError
            If it has not ended.
        ValueError
            If the file is not JSON.
        """
        if not self.result.is_file():
            raise FileNotFoundError(f"{self.result}: the run has not ended")
        with reading(self.result, "not the result of a run"):
            result: dict[str, Any] = dict(json.loads(self.result.read_text(encoding="utf-8")))
            test = result.get("test") or {}
            numbers = {it: result.get(it) for it in ("steps", "best_step", "seconds_training")}
            for name, value in {**numbers, "mrr of test": dict(test).get("mrr")}.items():
                if not is_number(value):
                    raise ValueError(f"{name} must be a finite number; got {shown(value)}")
            return result

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

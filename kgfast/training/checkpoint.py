"""Checkpoints that survive a kill at any moment, in a format that runs no code when it is read.

One safetensors file holds the tensors and, as JSON in its header, everything else. It is written
beside its place, brought to the disk and renamed, so what stands under a name is always complete.
"""

import errno
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

VERSION = 1
_KEY = "kgfast"
_STEP = re.compile(r"step_(?P<step>\d+)\.safetensors(?P<scratch>\.tmp)?")

State = tuple[dict[str, Tensor], dict[str, Any]]


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write a checkpoint; whatever stands under the path stays whole until the new one is.

    Parameters
    ----------
    path
        Of the file; a temporary folder is made beside it.
    tensors : mapping of str to Tensor
        Of any dtype and device. Contiguous ones on the CPU are not copied.
    meta : mapping
        What JSON can hold.

    Raises
    ------
    OSError
        If it cannot be written, a full disk for example: names the path; the old file is intact.
    TypeError
        If JSON cannot hold ``meta``.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", {"x": torch.ones(2)}, {"step": 3})
    ...     load(f"{folder}/a.safetensors")
    ({'x': tensor([1., 1.])}, {'step': 3})
    """
    path = Path(path)
    header = {_KEY: json.dumps({"version": VERSION, "meta": meta})}
    rows = _apart(tensors)
    _replace(path, lambda temporary: save_file(rows, temporary, header))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each in a storage of its own, as the format wants them."""
    rows: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        row = tensor.detach().contiguous()
        storage = row.untyped_storage().data_ptr()
        rows[name] = row.clone() if storage and storage in storages else row
        storages.add(storage)
    return rows


def load(path: str | os.PathLike[str]) -> State:
    """Read a checkpoint: its tensors, on the CPU, and its meta.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If the file is truncated, not a checkpoint of kgfast, or of a later version; names the path.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            meta = _meta(path, file.metadata())
            return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118, no dict
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None


def _meta(path: Path, header: Mapping[str, str] | None) -> dict[str, Any]:
    try:
        found = json.loads((header or {})[_KEY])
        version, meta = found["version"], found["meta"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: a safetensors file, but not a checkpoint of kgfast") from None
    if version > VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads up to {VERSION}: update it"
        )
    return dict(meta)


class RunFolder:
    """The files of a run.

    ========================  ============================================================
    ``config.yaml``           the config, all values
    ``metrics.jsonl, .csv``   see :mod:`kgfast.training.logs`
    ``last.safetensors``      the newest state: where a run resumes
    ``previous.safetensors``  the one before
    ``best.safetensors``      the best by ``train.save_best_metric``
    ``step_<n>.safetensors``  copies that ``train.keep`` asks for
    ``result.json``           written at the end
    ========================  ============================================================

    Parameters
    ----------
    path
        Made when something is first written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.next = self.path / "next.safetensors"
        self.last = self.path / "last.safetensors"
        self.previous = self.path / "previous.safetensors"
        self.best = self.path / "best.safetensors"
        self.config = self.path / "config.yaml"
        self.result = self.path / "result.json"

    def holds_a_run(self) -> bool:
        """Whether there is a state to resume, or a result that a new run would overwrite."""
        return any(it.exists() for it in (*self._states, self.result))

    @property
    def _states(self) -> tuple[Path, ...]:
        """Where a state may be, the newest first; ``next`` only if a kill fell between renames."""
        return self.next, self.last, self.previous

    def save_last(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write the newest state; the former one becomes ``previous``."""
        self._make()
        save(self.next, tensors, meta)
        if self.last.exists():
            os.replace(self.last, self.previous)
        os.replace(self.next, self.last)
        _sync(self.path)

    def save_best(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Write the best state."""
        self._make()
        save(self.best, tensors, meta)

    def save_step(
        self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], keep: int
    ) -> None:
        """Write ``step_<n>`` and delete all but the newest ``keep`` of them."""
        self._make()
        save(self.path / f"step_{step}.safetensors", tensors, meta)
        found = [match for it in self.path.iterdir() if (match := _STEP.fullmatch(it.name))]
        whole = sorted((it for it in found if not it["scratch"]), key=lambda it: int(it["step"]))
        for match in whole[: max(0, len(whole) - keep)]:
            (self.path / match[0]).unlink()
        for match in found:
            if match["scratch"]:  # a kill left it
                shutil.rmtree(self.path / match[0])

    def load_last(self) -> State | None:
        """The newest state that can be read; None if nothing was saved yet.

        Raises
        ------
        ValueError
            If there are states and none can be read.
        """
        broken: list[str] = []
        for path in self._states:
            if not path.exists():
                continue
            try:
                state = load(path)
            except ValueError as error:
                broken.append(str(error))
                continue
            if broken:
                warnings.warn(f"{broken[0]}; resuming from {path}", stacklevel=2)
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
        if self.best.exists():
            return load(self.best)
        state = self.load_last()
        if state is None:
            raise FileNotFoundError(f"{self.path} holds no checkpoint")
        return state

    def write_config(self, config: Any) -> None:
        """Write the :class:`~kgfast.training.config.Config` of the run."""
        self._make()
        _replace(self.config, config.to_yaml)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what came of the run."""
        text = json.dumps(result, indent=2) + "\n"
        self._make()
        _replace(self.result, lambda temporary: _write(temporary, text))

    def read_result(self) -> dict[str, Any]:
        """What came of the run.

        Raises
        ------
        FileNotFoundError
            If it has not ended.
        """
        if not self.result.is_file():
            raise FileNotFoundError(f"{self.result}: the run has not ended")
        return dict(json.loads(self.result.read_text()))

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, bring it to the disk, rename it.

    It is written in a folder of its own: safetensors makes temporary files, which a kill leaves,
    and makes them readable by their owner alone. The next write clears what is left.
    """
    scratch = path.with_name(path.name + ".tmp")
    fresh = scratch / path.name
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        fresh.touch()
        mode = fresh.stat().st_mode
        write(fresh)
        fresh.chmod(mode)
        _sync(fresh)
        os.replace(fresh, path)
    except (OSError, SafetensorError) as error:
        raise _os_error(error, path) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _sync(path.parent)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _sync(path: Path) -> None:
    """Bring a file or the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _os_error(error: Exception, path: Path) -> OSError:
    """The failure as an OSError about the path: safetensors has its own class."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        found = re.search(r"os error (\d+)|code: (\d+)", str(error))
        number = int(found[1] or found[2]) if found else errno.EIO
    reason = os.strerror(number) if number != errno.EIO else str(error)
    return OSError(number, f"cannot write a checkpoint: {reason}; the old one is intact", str(path))

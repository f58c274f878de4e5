"""Checkpoints of a sharded table: a head, and a file of rows per process.

The head is a checkpoint without the rows. The meta of the head names the files of rows, which are
written first. So a state is complete once its head is complete. Any number of processes can read
the rows again.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError
from torch import Tensor

from kgfast.training.checkpoint import Room, Stored, blocks, load_meta, new_table, save

FOLDER = "shards"
Kind = Literal["state", "model"]


class ShardFiles(BaseModel):
    """Files of rows: entity ``id`` is row ``id // size`` of file ``id % size``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    kind: Kind  # with or without the optimizer's state
    step: NonNegativeInt
    size: PositiveInt  # number of processes, hence of files
    total: NonNegativeInt  # number of entities
    names: list[str]  # tensors whose rows the files hold

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self | None:
        """Return the files that the meta of a head names; None if the head holds all rows."""
        values = meta.get(FOLDER)
        try:
            return None if values is None else cls.model_validate(values)
        except ValidationError:
            raise ValueError(
                f"{FOLDER} must say which files hold rows; got {values!r:.60}"
            ) from None

    @classmethod
    def apart(
        cls, kind: Kind, stored: Stored, size: int, total: int
    ) -> tuple[Self, dict[str, Tensor]]:
        """Take the rows of a process out of a state, and name their files in the meta."""
        tensors, meta = stored
        names = names_of_rows(tensors)
        shards = cls(kind=kind, step=meta["step"], size=size, total=total, names=names)
        meta[FOLDER] = shards.model_dump()
        return shards, {name: tensors.pop(name) for name in names}

    def path(self, folder: Path, rank: int) -> Path:
        """Return the file of a process."""
        name = f"{self.kind}_{self.step}.{rank}-of-{self.size}.safetensors"
        return folder / FOLDER / name

    def save_rows(self, folder: Path, rank: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the rows of a process."""
        path = self.path(folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, tensors, {"rank": rank, **self.model_dump()})

    def read_rows(
        self, folder: Path, first: int = 0, step: int = 1, room: Room | None = None
    ) -> dict[str, Tensor]:
        """Read rows ``first, first + step, ...`` of the tensors from all files, block by block."""
        tensors: dict[str, Tensor] = {}
        count = len(range(first, self.total, step))
        for rank in range(self.size):
            path = self.path(folder, rank)
            if not path.is_file():
                raise ValueError(f"{path}, with rows of this checkpoint, is missing")
            if load_meta(path) != {"rank": rank, **self.model_dump()}:
                raise ValueError(f"{path}: not of this checkpoint")
            for name, shape, start, block in blocks(path):
                ids = rank + self.size * torch.arange(
                    start, start + len(block), dtype=torch.int64, device="cpu"
                )
                wanted = (ids % step == first).nonzero()[:, 0]
                if name not in tensors:
                    tensors[name] = new_table(block, [count, *shape[1:]], room)
                tensors[name].index_copy_(0, ids[wanted] // step, block[wanted])
        if sorted(tensors) != sorted(self.names):
            raise ValueError(f"{self.path(folder, 0)}: the tensors are not those of the checkpoint")
        return tensors


def names_of_rows(tensors: Iterable[str]) -> list[str]:
    """Return the names of the tensors of a state that have a row for each entity.

    Examples
    --------
    >>> names_of_rows(["model.inner.entity", "model.inner.relation", "optim.inner.entity.step",
    ...                "optim.inner.entity.exp_avg"])
    ['model.inner.entity', 'optim.inner.entity.exp_avg']
    """
    names = list(tensors)
    models = (name.removeprefix("model.") for name in names if name.startswith("model."))
    table = next(name for name in models if f".{name}".endswith(".entity"))
    of_optimizer = f"optim.{table}."
    return [
        name
        for name in names
        if name == f"model.{table}" or (name.startswith(of_optimizer) and name[-5:] != ".step")
    ]


def drop_unused(folder: Path, heads: Iterable[Path], before: int) -> None:
    """Delete files of rows of steps before ``before`` that no head names.

    Later files stay: other processes may be writing them for the next head.
    """
    if not (folder / FOLDER).is_dir():
        return
    kept: set[Path] = set()
    for head in heads:
        try:
            shards = ShardFiles.of(load_meta(head))
        except (OSError, ValueError):
            return  # the meta may name any file
        if shards is not None:
            kept |= {shards.path(folder, rank) for rank in range(shards.size)}
    for path in (folder / FOLDER).glob("*.safetensors"):
        step = path.name.partition("_")[2].partition(".")[0]
        if path not in kept and step.isdecimal() and int(step) < before:
            path.unlink(missing_ok=True)

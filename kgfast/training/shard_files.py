"""Checkpoints of a table that several processes hold: a head, and a file of rows of each process.

The head is a checkpoint like any other, without the rows; its meta names their files, which are
written before it. So the head is what makes a state whole, or leaves the one before it in place.
Rows are put together again for any number of processes, one included.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.training.checkpoint import Room, blocks, load_meta, save

FOLDER = "shards"


@dataclass(frozen=True)
class ShardFiles:
    """The files that hold rows of a state.

    Attributes
    ----------
    kind : {"state", "model"}
        With or without what optimizers remember.
    step : int
    size : int
        Processes, each with a file: entity ``id`` is row ``id // size`` of file ``id % size``.
    total : int
        Entities.
    names : list of str
        The tensors whose rows they hold.
    """

    kind: str
    step: int
    size: int
    total: int
    names: list[str]

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> "ShardFiles | None":
        """Those that the meta of a head names; None of a checkpoint that holds its rows itself.

        Raises
        ------
        ValueError
            If it is not what :meth:`to_dict` makes.
        """
        values = meta.get(FOLDER)
        if values is None:
            return None
        try:
            shards = cls(**values)
            numbers = (shards.step, shards.size, shards.total)
            names_are_text = all(isinstance(name, str) for name in shards.names)
            if shards.kind not in ("state", "model") or not names_are_text:
                raise TypeError
            if any(type(number) is not int or number < 0 for number in numbers) or not shards.size:
                raise TypeError
        except TypeError:
            raise ValueError(
                f"{FOLDER} must say which files hold rows; got {values!r:.60}"
            ) from None
        return shards

    @staticmethod
    def names_of(tensors: Iterable[str], table: str) -> list[str]:
        """Which of the tensors of a state have rows, of a model whose table has this name."""
        own = (f"model.{table}", f"optim.{table}.")
        return [
            name
            for name in tensors
            if name == own[0] or (name.startswith(own[1]) and not name.endswith(".step"))
        ]

    def to_dict(self) -> dict[str, Any]:
        """What the meta of a head holds."""
        return asdict(self)

    def path(self, folder: Path, rank: int) -> Path:
        """The file of a process."""
        name = f"{self.kind}_{self.step}.{rank}-of-{self.size}.safetensors"
        return folder / FOLDER / name

    def count(self, rank: int) -> int:
        """Rows of a process's file."""
        return len(range(rank, self.total, self.size))


def table_of(tensors: Iterable[str]) -> str:
    """The name of the entity table, among the tensors of a state.

    Examples
    --------
    >>> table_of(["model.model.entity", "model.model.relation", "optim.model.entity.exp_avg"])
    'model.entity'
    """
    names = (name.removeprefix("model.") for name in tensors if name.startswith("model."))
    return next(name for name in names if f".{name}".endswith(".entity"))


def save_rows(folder: Path, shards: ShardFiles, rank: int, tensors: Mapping[str, Tensor]) -> None:
    """Write the rows of a process.

    Raises
    ------
    OSError
        As of :func:`kgfast.training.checkpoint.save`.
    """
    path = shards.path(folder, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, tensors, {"rank": rank, **shards.to_dict()})


def read_rows(
    folder: Path, shards: ShardFiles, first: int = 0, step: int = 1, room: Room | None = None
) -> dict[str, Tensor]:
    """Rows ``first, first + step, ...`` of the tensors, whoever held them when they were saved.

    Files are read a block at a time: no more is held than what is returned, and a block. ``room``
    makes the float32 tensors.

    Raises
    ------
    ValueError
        If a file is missing, damaged, or another's; names it.
    """
    tensors: dict[str, Tensor] = {}
    count = len(range(first, shards.total, step))
    for rank in range(shards.size):
        path = shards.path(folder, rank)
        if not path.is_file():
            raise ValueError(f"{path} is missing: it holds rows of this checkpoint")
        if load_meta(path) != {"rank": rank, **shards.to_dict()}:
            raise ValueError(f"{path}: not of this checkpoint")
        for name, shape, start, block in blocks(path):
            ids = rank + shards.size * torch.arange(
                start, start + len(block), dtype=torch.int64, device="cpu"
            )
            wanted = (ids % step == first).nonzero()[:, 0]
            if name not in tensors:
                own = [count, *shape[1:]]
                makes = room if block.dtype == torch.float32 else None
                tensors[name] = makes(own) if makes else block.new_empty(own)
            tensors[name].index_copy_(0, ids[wanted] // step, block[wanted])
    if sorted(tensors) != sorted(shards.names):
        raise ValueError(f"{shards.path(folder, 0)}: its tensors are not those of the checkpoint")
    return tensors


def drop_unused(folder: Path, heads: Iterable[Path], before: int) -> None:
    """Delete files of rows before a step that no head names any more.

    Those of the step itself, or later ones, other processes may be writing for the next head.
    """
    if not (folder / FOLDER).is_dir():
        return
    kept: set[Path] = set()
    for head in heads:
        try:
            shards = ShardFiles.of(load_meta(head))
        except (OSError, ValueError):
            return  # nobody knows what it needs
        if shards is not None:
            kept |= {shards.path(folder, rank) for rank in range(shards.size)}
    for path in (folder / FOLDER).glob("*.safetensors"):
        step = path.name.partition("_")[2].partition(".")[0]
        if path not in kept and step.isdecimal() and int(step) < before:
            path.unlink(missing_ok=True)

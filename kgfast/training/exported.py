"""Folders of tables: what ``kgfast export`` writes, read back; and those of the official code."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open
from torch import Tensor

from kgfast import tables
from kgfast.graph import Vocabulary
from kgfast.models import CP, RESCAL, ComplEx, DistMult, Reciprocal, RotatE, TransE
from kgfast.models.tables import from_array
from kgfast.text import reading, shown
from kgfast.training.official import load_official

_OPTIONS = {
    "RotatE": ("gamma", "layout", "relation_format", "norm"),
    "TransE": ("gamma",),
    "DistMult": (),
    "ComplEx": ("layout",),
    "CP": (),
    "RESCAL": (),
}
_CLASSES = {it.__name__: it for it in (RotatE, TransE, DistMult, ComplEx, CP, RESCAL)}


class Tables(NamedTuple):
    """A model, and the names of its rows where the folder has them."""

    model: Any
    vocabulary: tuple[Vocabulary | None, Vocabulary | None]


def load_tables(folder: str | os.PathLike[str], *, as_table: bool = False) -> Tables:
    """Load a folder of tables: ``entity.npy`` and ``relation.npy``, or ``model.safetensors``.

    Its ``config.json`` says how to score with them, as :func:`export_run` writes it for ``npy`` and
    ``safetensors``, and ``kgfast convert`` for models of other libraries; of another one
    :func:`kgfast.load_official` is asked. With ``as_table``, entities are a
    :class:`kgfast.tables.Table`, read in blocks.

    Raises
    ------
    FileNotFoundError
        If it holds no tables.
    ValueError
        If a file cannot be read or the tables do not fit config.json, and for models around others
        (MED, RSCF), whose run has to be loaded; names the file.
    """
    folder = Path(folder)
    with reading(folder, "cannot be loaded"):
        return _loaded(folder, as_table)


def _loaded(folder: Path, as_table: bool) -> Tables:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is neither a run nor a folder of tables: it has no config.json"
        )
    with reading(path, "not a JSON object"):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict) or "score" not in config:
        return Tables(load_official(folder, as_table=as_table), (None, None))
    name = config.get("model")
    if not isinstance(name, str) or name not in _CLASSES or config.get("wrappers"):
        around = f" within {shown(config['wrappers'])}" if config.get("wrappers") else ""
        raise ValueError(
            f"{path}: tables of {shown(name)}{around} are no model by themselves, its run is; "
            f"known: {', '.join(_CLASSES)}"
        )
    entity, relation = _tables(folder, as_table)
    options = {key: config[key] for key in _OPTIONS[name] if key in config}
    if name == "TransE":
        options["norm"] = config["score"]
    model: Any = _CLASSES[name](entity, relation, **options)
    for key in ("score", "dim", "num_entities", "num_relations"):
        if getattr(model, key) != config.get(key):
            raise ValueError(
                f"{path}: {key} is {shown(config.get(key))}, of the tables {getattr(model, key)}"
            )
    model.eval()
    if "reciprocal" in config:
        with reading(path, "reciprocal"):
            model = Reciprocal(model, config["reciprocal"])
    return Tables(model, (_names(folder, "entities"), _names(folder, "relations")))


def _tables(folder: Path, as_table: bool) -> tuple[Any, Tensor]:
    if (folder / "model.safetensors").is_file():
        return _of_safetensors(folder / "model.safetensors", as_table)
    if as_table and (folder / "entity.npy").is_file():
        return tables.open(folder / "entity.npy"), _array(folder / "relation.npy")
    entity, relation = (_array(folder / f"{name}.npy") for name in ("entity", "relation"))
    return entity, relation


def _of_safetensors(path: Path, as_table: bool) -> tuple[Any, Tensor]:
    with reading(path, "cannot be read"), safe_open(path, "pt") as file:
        names = set(file.keys())
        if names != {"entity", "relation"}:
            raise ValueError(f"{path}: must hold entity and relation; got {shown(sorted(names))}")
        relation = file.get_tensor("relation")
        entity = None if as_table else file.get_tensor("entity")
    return (tables.open(f"{path}:entity") if as_table else entity), relation


def _array(path: Path) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file, and no model.safetensors beside it")
    with reading(path, "cannot be read"):
        return from_array(path.stem, np.load(path, mmap_mode="r", allow_pickle=False))


def _names(folder: Path, what: str) -> Vocabulary | None:
    path = folder / f"{what}.json"
    if not path.is_file():
        return None
    with reading(path, "not a list of names"):
        return Vocabulary(json.loads(path.read_text(encoding="utf-8")))

"""Folders of tables: what ``kgfast export`` and ``kgfast convert`` write, and how it is read back.

A folder holds ``entity.npy`` and ``relation.npy``, or ``model.safetensors``; ``config.json``, which
says how to score with the tables; and the names in the order of rows, as ``entities.json`` and
``relations.json``.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from kgfast import tables
from kgfast.adapters.foreign import NamedModel, read_npy, read_options
from kgfast.adapters.official_runs import load_official
from kgfast.graph import Vocabulary
from kgfast.models import (
    CP,
    MED,
    RESCAL,
    ComplEx,
    DistMult,
    Model,
    Reciprocal,
    RotatE,
    TransE,
    Wrapper,
)
from kgfast.text import reading, shown

PLAIN = (RotatE, TransE, DistMult, ComplEx, CP, RESCAL)  # models of two tables and no more
_OPTIONS = {
    "RotatE": ("gamma", "layout", "relation_format", "norm"),
    "TransE": ("gamma",),
    "ComplEx": ("layout",),
}
_CLASSES = {it.__name__: it for it in PLAIN}
_WRITTEN = ("gamma", "layout", "relation_format", "norm", "embedding_range")


@contextmanager
def new_folder(out: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder that becomes ``out``, empty or new until then, if nothing is raised."""
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} is there already: name another folder with --out")
    scratch = out.with_name(out.name + ".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        yield scratch
        os.replace(scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def described(model: Model, stored: Model) -> dict[str, Any]:
    """Return the facts by which the tables of ``stored``, the inner part of ``model``, score."""
    wrappers, innermost = [], stored
    while isinstance(innermost, Wrapper):
        wrappers.append(type(innermost).__name__)
        innermost = innermost.model
    order = {it.order for it in model.modules() if isinstance(it, Reciprocal)}
    return {
        "model": type(innermost).__name__,
        "wrappers": wrappers,
        "score": stored.score,
        "dim": stored.dim,
        "num_entities": stored.num_entities,
        "num_relations": stored.num_relations,
        **{key: getattr(innermost, key) for key in _WRITTEN if hasattr(innermost, key)},
        **({"reciprocal": order.pop()} if order else {}),
        **({"dims": model.dims, "crop": model.crop} if isinstance(model, MED) else {}),
    }


def write_state(folder: Path, model: Model) -> None:
    """Write ``model.safetensors``: the whole state dict of a model."""
    state = {name: it.cpu().contiguous().clone() for name, it in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def write_names(folder: Path, names: Sequence[Vocabulary | None]) -> None:
    """Write the names of entities and relations in the order of rows."""
    for what, vocabulary in zip(("entities", "relations"), names, strict=True):
        if vocabulary is not None:
            write_json(folder / f"{what}.json", list(vocabulary))


def write_json(path: Path, value: Any) -> None:
    """Write a value as text that people can read."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def load_tables(folder: str | os.PathLike[str], *, as_table: bool = False) -> NamedModel:
    """Load a folder of tables: ``entity.npy`` and ``relation.npy``, or ``model.safetensors``.

    ``config.json``, as ``kgfast export`` (``npy``, ``safetensors``) and ``kgfast convert`` write
    it, says how to score with them. :func:`kgfast.load_official` reads a folder with another
    ``config.json``. With ``as_table``, entities stay in the file as a :class:`kgfast.tables.Table`.
    A ValueError names the file that cannot be read or does not fit; models around others (MED,
    RSCF) need their run.
    """
    folder = Path(folder)
    with reading(folder, "cannot be loaded"):
        return _loaded(folder, as_table)


def _loaded(folder: Path, as_table: bool) -> NamedModel:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is neither a run nor a folder of tables: it has no config.json"
        )
    config = read_options(path, "")
    if "score" not in config:
        return NamedModel(load_official(folder, as_table=as_table))
    name = config.get("model")
    if not isinstance(name, str) or name not in _CLASSES or config.get("wrappers"):
        around = f" within {shown(config['wrappers'])}" if config.get("wrappers") else ""
        raise ValueError(
            f"{path}: tables of {shown(name)}{around} are no model by themselves, its run is; "
            f"known: {', '.join(_CLASSES)}"
        )
    entity, relation = _tables(folder, as_table)
    options = {key: config[key] for key in _OPTIONS.get(name, ()) if key in config}
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
    return NamedModel(model, (_names(folder, "entities"), _names(folder, "relations")))


def _tables(folder: Path, as_table: bool) -> tuple[Any, Tensor]:
    if (folder / "model.safetensors").is_file():
        return _of_safetensors(folder / "model.safetensors", as_table)
    missing, path = ", and no model.safetensors beside it", folder / "entity.npy"
    entity = read_npy(path, missing, as_table=as_table)
    return entity, read_npy(folder / "relation.npy", missing)


def _of_safetensors(path: Path, as_table: bool) -> tuple[Any, Tensor]:
    with reading(path, "cannot be read"), safe_open(path, "pt") as file:
        names = set(file.keys())
        if names != {"entity", "relation"}:
            raise ValueError(f"{path}: must hold entity and relation; got {shown(sorted(names))}")
        relation = file.get_tensor("relation")
        entity = None if as_table else file.get_tensor("entity")
    return (tables.open(f"{path}:entity") if as_table else entity), relation


def _names(folder: Path, what: str) -> Vocabulary | None:
    path = folder / f"{what}.json"
    if not path.is_file():
        return None
    with reading(path, "not a list of names"):
        return Vocabulary(json.loads(path.read_text(encoding="utf-8")))

"""What DGL-KE trained: its ``config.json`` and memory-mapped ``.npy`` tables, without DGL-KE."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kgfast import tables
from kgfast.models import RESCAL, ComplEx, DistMult, RotatE, TransE, from_array
from kgfast.text import escaped, reading, shown

__all__ = ["load_dglke"]

_NEEDED = ("model_name", "hidden_dim", "dataset")


def load_dglke(folder: str | os.PathLike[str], *, as_table: bool = False) -> Any:
    """Load the tables that DGL-KE saved (``dglke_train``, its ``save_path``).

    Tables are memory-mapped: what is not read is not loaded. Ids are those of ``entities.tsv`` and
    ``relations.tsv`` (or the built-in ``.dict`` files) beside the data, which
    :func:`kgfast.datasets.load` keeps.

    Parameters
    ----------
    folder
        With ``config.json``, ``<dataset>_<model>_entity.npy`` and ``..._relation.npy``.
    as_table : bool
        Entities are a :class:`kgfast.tables.Table`: read in blocks, within ``max_memory`` of
        :func:`kgfast.rank`.

    Returns
    -------
    Model
        RotatE (halves, raw relations in units that gamma sets), TransE, TransE_l1, TransE_l2,
        DistMult, ComplEx, RESCAL.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If config.json cannot be read or lacks a key (of RotatE also ``gamma``, without which its
        relations mean nothing), the model is TransR or SimplE, or a table has another shape.
    """
    with reading(folder, "cannot be loaded"):
        return _loaded(Path(folder), as_table)


def _loaded(folder: Path, as_table: bool) -> Any:
    config = _config(folder / "config.json")
    name = config["model_name"]
    build = _MODELS.get(name)
    if build is None:
        raise ValueError(
            f"{folder / 'config.json'}: model {shown(name)} is not available; known: "
            f"{', '.join(_MODELS)}"
        )
    entity: Any = _table(folder, config, "entity")
    relation = _table(folder, config, "relation")
    dim = config["hidden_dim"]
    doubled = {"entity": bool(config.get("double_ent")), "relation": bool(config.get("double_rel"))}
    widths = {what: dim * (1 + doubled[what]) for what in doubled}
    if name == "RESCAL":
        widths["relation"] *= widths["entity"]
    for what, table in (("entity", entity), ("relation", relation)):
        if table.ndim != 2 or table.shape[1] != widths[what]:
            raise ValueError(
                f"{_path(folder, config, what)}: must have {widths[what]} columns (hidden_dim "
                f"{dim}{', doubled' if doubled[what] else ''}); got shape {list(table.shape)}"
            )
    if as_table:
        entity = tables.open(_path(folder, config, "entity"))
    return build(folder / "config.json", config, entity, relation)


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; DGL-KE writes it beside its tables")
    with reading(path, "not a JSON object"):
        config = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object")
    for key in _NEEDED:
        if key not in config:
            raise ValueError(f"{path}: key {key} is missing")
    for key in ("model_name", "dataset"):
        if not isinstance(config[key], str):
            raise ValueError(f"{path}: {key} must be text; got {shown(config[key])}")
    dim = config["hidden_dim"]
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise ValueError(
            f"{path}: hidden_dim must be a whole number of at least 1; got {shown(dim)}"
        )
    return config


def _path(folder: Path, config: dict[str, Any], what: str) -> Path:
    name = f"{config['dataset']}_{config['model_name']}_{what}.npy"
    if Path(name).name != name or escaped(name) != name:
        raise ValueError(
            f"{folder / 'config.json'}: dataset must be a name; got {shown(config['dataset'])}"
        )
    return folder / name


def _table(folder: Path, config: dict[str, Any], what: str) -> Tensor:
    """A table, mapped."""
    path = _path(folder, config, what)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file (dataset and model_name of config.json)")
    with reading(path, "not a NumPy table"):
        return from_array(path.stem, np.load(path, mmap_mode="r", allow_pickle=False))


def _gamma(path: Path, config: dict[str, Any]) -> float:
    value = config.get("gamma")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{path}: gamma must be a number; got {shown(value)}")
    return float(value)


def _rotate(path: Path, config: dict[str, Any], entity: Any, relation: Tensor) -> RotatE:
    if entity.shape[1] != 2 * relation.shape[1]:
        raise ValueError(
            f"{path}: RotatE has double_ent and not double_rel; got {entity.shape[1]} and "
            f"{relation.shape[1]} columns"
        )
    if entity.shape[1] != 2 * config["hidden_dim"]:
        raise ValueError(f"{path}: RotatE must have double_ent")
    return RotatE(entity, relation, gamma=_gamma(path, config))


def _transe(norm: Any) -> "_Build":
    return lambda path, config, entity, relation: TransE(
        entity, relation, norm=norm, gamma=_gamma(path, config)
    )


_Build = Callable[[Path, dict[str, Any], Any, Tensor], Any]
_MODELS: dict[str, _Build] = {
    "RotatE": _rotate,
    "TransE": _transe("l2"),
    "TransE_l1": _transe("l1"),
    "TransE_l2": _transe("l2"),
    "DistMult": lambda path, config, entity, relation: DistMult(entity, relation),
    "ComplEx": lambda path, config, entity, relation: ComplEx(entity, relation),
    "RESCAL": lambda path, config, entity, relation: RESCAL(entity, relation),
}

"""Checkpoints and packaged models of LibKGE, read without LibKGE and without running anything.

LibKGE pickles the config beside the tensors, which torch refuses to load since 2.6. Here the config
becomes a set of options, and only options and tensors are unpickled.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from kgfast.adapters.foreign import NamedModel, load_weights
from kgfast.graph import Vocabulary
from kgfast.models import CP, RESCAL, ComplEx, DistMult, Reciprocal, RotatE, TransE
from kgfast.text import reading, shown

__all__ = ["load_libkge", "read_libkge"]

_RECIPROCAL = "reciprocal_relations_model"
_PRODUCTS: dict[str, Any] = {"distmult": DistMult, "complex": ComplEx, "rescal": RESCAL, "cp": CP}
_MODELS = ("rotate", "transe", *_PRODUCTS)
_INSTEAD = "load the model with LibKGE, and convert it with kgfast.adapters.libkge.from_libkge"


def load_libkge(checkpoint: str | os.PathLike[str]) -> Any:
    """Load the model of a LibKGE checkpoint (``checkpoint_best.pt``, or from ``kge package``).

    Parameters
    ----------
    checkpoint
        The file.

    Returns
    -------
    Model
        RotatE (phases; ``l_norm`` 1 or 2), TransE (``l_norm`` 1 or 2), DistMult, ComplEx, CP,
        RESCAL; the reciprocal relations model as a :class:`kgfast.Reciprocal`. Ids are those of
        ``entity_ids.del`` and ``relation_ids.del``, which :func:`kgfast.datasets.load` keeps.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is no checkpoint of LibKGE, or has another model: load such a model with LibKGE,
        and convert it with :func:`kgfast.adapters.libkge.from_libkge`.
    """
    return read_libkge(checkpoint).model


def read_libkge(checkpoint: str | os.PathLike[str]) -> NamedModel:
    """Load a checkpoint like :func:`load_libkge`, with the names of packaged models."""
    path = Path(checkpoint)
    with reading(path, "damaged, or not written by LibKGE"):
        return _read(path)


def _read(path: Path) -> NamedModel:
    content = _content(path)
    options, state = content["config"].options, content["model"][0]
    kind = options.get("model")
    is_reciprocal = kind == _RECIPROCAL
    of_kind = _mapping(path, f"options of {shown(kind)}", options.get(kind))
    if is_reciprocal:
        of_kind = _mapping(path, "base_model", of_kind.get("base_model"))
        kind = of_kind.get("type")
    if kind not in _MODELS:
        raise ValueError(
            f"{path}: model {shown(kind)} is not available; known: {', '.join(_MODELS)}: {_INSTEAD}"
        )
    prefix = "_base_model." if is_reciprocal else ""
    entity, relation = (
        _table(path, state, f"{prefix}_{what}_embedder._embeddings.weight")
        for what in ("entity", "relation")
    )
    defaults = _mapping(path, f"options of {kind}", options.get(kind))
    norm = of_kind.get("l_norm", defaults.get("l_norm"))
    if kind in ("rotate", "transe") and norm not in (1, 2):  # another norm makes another model
        raise ValueError(f"{path}: l_norm must be 1 or 2; got {shown(norm)}: {_INSTEAD}")
    model: Any = model_of_tables(kind, norm, entity, relation)
    if is_reciprocal:
        model = Reciprocal(model, order="appended")
    dataset = _mapping(path, "dataset", content.get("dataset"))
    names = _mapping(path, "meta of dataset", dataset.get("meta"))
    vocabulary = (
        _names(path, names, "entity_ids", model.num_entities),
        _names(path, names, "relation_ids", model.num_relations),
    )
    return NamedModel(model, vocabulary)


def _mapping(path: Path, what: str, value: Any) -> Mapping[str, Any]:
    """Return a part of a checkpoint that must be a mapping; a missing part is empty."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: {what} must be a mapping; got {shown(value)}")
    return value


class _Config:
    """Stand-in for ``kge.config.Config`` in a pickle."""

    options: Mapping[str, Any]


def _content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    # A checkpoint of training holds the trace of the last evaluation, with torch's version.
    allowed = [(_Config, "kge.config.Config"), TorchVersion]
    with torch.serialization.safe_globals(cast(Any, allowed)):
        content = load_weights(path)
    is_one = (
        isinstance(content, dict)
        and content.get("type") in ("train", "package")
        and isinstance(getattr(content.get("config"), "options", None), Mapping)
        and isinstance(content.get("model"), tuple)
        and content["model"]
        and isinstance(content["model"][0], Mapping)
    )
    if not is_one:
        raise ValueError(f"{path}: not a checkpoint of a training job or a package of LibKGE")
    return cast(dict[str, Any], content)


def _table(path: Path, state: Mapping[str, Any], name: str) -> Tensor:
    table = state.get(name)
    if not isinstance(table, Tensor) or table.ndim != 2:
        raise ValueError(
            f"{path}: the model has no table {name}: the embedder is no lookup_embedder; {_INSTEAD}"
        )
    return table


def _names(path: Path, meta: Mapping[str, Any], key: str, count: int) -> Vocabulary | None:
    names = meta.get(key)
    if names is None:
        return None
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{path}: {key} must be a list of names; got {shown(names)}")
    if len(names) != count:
        raise ValueError(f"{path}: {len(names)} names in {key}, but {count} rows in the model")
    with reading(path, key):
        return Vocabulary(names)


def model_of_tables(kind: str, norm: Any, entity: Tensor, relation: Tensor) -> Any:
    """Return the model of an equation of LibKGE; None if kgfast has no such model."""
    if kind in _PRODUCTS:
        return _PRODUCTS[kind](entity, relation)
    if kind == "transe" and norm in (1, 2):
        return TransE(entity, relation, norm="l1" if norm == 1 else "l2")
    if kind == "rotate" and norm in (1, 2):  # halves, phases, and the norm of the moduli
        return RotatE(
            entity, relation, relation_format="phase", norm="modulus" if norm == 1 else "l2"
        )
    return None

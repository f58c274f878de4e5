"""Runs of the official RotatE code (github.com/DeepGraphLearning/KnowledgeGraphEmbedding).

Its ``save_model`` writes ``config.json`` (the arguments), ``checkpoint`` (a ``torch.save`` of the
state) and the tables again as ``entity_embedding.npy`` and ``relation_embedding.npy``. Ids are
those of ``entities.dict`` and ``relations.dict``, which :func:`kgfast.datasets.load` keeps.
"""

import json
import math
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kgfast import tables
from kgfast.models import (
    EPSILON,
    SIDES,
    BlockScorer,
    ComplEx,
    DistMult,
    Model,
    RotatE,
    Side,
    TransE,
)
from kgfast.text import reading, shown

_MODELS = ("RotatE", "pRotatE", "TransE", "DistMult", "ComplEx")
_TABLES = ("entity_embedding", "relation_embedding")


def load_official(folder: str | os.PathLike[str], *, as_table: bool = False) -> Model | BlockScorer:
    """Load a run of the official RotatE code.

    The tables come from ``checkpoint``, or from the ``.npy`` files where it is missing. It is read
    with ``weights_only=True``: it can hold tensors, and run nothing.

    Parameters
    ----------
    folder
        Its ``save_path``.
    as_table : bool
        Entities are a :class:`kgfast.tables.Table` in the file: read in blocks, within
        ``max_memory`` of :func:`kgfast.rank`. Not of pRotatE.

    Returns
    -------
    Model
        RotatE with raw relations, TransE with L1 norm, DistMult or ComplEx, to rank or predict
        with; of pRotatE a :class:`kgfast.BlockScorer`. (The phases of pRotatE and of earlier
        versions of that code use 3.14159262 for pi: 1e-8 less.)

    Raises
    ------
    FileNotFoundError
        If config.json is missing, or both kinds of tables are.
    ValueError
        If a file cannot be read, lacks a key, or its shapes are not those of config.json; names it.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = {"model": "TransE", "hidden_dim": 2, "gamma": 6.0}
    ...     _ = Path(folder, "config.json").write_text(json.dumps(config))
    ...     for name, rows in (("entity", 3), ("relation", 1)):
    ...         np.save(f"{folder}/{name}_embedding.npy", np.ones((rows, 2), np.float32))
    ...     load_official(folder)
    TransE(num_entities=3, num_relations=1, dim=2)
    """
    with reading(folder, "cannot be loaded"):
        return _loaded(Path(folder), as_table)


def _loaded(folder: Path, as_table: bool) -> Model | BlockScorer:
    path = folder / "config.json"
    config = _config(path)
    name, dim = config["model"], _count(path, config, "hidden_dim")
    if name not in _MODELS:
        said = name if name.isalnum() else shown(name)
        raise ValueError(f"{path}: model {said:.80} is not available; known: {', '.join(_MODELS)}")
    if as_table and name == "pRotatE":
        raise ValueError(
            f"{path}: pRotatE is scored by a function of its tensors: load it without as_table"
        )
    state, source = _state(folder, as_table=as_table)
    gamma = _number(path, state.get("gamma", config["gamma"]))
    entity, relation = (state[name] for name in _TABLES)
    for what, table in (("entity", entity), ("relation", relation)):
        _check_shape(source, what, table, config, dim)
        _check_rows(source, what, table, _count(path, config, f"n{what}", least=0))
    if name == "RotatE":
        _check_range(source, state, gamma, dim)
        return RotatE(entity, relation, gamma=gamma)
    if name == "pRotatE":
        _check_range(source, state, gamma, dim)
        modulus = _number(source, state.get("modulus", (gamma + EPSILON) / dim / 2))
        return protate(entity, relation, gamma=gamma, modulus=modulus)
    if name == "TransE":
        return TransE(entity, relation, gamma=gamma)
    return (DistMult if name == "DistMult" else ComplEx)(entity, relation)


def protate(entity: Tensor, relation: Tensor, *, gamma: float, modulus: float) -> BlockScorer:
    """PRotatE (Sun et al. 2019, section 4.4): ``gamma - modulus sum_k |sin(h_k + r_k - t_k)|``.

    Entities and relations are phases in units of the embedding range; scores are float64.

    Parameters
    ----------
    entity, relation : Tensor
        ``[N, D]`` and ``[R, D]``.
    gamma, modulus : float
    """
    return BlockScorer(
        _PRotatE(entity, relation, gamma, modulus).scores,
        num_entities=len(entity),
        num_relations=len(relation),
        sides=SIDES,
        device=entity.device,
    )


class _PRotatE(nn.Module):
    """The tables of pRotatE and its equation."""

    def __init__(self, entity: Tensor, relation: Tensor, gamma: float, modulus: float) -> None:
        super().__init__()
        self.entity, self.relation = entity.detach(), relation.detach()
        self.unit = math.pi * entity.shape[1] / (gamma + EPSILON)
        self.gamma, self.modulus = gamma, modulus

    def scores(self, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
        """As :class:`kgfast.BlockScorer` asks, query by query: ``[C, D]`` at once."""
        anchor, candidates = self.entity[anchors].double(), self.entity[ids].double()
        turn = self.relation[relations].double() * (1 if side == "tail" else -1)
        rows = [((query - candidates) * self.unit).sin_().abs_().sum(1) for query in anchor + turn]
        return self.gamma - self.modulus * torch.stack(rows)


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; a run of the official code has it")
    try:
        config: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not a JSON object: {error.msg}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a JSON object: {error!s:.200}") from None
    except RecursionError:
        raise ValueError(f"{path}: not a JSON object: nested too deeply") from None
    for key in ("model", "hidden_dim", "gamma"):
        if key not in config:
            raise ValueError(f"{path}: key {key} is missing")
    if not isinstance(config["model"], str):
        raise ValueError(f"{path}: model must be text; got {shown(config['model'])}")
    return config


def _count(path: Path, config: Mapping[str, Any], key: str, least: int = 1) -> int:
    """A whole number of config.json; the least one where it is missing."""
    value = config.get(key)
    if value is None and least == 0:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"{path}: {key} must be a whole number of at least {least}; got {value!r:.80}"
        )
    return value


def _number(path: Path, value: Any) -> float:
    """The gamma of config.json or of a state."""
    try:
        gamma = float(value)
    except (TypeError, ValueError, RuntimeError):
        gamma = math.nan
    if isinstance(value, (str, bool)) or not math.isfinite(gamma):
        raise ValueError(f"{path}: gamma must be a number; got {value!r:.80}")
    return gamma


def _state(folder: Path, *, as_table: bool) -> tuple[dict[str, Any], Path]:
    """The tensors, or the entities as a table in the file, and the file to blame."""
    checkpoint = folder / "checkpoint"
    if checkpoint.is_file():
        if as_table and not zipfile.is_zipfile(checkpoint):
            raise ValueError(
                f"{checkpoint}: it cannot be read in place, as torch before 1.6 wrote it: load it "
                f"without as_table, or remove it where {_TABLES[0]}.npy is beside it"
            )
        state: dict[str, Any] = _from_checkpoint(checkpoint, mapped=as_table)
        if as_table:
            own = tables.open(f"{checkpoint}:model_state_dict.{_TABLES[0]}")
            state = {name: state[name].clone() for name in state if name != _TABLES[0]}
            state[_TABLES[0]] = own
        return state, checkpoint
    paths = {name: folder / f"{name}.npy" for name in _TABLES}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: neither checkpoint nor {' and '.join(missing)} is there"
        )
    if as_table:
        own = tables.open(paths[_TABLES[0]])
        return {_TABLES[0]: own, _TABLES[1]: _from_npy(paths[_TABLES[1]])}, folder
    return {name: _from_npy(path) for name, path in paths.items()}, folder


def refused(error: pickle.UnpicklingError) -> str:
    """What torch would not unpickle, without its advice to unpickle it all the same."""
    found = re.search(r"Unsupported [^\n]*?(?= was not an allowed|\n|$)", str(error))
    return f"{found[0] if found else 'not a pickle of torch':.200}"


def _from_checkpoint(path: Path, *, mapped: bool) -> dict[str, Any]:
    with reading(path, "damaged"):
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path}: holds something else than tensors, or is damaged; it was not loaded: "
                f"{refused(error)}"
            ) from None
    state = content.get("model_state_dict") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping):
        raise ValueError(f"{path}: key model_state_dict is missing")
    for name in _TABLES:
        if not isinstance(state.get(name), Tensor):
            raise ValueError(f"{path}: model_state_dict has no {name}")
    return dict(state)


def _from_npy(path: Path) -> Tensor:
    with reading(path, "not a NumPy table"):
        return torch.from_numpy(np.load(path, allow_pickle=False))


def _check_shape(
    source: Path, what: str, table: Tensor, config: Mapping[str, Any], dim: int
) -> None:
    doubled = bool(config.get(f"double_{what}_embedding")) or (
        config["model"] == "ComplEx" or (config["model"], what) == ("RotatE", "entity")
    )
    width = dim * (2 if doubled else 1)
    if table.ndim != 2 or table.shape[1] != width:
        why = f"hidden_dim {dim}{', doubled' if doubled else ''}"
        raise ValueError(
            f"{source}: {what}_embedding must have {width} columns ({why}); got shape "
            f"{list(table.shape)}"
        )


def _check_rows(source: Path, what: str, table: Tensor, rows: int) -> None:
    """That the table has as many rows as config.json says; 0 where it says nothing."""
    if rows and len(table) != rows:
        raise ValueError(
            f"{source}: {what}_embedding must have {rows} rows (n{what} of config.json); got "
            f"{len(table)}"
        )


def _check_range(source: Path, state: Mapping[str, Tensor], gamma: float, dim: int) -> None:
    """The unit of the phases is computed from gamma and dim: the stored one must be the same."""
    expected = (gamma + EPSILON) / dim
    own_range = float(state.get("embedding_range", expected))
    if not math.isclose(own_range, expected, rel_tol=1e-5):
        raise ValueError(
            f"{source}: embedding_range must be (gamma + 2) / hidden_dim = {expected:g}; got "
            f"{own_range:g}"
        )

"""Runs of the official RotatE code (github.com/DeepGraphLearning/KnowledgeGraphEmbedding).

The function ``save_model`` of that code writes ``config.json`` (the arguments), ``checkpoint`` (a
``torch.save`` of the state) and the tables again as ``entity_embedding.npy`` and
``relation_embedding.npy``. Ids are those of ``entities.dict`` and ``relations.dict``, which
:func:`kgfast.datasets.load` keeps.
"""

import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast import tables
from kgfast.adapters.foreign import (
    check_width,
    finite_option,
    load_weights,
    read_npy,
    read_options,
    text_option,
    whole_option,
)
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

MODELS = ("RotatE", "pRotatE", "TransE", "DistMult", "ComplEx")
_TABLES = ("entity_embedding", "relation_embedding")


def load_official(folder: str | os.PathLike[str], *, as_table: bool = False) -> Model | BlockScorer:
    """Load a run of the official RotatE code.

    The tables come from ``checkpoint``, or from the ``.npy`` files if that is missing. The
    checkpoint is read with ``weights_only=True``: it can hold tensors, and run nothing.

    Parameters
    ----------
    folder
        The ``save_path`` of the run.
    as_table : bool
        Leave entities in the file as a :class:`kgfast.tables.Table`, which is read in blocks within
        ``max_memory`` of :func:`kgfast.rank`. Not available for pRotatE.

    Returns
    -------
    Model
        RotatE with raw relations, TransE with L1 norm, DistMult or ComplEx; for pRotatE a
        :class:`kgfast.BlockScorer`. (Earlier versions of that code, and pRotatE, use 3.14159262
        for pi: 1e-8 less.)

    Raises
    ------
    FileNotFoundError
        If config.json is missing, or both kinds of tables are.
    ValueError
        If a file cannot be read, lacks a key, or disagrees with the shapes of config.json. The
        message names the file.

    Examples
    --------
    >>> import json, tempfile
    >>> import numpy as np
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
    config = read_options(
        path, "a run of the official code has this file", ("model", "hidden_dim", "gamma")
    )
    name, dim = text_option(path, config, "model"), whole_option(path, config, "hidden_dim")
    if name not in MODELS:
        said = name if name.isalnum() else shown(name)
        raise ValueError(f"{path}: model {said:.80} is not available; known: {', '.join(MODELS)}")
    if as_table and name == "pRotatE":
        raise ValueError(
            f"{path}: pRotatE is scored by a function of tensors: load the run without as_table"
        )
    state, source = _state(folder, as_table=as_table)
    gamma = finite_option(path, "gamma", state.get("gamma", config["gamma"]))
    entity, relation = (state[it] for it in _TABLES)
    for what, table in zip(_TABLES, (entity, relation), strict=True):
        is_doubled = bool(config.get(f"double_{what}"))
        is_doubled |= name == "ComplEx" or (name, what) == ("RotatE", "entity_embedding")
        check_width(f"{source}: {what}", table, dim, is_doubled, dim * (1 + is_doubled))
        key = f"n{what.removesuffix('_embedding')}"
        rows = whole_option(path, config, key, least=0) if config.get(key) is not None else 0
        if rows and len(table) != rows:
            raise ValueError(
                f"{source}: {what} must have {rows} rows ({key} of config.json); got {len(table)}"
            )
    unit, modulus = state.get("embedding_range"), state.get("modulus")
    if modulus is not None:
        modulus = finite_option(source, "modulus", modulus)
    return official_model(str(source), name, entity, relation, gamma, unit, modulus)


def official_model(
    source: str,
    name: str,
    entity: Any,
    relation: Tensor,
    gamma: float,
    embedding_range: Any = None,
    modulus: float | None = None,
) -> Model | BlockScorer:
    """Return one of `MODELS`, with phases in the unit that gamma and dim set."""
    if name in ("RotatE", "pRotatE"):
        expected = (gamma + EPSILON) / relation.shape[1]
        own = expected if embedding_range is None else float(embedding_range)
        if not math.isclose(own, expected, rel_tol=1e-5):
            raise ValueError(
                f"{source}: embedding_range must be (gamma + 2) / hidden_dim = {expected:g}; got "
                f"{own:g}"
            )
        if name == "RotatE":
            return RotatE(entity, relation, gamma=gamma)
        return _protate(entity, relation, gamma, expected / 2 if modulus is None else modulus)
    if name == "TransE":
        return TransE(entity, relation, gamma=gamma)
    return (DistMult if name == "DistMult" else ComplEx)(entity, relation)


def _protate(entity: Tensor, relation: Tensor, gamma: float, modulus: float) -> BlockScorer:
    """Return pRotatE (Sun et al. 2019, 4.4): ``gamma - modulus sum_k |sin(h_k + r_k - t_k)|``.

    Tables ``[N, D]`` and ``[R, D]`` hold phases in units of the embedding range; scores are
    float64.
    """
    entity, relation = entity.detach(), relation.detach()
    unit = math.pi * entity.shape[1] / (gamma + EPSILON)

    def protate(anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
        anchor, candidates = entity[anchors].double(), entity[ids].double()
        turn = relation[relations].double() * (1 if side == "tail" else -1)
        rows = [((query - candidates) * unit).sin_().abs_().sum(1) for query in anchor + turn]
        return gamma - modulus * torch.stack(rows)  # query by query: [C, D] at once

    return BlockScorer(protate, len(entity), len(relation), sides=SIDES, device=entity.device)


def _state(folder: Path, *, as_table: bool) -> tuple[dict[str, Any], Path]:
    checkpoint, (of_entities, _) = folder / "checkpoint", _TABLES
    if checkpoint.is_file():
        if as_table and not zipfile.is_zipfile(checkpoint):
            raise ValueError(
                f"{checkpoint}: cannot be read in place, since torch before 1.6 wrote it: load "
                f"the run without as_table, or remove the checkpoint if {of_entities}.npy is "
                "beside it"
            )
        content = load_weights(checkpoint, mapped=as_table)
        state = content.get("model_state_dict") if isinstance(content, Mapping) else None
        if not isinstance(state, Mapping):
            raise ValueError(f"{checkpoint}: key model_state_dict is missing")
        for name in _TABLES:
            if not isinstance(state.get(name), Tensor):
                raise ValueError(f"{checkpoint}: model_state_dict has no {name}")
        if as_table:  # other tensors of the mapped file are copied
            own = tables.open(f"{checkpoint}:model_state_dict.{of_entities}")
            state = {name: state[name].clone() for name in state if name != of_entities}
            state[of_entities] = own
        return dict(state), checkpoint
    paths = {name: folder / f"{name}.npy" for name in _TABLES}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: neither checkpoint nor {' and '.join(missing)} is there"
        )
    if as_table:
        own = tables.open(paths.pop(of_entities))
    # clones, for training
    state = {name: read_npy(path, "").clone() for name, path in paths.items()}
    return state | ({of_entities: own} if as_table else {}), folder

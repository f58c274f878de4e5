"""Official RotatE code (Sun et al. 2019) and its forks: ``test_step``, models, runs.

KGEModel.test_step = staticmethod(kgfast.adapters.official.test_step)

The function ``save_model`` of that code writes ``config.json`` (the arguments), ``checkpoint`` (a
``torch.save`` of the state) and the tables again as ``entity_embedding.npy`` and
``relation_embedding.npy``. Ids are those of ``entities.dict`` and ``relations.dict``, which
:func:`kgfast.datasets.load` keeps.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from kgfast.adapters.foreign import (
    Options,
    block_scorer,
    check_agreement,
    check_width,
    load_weights,
    read_npy,
    read_options,
)
from kgfast.eval import rank
from kgfast.graph import KnownTriples
from kgfast.models import EPSILON, ComplEx, DistMult, Model, RotatE, Side, TransE
from kgfast.text import reading, shown

__all__ = ["from_official", "load_official", "test_step"]

_MODELS = ("RotatE", "TransE", "DistMult", "ComplEx")
_TABLES = ("entity_embedding", "relation_embedding")
_NEEDED = ("model_name", "nentity", "nrelation", "gamma", *_TABLES)
_HITS = (1, 3, 10)
_BATCH = 16  # queries per batch for a model of another name, which gathers [16, 1024, 2 D]


def test_step(
    model: nn.Module,
    test_triples: Sequence[tuple[int, int, int]],
    all_true_triples: Sequence[tuple[int, int, int]],
    args: Any,
) -> dict[str, float]:
    """Replace ``KGEModel.test_step``: filtered ranks of heads and tails among all entities.

    The official code leaves ties in the order of an unstable sort; kgfast counts half of them.

    Parameters
    ----------
    model : KGEModel
        The model, which is set to eval mode, as in the official code.
    test_triples, all_true_triples : sequence of (int, int, int)
        Triples to rank, and triples to filter by.
    args : Namespace
        Arguments of the official code; ``nentity``, ``nrelation`` and ``countries`` are read.

    Returns
    -------
    dict
        ``MRR``, ``MR``, ``HITS@1``, ``HITS@3``, ``HITS@10``.

    Raises
    ------
    TypeError, ValueError
        If the model is not of the official code, if its conversion scores differently, or if its
        ids are not those of ``args``. For Countries, which are measured by AUC-PR, and for no
        triples.
    """
    if getattr(args, "countries", False):
        raise ValueError(
            "Countries are measured by AUC-PR, which is no rank: keep KGEModel.test_step for "
            "Countries"
        )
    converted = from_official(model)
    for name in ("nentity", "nrelation"):
        stated = getattr(args, name, None)
        if stated is not None and stated != getattr(model, name):
            raise ValueError(f"args.{name} is {stated}, but the model has {getattr(model, name)}")
    for what, triples in (("test_triples", test_triples), ("all_true_triples", all_true_triples)):
        if triples is None:
            raise ValueError(f"{what} must be triples; got None")
    if not len(test_triples):
        raise ValueError("test_triples is empty")
    model.eval()
    metrics = rank(converted, test_triples, known=KnownTriples(all_true_triples)).metrics()
    return {
        "MRR": metrics["mrr"],
        "MR": metrics["mr"],
        **{f"HITS@{k}": metrics[f"hits@{k}"] for k in _HITS},
    }


test_step.__test__ = False  # type: ignore[attr-defined]  # not one of pytest's


def from_official(model: nn.Module) -> Any:
    """Convert a ``KGEModel`` of the official code, or of a fork that keeps its ``forward``.

    RotatE, TransE, DistMult and ComplEx become the models of that name, with tables read in place.
    A model of another name, such as pRotatE, is scored in blocks by its own ``forward((positive,
    candidates), mode)``.

    Raises
    ------
    TypeError
        If ``model`` is no such model.
    ValueError
        If the converted model does not score like the original.
    """
    missing = [name for name in _NEEDED if not hasattr(model, name)]
    if missing or not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a KGEModel of the official RotatE code; {type(model).__name__} has no "
            f"{', '.join(missing) or 'parameters'}"
        )
    holder: Any = model
    entity, relation = holder.entity_embedding.detach(), holder.relation_embedding.detach()
    name, gamma = holder.model_name, float(holder.gamma)
    if name not in _MODELS:
        sizes = int(holder.nentity), int(holder.nrelation)
        return block_scorer(model, _scores, *sizes, entity.device, batch_size=_BATCH)
    unit = getattr(holder, "embedding_range", None)
    converted = _model_of(name, name, entity, relation, gamma, unit)
    margin = gamma if name in ("RotatE", "TransE") else 0.0
    check_agreement(
        converted,
        lambda h, r, t: holder(torch.stack([h, r, t], 1)),
        f"{name} of the official code",
        in_their_terms=lambda scores: scores + margin,
    )
    return converted


def _scores(model: Any, anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
    """Score candidates by the model's own ``forward``, which ignores the predicted column."""
    positive = torch.stack([anchors, relations, anchors], 1)
    scores: Tensor = model((positive, ids.expand(len(anchors), -1)), mode=f"{side}-batch")
    return scores


def load_official(folder: str | os.PathLike[str]) -> Model:
    """Load a run of the official RotatE code.

    The tables come from ``checkpoint``, or from the ``.npy`` files if that is missing. The
    checkpoint is read with ``weights_only=True``: it can hold tensors, and run nothing.

    Parameters
    ----------
    folder
        The ``save_path`` of the run.

    Returns
    -------
    Model
        RotatE with raw relations, TransE with L1 norm, DistMult or ComplEx. (Earlier versions of
        that code use 3.14159262 for pi: 1e-8 less.)

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
        return _loaded(Path(folder))


class _Arguments(Options):
    """Arguments in ``config.json``."""

    model: str
    hidden_dim: PositiveInt
    gamma: float
    nentity: NonNegativeInt | None = None
    nrelation: NonNegativeInt | None = None
    double_entity_embedding: Any = None
    double_relation_embedding: Any = None


def _loaded(folder: Path) -> Model:
    path = folder / "config.json"
    config = read_options(path, "a run of the official code has this file", _Arguments)
    name, dim = config.model, config.hidden_dim
    if name not in _MODELS:
        raise ValueError(
            f"{path}: model {shown(name)} is not available; known: {', '.join(_MODELS)}"
        )
    state, source = _state(folder)
    gamma = float(state.get("gamma", config.gamma))
    for what, rows in zip(_TABLES, (config.nentity, config.nrelation), strict=True):
        is_doubled = bool(getattr(config, f"double_{what}"))
        is_doubled |= name == "ComplEx" or (name, what) == ("RotatE", "entity_embedding")
        check_width(f"{source}: {what}", state[what], dim, is_doubled, dim * (1 + is_doubled))
        if rows and len(state[what]) != rows:
            raise ValueError(
                f"{source}: {what} must have {rows} rows, as config.json says; got "
                f"{len(state[what])}"
            )
    entity, relation = (state[what] for what in _TABLES)
    return _model_of(str(source), name, entity, relation, gamma, state.get("embedding_range"))


def _model_of(
    source: str, name: str, entity: Tensor, relation: Tensor, gamma: float, unit: Any
) -> Model:
    """Return one of the models, with phases in the unit that gamma and dim set."""
    if name == "RotatE":
        expected = (gamma + EPSILON) / relation.shape[1]
        if unit is not None and not math.isclose(float(unit), expected, rel_tol=1e-5):
            raise ValueError(
                f"{source}: embedding_range must be (gamma + 2) / hidden_dim = {expected:g}; got "
                f"{float(unit):g}"
            )
        return RotatE(entity, relation, gamma=gamma)
    if name == "TransE":
        return TransE(entity, relation, gamma=gamma)
    return (DistMult if name == "DistMult" else ComplEx)(entity, relation)


def _state(folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the tensors of a run, which share no memory with the files, and their source."""
    checkpoint = folder / "checkpoint"
    if checkpoint.is_file():
        content = load_weights(checkpoint)
        state = content.get("model_state_dict") if isinstance(content, Mapping) else None
        if not isinstance(state, Mapping):
            raise ValueError(f"{checkpoint}: key model_state_dict is missing")
        for name in _TABLES:
            if not isinstance(state.get(name), Tensor):
                raise ValueError(f"{checkpoint}: model_state_dict has no {name}")
        return dict(state), checkpoint
    paths = {name: folder / f"{name}.npy" for name in _TABLES}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: neither checkpoint nor {' and '.join(missing)} is there"
        )
    return {name: read_npy(path, "").clone() for name, path in paths.items()}, folder

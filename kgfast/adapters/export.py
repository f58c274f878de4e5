"""Trained models as files that other programs read. None of the files is a pickled object.

============  ====================================================================================
target        files
============  ====================================================================================
npy           what :func:`kgfast.save` writes, but the tables as ``entity.npy`` and ``relation.npy``
safetensors   what :func:`kgfast.save` writes: any model
official      what ``save_model`` of the official RotatE code writes: ``checkpoint``, the tables as
              ``.npy`` and ``config.json``; with ``entities.dict`` and ``relations.dict``
pykeen        ``model.safetensors``, a state dict for PyKEEN's model, and ``config.json`` with its
              name and arguments; RotatE only of ``norm="l2"``
============  ====================================================================================

Names stand beside the tables in the order of rows, as ``entities.json`` and ``relations.json``. A
model with a score that the target lacks is refused: the tables would have another meaning there.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from kgfast.graph import Vocabulary
from kgfast.models import (
    CP,
    EPSILON,
    MED,
    RESCAL,
    ComplEx,
    ConvE,
    DistMult,
    Model,
    Reciprocal,
    RotatE,
    TransE,
    Wrapper,
    in_layout,
)
from kgfast.text import shown
from kgfast.training import LoadedRun, write_json, write_names, write_tables
from kgfast.whole_files import new_folder

PLAIN = (RotatE, TransE, DistMult, ComplEx, CP, RESCAL)  # models of two tables and no more
_DEFAULT_GAMMA = 12.0  # for scores without a margin; the official code wants a number
_RATE = 1e-4  # rate of the official code, for models that were not trained here


def export_run(run: LoadedRun, to: str, out: str | os.PathLike[str]) -> list[Path]:
    """Write a model for another program, whole or not at all, and return the files.

    ``out`` is an empty folder or a new one. For croppable embeddings (MED) the widest sub-model is
    written; ``safetensors`` has all sub-models. A ValueError says why a target cannot hold the
    model or a name.
    """
    if to not in TARGETS:
        raise ValueError(f"to must be one of {', '.join(TARGETS)}; got {to!r}")
    with new_folder(out) as scratch, torch.no_grad():
        TARGETS[to](run, scratch)
    return sorted(Path(out).iterdir())


def _to_npy(run: LoadedRun, out: Path) -> None:
    _plain(run.model, "a pair of .npy tables")
    model = run.model.model if isinstance(run.model, MED) else run.model
    _write(run, model, out, as_npy=True)


def _to_safetensors(run: LoadedRun, out: Path) -> None:
    _write(run, run.model, out)


def _write(run: LoadedRun, model: Model, out: Path, *, as_npy: bool = False) -> None:
    """Write the folder that :func:`kgfast.load_run` reads."""
    about = {} if run.config is None else {"config": run.config.to_dict()}
    names = run.vocabulary or (None, None)
    write_tables(out, model, names, known=run.saved_known, about=about, as_npy=as_npy)


def _to_official(run: LoadedRun, out: Path) -> None:
    theirs = "the official RotatE code"
    model = _plain(run.model, theirs)
    _refuse_matrices(model, theirs)
    if run.model.has_inverses:
        raise ValueError(f"reciprocal relations do not fit {theirs}, which has no inverses")
    if isinstance(model, RotatE):
        _refuse_norm(model, "modulus", f"{theirs}: its RotatE sums moduli")
        if model.relation_format != "raw":
            raise ValueError(
                f"RotatE with relation_format={model.relation_format!r} does not fit {theirs}: its "
                "relations are raw, in units that gamma sets"
            )
    if isinstance(model, TransE) and model.score != "l1":
        raise ValueError(
            f"TransE with norm='l2' does not fit {theirs}: its TransE is the L1 norm; a run with "
            "model.norm: l1 can be exported there"
        )
    entity, relation = (_single(table, model, theirs) for table in (model.entity, model.relation))
    if isinstance(model, RotatE | ComplEx):
        entity = in_layout(entity, model.layout, "halves")
    if isinstance(model, ComplEx):
        relation = in_layout(relation, model.layout, "halves")
    gamma = float(getattr(model, "gamma", _DEFAULT_GAMMA))
    write_json(out / "config.json", _official_config(run, model, gamma))
    # options as float64: the official code casts them, load_official reads them unchanged
    state = {
        "gamma": torch.tensor([gamma], dtype=torch.float64, device="cpu"),
        "embedding_range": torch.tensor(
            [(gamma + EPSILON) / model.dim], dtype=torch.float64, device="cpu"
        ),
        "entity_embedding": entity,
        "relation_embedding": relation,
    }
    rate = _RATE if run.config is None else run.config.optim.lr
    optimizer = torch.optim.Adam([entity, relation], lr=rate)
    content = {
        "step": 0,
        "current_learning_rate": rate,
        "warm_up_steps": 0,
        "model_state_dict": state,
        # without moments: the state of a fresh optimizer
        "optimizer_state_dict": optimizer.state_dict(),
    }
    torch.save(content, out / "checkpoint")
    for name in ("entity_embedding", "relation_embedding"):
        np.save(out / f"{name}.npy", state[name].numpy())
    if run.vocabulary is not None:
        for what, names in run.vocabulary._asdict().items():
            _write_dict(out / f"{what}.dict", names, theirs)


def _official_config(run: LoadedRun, model: Model, gamma: float) -> dict[str, Any]:
    """Return the arguments that the official ``override_config`` and test read."""
    data = None if run.config is None else run.config.dataset
    return {
        "model": type(model).__name__,
        "hidden_dim": model.dim,
        "gamma": gamma,
        "double_entity_embedding": isinstance(model, RotatE | ComplEx),
        "double_relation_embedding": isinstance(model, ComplEx),
        "nentity": model.num_entities,
        "nrelation": model.num_relations,
        "data_path": "" if data is None else str(Path(data.root, data.name)),
        "countries": False,
        "test_batch_size": 16,
    }


def _to_pykeen(run: LoadedRun, out: Path) -> None:
    model = _plain(run.model, "PyKEEN")
    _refuse_matrices(model, "PyKEEN")
    options: dict[str, Any] = {"embedding_dim": model.dim}
    if isinstance(model, TransE):
        options["scoring_fct_norm"] = 1 if model.score == "l1" else 2
    if isinstance(model, RotatE):
        _refuse_norm(model, "l2", "PyKEEN: its RotatE is the L2 norm of the whole vector")
    if isinstance(model, DistMult | ComplEx):
        options["regularizer"] = None  # a regularizer adds tensors to the state dict
    entity, relation = (_single(table, model, "PyKEEN") for table in (model.entity, model.relation))
    if isinstance(model, RotatE | ComplEx):
        entity = in_layout(entity, model.layout, "interleaved")
        if isinstance(model, ComplEx) or model.relation_format == "complex":
            relation = in_layout(relation, model.layout, "interleaved")
        else:
            relation = _rotations(model)
    factory = "triples_factory=..."
    if run.model.has_inverses:  # PyKEEN has each inverse beside the relation
        relation = torch.stack(relation.chunk(2), 1).flatten(0, 1)
        factory += " (with create_inverse_triples=True)"
    state = {
        f"{what}_representations.0._embeddings.weight": table.contiguous()
        for what, table in (("entity", entity), ("relation", relation))
    }
    save_file(state, out / "model.safetensors", {"format": "pt"})
    write_json(
        out / "config.json",
        {
            "model": type(model).__name__,
            "model_kwargs": options,
            "num_entities": model.num_entities,
            "num_relations": run.model.num_relations,
            "create_inverse_triples": run.model.has_inverses,
            "load": f"model = getattr(pykeen.models, config['model'])({factory}, "
            "**config['model_kwargs']); "
            "model.load_state_dict(safetensors.torch.load_file('model.safetensors'))",
        },
    )
    write_names(out, run.vocabulary or (None, None))


TARGETS: dict[str, Callable[[LoadedRun, Path], None]] = {
    "npy": _to_npy,
    "safetensors": _to_safetensors,
    "official": _to_official,
    "pykeen": _to_pykeen,
}


def _rotations(model: RotatE) -> Tensor:
    """Return the relations as complex numbers, ``[R, 2D]`` interleaved float32."""
    relation = model.relation
    ids = torch.arange(len(relation), dtype=torch.int64, device=relation.device)
    return torch.stack(model.rotations(ids), -1).flatten(1).cpu().float()


def _without_inverses(model: Model) -> Model:
    return model.model if isinstance(model, Reciprocal) else model


def _plain(model: Model, target: str) -> Model:
    """Return a model with a score of two tables; for croppable embeddings the widest."""
    inner = _without_inverses(model.model if isinstance(model, MED) else model)
    if type(inner) not in PLAIN:  # a subclass is refused, since the score may differ
        name = type(inner).__name__
        if not isinstance(inner, Wrapper | ConvE):
            raise ValueError(f"{name} does not fit {target}: its own code alone says how it scores")
        if isinstance(inner, Wrapper):
            name += f" around {type(inner.model).__name__}"
        raise ValueError(
            f"{name} does not fit {target}: it scores with more than an entity and a relation "
            "table; export it with --to safetensors"
        )
    return inner


def _refuse_matrices(model: Model, target: str) -> None:
    """Refuse RESCAL and CP: models of that name elsewhere have other tensors."""
    if isinstance(model, CP | RESCAL):
        raise ValueError(
            f"{type(model).__name__} does not fit {target}: export it with --to npy or safetensors"
        )


def _refuse_norm(model: RotatE, allowed: str, target: str) -> None:
    if model.norm != allowed:
        raise ValueError(
            f"RotatE with norm={model.norm!r} does not fit {target}; a run with model.norm: "
            f"{allowed} can be exported there"
        )


def _single(table: Tensor, model: Model, target: str) -> Tensor:
    """Return a table as float32 if that changes no value."""
    if table.dtype == torch.float64:
        raise ValueError(
            f"{type(model).__name__} with float64 tables does not fit {target}: it has float32"
        )
    return table.detach().cpu().float().contiguous().clone()


def _write_dict(path: Path, names: Vocabulary, target: str) -> None:
    for name in names:
        if not name or name != name.strip() or any(mark in name for mark in "\t\n\r"):
            raise ValueError(
                f"the name {shown(name)} does not fit {target}: its lines are split at tabs and "
                "stripped"
            )
    lines = (f"{id}\t{name}\n" for id, name in enumerate(names))
    path.write_text("".join(lines), encoding="utf-8")

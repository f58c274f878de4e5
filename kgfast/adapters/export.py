"""Trained models as files that other programs read. None of the files is a pickled object.

============  ====================================================================================
target        files
============  ====================================================================================
safetensors   what :func:`kgfast.save` writes: any model
official      what ``save_model`` of the official RotatE code writes: ``checkpoint``, the tables as
              ``.npy`` and ``config.json``; with ``entities.dict`` and ``relations.dict``
============  ====================================================================================

Names stand beside the tables in the order of rows, as ``entities.json`` and ``relations.json``. A
model with a score that the target lacks is refused: the tables would have another meaning there.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgfast.models import (
    CP,
    EPSILON,
    MED,
    RESCAL,
    ComplEx,
    DistMult,
    Reciprocal,
    RotatE,
    TransE,
    in_layout,
    save,
)
from kgfast.text import shown
from kgfast.training import LoadedRun
from kgfast.whole_files import new_folder

TARGETS = ("safetensors", "official")
PLAIN = (RotatE, TransE, DistMult, ComplEx, CP, RESCAL)  # models of two tables and no more
_THEIRS = "the official RotatE code"
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
    if to == "safetensors":
        entities, relations = run.vocabulary or (None, None)
        save(run.model, out, entities=entities, relations=relations, known=run.saved_known)
    else:
        with new_folder(out) as scratch, torch.no_grad():
            _to_official(run, scratch)
    return sorted(Path(out).iterdir())


def _to_official(run: LoadedRun, out: Path) -> None:
    model: Any = run.model.model if isinstance(run.model, MED) else run.model
    model = model.model if isinstance(model, Reciprocal) else model
    _check_fits(model, run.model.has_inverses)
    entity, relation = (
        table.detach().cpu().float().contiguous().clone()
        for table in (model.entity, model.relation)
    )
    if isinstance(model, RotatE):
        model.check_range()
    if is_doubled := isinstance(model, RotatE | ComplEx):
        entity = in_layout(entity, model.layout, "halves")
    if isinstance(model, ComplEx):
        relation = in_layout(relation, model.layout, "halves")
    gamma = float(getattr(model, "gamma", _DEFAULT_GAMMA))
    data = None if run.config is None else run.config.dataset
    config = {  # the arguments that the official override_config and test read
        "model": type(model).__name__,
        "hidden_dim": model.dim,
        "gamma": gamma,
        "double_entity_embedding": is_doubled,
        "double_relation_embedding": isinstance(model, ComplEx),
        "nentity": model.num_entities,
        "nrelation": model.num_relations,
        "data_path": "" if data is None else str(Path(data.root, data.name)),
        "countries": False,
        "test_batch_size": 16,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
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
    for what, names in zip(("entities", "relations"), run.vocabulary or (), strict=False):
        for name in names or ():
            if not name or name != name.strip() or any(mark in name for mark in "\t\n\r"):
                why = "its lines are split at tabs and stripped"
                raise ValueError(f"the name {shown(name)} does not fit {_THEIRS}: {why}")
        if names is not None:
            lines = (f"{id}\t{name}\n" for id, name in enumerate(names))
            (out / f"{what}.dict").write_text("".join(lines), encoding="utf-8")


def _check_fits(model: Any, has_inverses: bool) -> None:
    """Check that the tables of a model have the same meaning in the official code."""
    name = type(model).__name__
    if type(model) not in PLAIN:  # a subclass is refused, since the score may differ
        why = "it scores by more than an entity and a relation table"
        why += "; try --to safetensors" if type(model).__module__.startswith("kgfast.") else ""
    elif isinstance(model, CP | RESCAL):  # other models of these names there
        why = "try --to safetensors"
    elif has_inverses:
        name, why = f"{name} with reciprocal relations", "it has no inverses"
    elif isinstance(model, RotatE) and model.norm != "modulus":
        why = "its RotatE sums moduli; a run with model.norm: modulus can be exported there"
        name = f"RotatE with norm={model.norm!r}"
    elif isinstance(model, RotatE) and model.relation_format != "raw":
        name = f"RotatE with relation_format={model.relation_format!r}"
        why = "its relations are raw, in units that gamma sets"
    elif isinstance(model, TransE) and model.score != "l1":
        why = "its TransE is the L1 norm; a run with model.norm: l1 can be exported there"
        name = "TransE with norm='l2'"
    elif torch.float64 in (model.entity.dtype, model.relation.dtype):
        name, why = f"{name} with float64 tables", "it has float32"
    else:
        return
    raise ValueError(f"{name} does not fit {_THEIRS}: {why}")

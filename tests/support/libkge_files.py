"""Checkpoints as LibKGE pickles them, made without it."""

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def write(
    path: Path,
    model: str,
    tables: Any,
    names: Any,
    *,
    reciprocal: bool = False,
    l_norm: Any = 1.0,
    also: Mapping[str, Any] = {},
) -> Path:
    """Write what ``kge package`` writes of a model of lookup embeddings, and ``also``."""
    entity, relation = (torch.from_numpy(table) for table in tables)
    if reciprocal:
        relation = torch.cat([relation, -relation])
    options: dict[str, Any] = {"model": model, model: {"class_name": model, "l_norm": l_norm}}
    prefix = ""
    if reciprocal:
        options["model"], prefix = "reciprocal_relations_model", "_base_model."
        options["reciprocal_relations_model"] = {"base_model": {"type": model}}
    state = {
        f"{prefix}_{what}_embedder._embeddings.weight": table
        for what, table in (("entity", entity), ("relation", relation))
    }
    content = {"type": "package", "model": (state, {}), "config": _config(options), **also}
    if names is not None:
        meta = {"entity_ids": list(names[0]), "relation_ids": list(names[1])}
        content["dataset"] = {"num_entities": len(entity), "meta": meta}
    kge, config = types.ModuleType("kge"), types.ModuleType("kge.config")
    config.Config = _Config  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("kge", "kge.config")}
    try:
        sys.modules.update({"kge": kge, "kge.config": config})
        torch.save(content, path)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return path


class _Config:
    """Pickled under LibKGE's name."""


_Config.__module__, _Config.__qualname__, _Config.__name__ = "kge.config", "Config", "Config"


def _config(options: dict[str, Any]) -> _Config:
    config = _Config()
    config.__dict__ = {"options": options, "folder": None, "log_folder": None, "log_prefix": None}
    return config

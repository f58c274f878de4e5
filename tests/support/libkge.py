"""LibKGE itself, where ``KGFAST_LIBKGE`` names a checkout of it (github.com/uma-pi1/kge).

It is on no package index. What only its searches need is not installed: stand-ins take its place.
"""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
import torch

_OF_SEARCHES = (
    *("ConfigSpace", "ConfigSpace.hyperparameters", "ax", "ax.modelbridge"),
    *("ax.modelbridge.generation_strategy", "ax.service", "ax.service.ax_client", "hpbandster"),
    *("hpbandster.core", "hpbandster.core.nameserver", "hpbandster.core.result"),
    *("hpbandster.core.worker", "hpbandster.optimizers", "igraph"),
)


def checkout() -> Path:
    """Where it is, on ``sys.path``; skips the test if it is not said."""
    folder = os.environ.get("KGFAST_LIBKGE")
    if folder is None:
        pytest.skip("KGFAST_LIBKGE names no checkout of LibKGE")
    for name in ("numba", "path"):
        pytest.importorskip(name)
    for name in _OF_SEARCHES:
        sys.modules.setdefault(name, _StandIn(name))
    sys.modules["hpbandster.core.worker"].Worker = object
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return Path(folder)


class _StandIn(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


def config_of(model: str, folder: Path, **options: Any) -> Any:
    """A config of a model of its small test graph."""
    from kge import Config

    config = Config()
    config.folder = str(folder)
    config.set("console.quiet", True)
    config.set("model", model)
    config._import(model)
    config.set("dataset.name", "dataset_test")
    config.set("job.device", "cpu")
    for key, value in options.items():
        config.set(key.replace("__", "."), value, create=True)
    return config


def write_graph(folder: Path, sizes: tuple[int, int], seed: int = 0) -> Path:
    """A random graph as LibKGE's preprocessing writes it."""
    generator = torch.Generator().manual_seed(seed)
    num_entities, num_relations = sizes
    limits = torch.tensor([num_entities, num_relations, num_entities])
    files: dict[str, Any] = {}
    for split, count in (("train", 300), ("valid", 40), ("test", 41)):
        rows = (torch.rand(count, 3, generator=generator) * limits).long().tolist()
        (folder / f"{split}.del").write_text("".join("{}\t{}\t{}\n".format(*it) for it in rows))
        files |= {f"files.{split}.filename": f"{split}.del", f"files.{split}.type": "triples"}
        files[f"files.{split}.size"] = count
    for what, count in (("entity", num_entities), ("relation", num_relations)):
        lines = "".join(f"{i}\t{what} {i}\n" for i in range(count))
        (folder / f"{what}_ids.del").write_text(lines)
        files |= {f"files.{what}_ids.filename": f"{what}_ids.del"}
        files[f"files.{what}_ids.type"] = "map"
    own = {"name": folder.name, "num_entities": num_entities, "num_relations": num_relations}
    (folder / "dataset.yaml").write_text(json.dumps({"dataset": own | files}))
    return folder

"""Writes libkge_recorded.json.gz: what LibKGE's own job traced of a few models on a small graph.

KGFAST_LIBKGE=CHECKOUT python tests/support/libkge_record.py

LibKGE (github.com/uma-pi1/kge) is on no package index. Packages that only LibKGE's searches need
are not installed: stand-ins take their place.
"""

import gzip
import json
import os
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from support.libkge_stand_in import job_options, noted

RECORDED = Path(__file__).with_name("libkge_recorded.json.gz")
MODELS: dict[str, dict[str, Any]] = {"rotate": {}, "reciprocal complex": {}}
_OF_SEARCHES = (
    *("ConfigSpace", "ConfigSpace.hyperparameters", "ax", "ax.modelbridge"),
    *("ax.modelbridge.generation_strategy", "ax.service", "ax.service.ax_client", "hpbandster"),
    *("hpbandster.core", "hpbandster.core.nameserver", "hpbandster.core.result"),
    *("hpbandster.core.worker", "hpbandster.optimizers", "igraph"),
)


class _StandIn(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


def find_libkge() -> None:
    """Put LibKGE's checkout on ``sys.path``."""
    for name in _OF_SEARCHES:
        sys.modules.setdefault(name, _StandIn(name))
    sys.modules["hpbandster.core.worker"].Worker = object
    sys.path.insert(0, os.environ["KGFAST_LIBKGE"])


def config_of(model: str, folder: Path, options: Mapping[str, Any] = {}) -> Any:
    """Make a config of a model of LibKGE's small test graph."""
    from kge import Config

    config = Config()
    config.folder = str(folder)
    config.set("console.quiet", True)
    config.set("model", model)
    config._import(model)
    config.set("dataset.name", "dataset_test")
    config.set("job.device", "cpu")
    for key, value in options.items():
        config.set(key, value, create=True)
    return config


def write_graph(folder: Path, sizes: tuple[int, int], seed: int = 0) -> Path:
    """Write a random graph as LibKGE's preprocessing does."""
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


def model_of(name: str, options: Mapping[str, Any], graph: Any, folder: Path, dim: int = 32) -> Any:
    """Return a fresh model, such as "complex", "rotate l2" or "reciprocal conve"."""
    from kge.model import KgeModel

    kind, base = name.split()[0], None
    if kind == "reciprocal":
        kind, base = "reciprocal_relations_model", name.split()[1]
    config = config_of(kind, folder, options)
    config.set("lookup_embedder.dim", dim)
    if base is not None:
        config.set("reciprocal_relations_model.base_model.type", base)
        config._import(base)
    torch.manual_seed(0)
    return KgeModel.create(config, graph)


def traced(model: Any, graph: Any, folder: Path, options: Mapping[str, Any]) -> list[Any]:
    """Return the entries that LibKGE's job traces."""
    from kge.job import EvaluationJob

    config = model.config.clone()
    config.folder = str(folder)
    config.set("entity_ranking.class_name", "EntityRankingJob", create=True)
    for key, value in options.items():
        config.set(key, value, create=True)
    job = EvaluationJob.create(config, graph, model=model)
    entries = noted(job)
    job.run()
    return entries


def main() -> None:
    """Run LibKGE, keep what it traced."""
    find_libkge()
    from kge import Dataset

    folder = Path(tempfile.mkdtemp())
    write_graph(folder, (30, 3))
    graph = Dataset.create(config_of("complex", folder), folder=str(folder))
    splits = {name: graph.split(name).tolist() for name in ("train", "valid", "test")}
    content: dict[str, Any] = {"splits": splits, "models": {}}
    for name, options in MODELS.items():
        model = model_of(name, options, graph, folder, dim=8)
        prefix = "_base_model." if name.startswith("reciprocal") else ""
        state = model.state_dict()
        own: dict[str, Any] = {
            what: state[f"{prefix}_{what}_embedder._embeddings.weight"].tolist()
            for what in ("entity", "relation")
        }
        own["traces"] = {
            ties: traced(model, graph, folder, job_options(ties))
            for ties in ("exact", "a wide band")
        }
        content["models"][name] = own
    RECORDED.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

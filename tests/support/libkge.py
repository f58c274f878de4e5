"""LibKGE itself, where ``KGFAST_LIBKGE`` names a checkout of it (github.com/uma-pi1/kge).

It is on no package index. Packages that only LibKGE's searches need are not installed: stand-ins
take their place.
"""

import json
import os
import sys
import types
from collections.abc import Mapping, Sequence
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
    """Find LibKGE and put it on ``sys.path``; skip the test if it is nowhere."""
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


TIES = {
    "exact": {"atol": "0.0", "rtol": "0.0"},
    "fuzzy": {},
    "a wide band": {"rtol": "0.1"},
}
METRICS_PER = ("head_and_tail", "relation_type", "argument_frequency")
_OF_THE_RUN = (
    *("timestamp", "entry_id", "epoch_time", "job_id", "folder", "echo", "log"),
    "batches",
)


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


def graph_of(folder: Path) -> Any:
    from kge import Dataset

    return Dataset.create(config_of("complex", folder), folder=str(folder))


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


def job_options(
    ties: str, split: str = "valid", per: Sequence[str] = METRICS_PER
) -> dict[str, Any]:
    """Make the options of a job: histograms, small batches."""
    return {
        "eval.split": split,
        "eval.batch_size": 7,
        "entity_ranking.hits_at_k_s": [1, 3, 10],
        **{f"entity_ranking.metrics_per.{what}": what in per for what in METRICS_PER},
        **{f"entity_ranking.tie_handling.{key}": value for key, value in TIES[ties].items()},
        **({} if ties == "exact" else {"user.kgfast_ties": "fuzzy"}),
    }


def traced(
    model: Any,
    class_name: str,
    graph: Any,
    folder: Path,
    options: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return the entries that a job traces."""
    from kge.job import EvaluationJob

    config = model.config.clone()
    config.folder = str(folder)
    modules = ["kge.job", "kge.model", "kge.model.embedder"]
    if class_name.startswith("Kgfast"):
        modules.append("kgfast.adapters.libkge")
    own = {"modules": modules, "entity_ranking.class_name": class_name}
    for key, value in {**own, **options}.items():
        config.set(key, value, create=True)
    job = EvaluationJob.create(config, graph, model=model)
    entries = noted(job)
    job.run()
    return entries


def noted(job: Any) -> list[dict[str, Any]]:
    """Return the list into which a job will trace."""
    entries: list[dict[str, Any]] = []

    def keep(**entry: Any) -> dict[str, Any]:
        entries.append({key: entry[key] for key in entry if key not in _OF_THE_RUN})
        return entry

    job.trace = keep
    return entries

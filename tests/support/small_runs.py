"""A small graph and trainers that learn it in seconds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from kgfast.datasets import synthetic
from kgfast.training import Config, Run, Trainer

GRAPH = synthetic(300, 6, 1200, 60, 60)
BASE = {
    "threads": 1,
    "dataset": {"name": "synthetic"},
    "model": {"name": "rotate", "base_dim": 16, "gamma": 6.0},
    "optim": {"lr": 0.02},
    "train": {"steps": 40},
    "data": {"train_bs": 128, "neg_size": 32, "negatives": "shared"},
}
NO_GAMMA = {"gamma": 12.0}


def config_of(**sections):
    values = {name: dict(it) if isinstance(it, dict) else it for name, it in BASE.items()}
    mode = sections.get("train", {}).get("mode", "negative")
    if mode != "negative":
        values["data"] = {"train_bs": 128}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return Config.from_dict(values)


def trainer_of(run_dir=None, dataset=GRAPH, **sections):
    return Trainer(config_of(**sections), run_dir, dataset=dataset, progress=False)


@contextmanager
def crashing(at: int | None, rank: int | None = None) -> Iterator[None]:
    """Let runs fail before a step: everywhere, or in one process."""
    step = Run._step

    def stepped(self: Run, number: int) -> float:
        if number == at and rank in (None, self._placement.rank):
            raise MemoryError("none is left")
        return step(self, number)

    Run._step = stepped  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run._step = step  # type: ignore[method-assign]


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare the names and bits of two states."""
    assert found.keys() == expected.keys()
    assert [name for name, it in expected.items() if not torch.equal(found[name], it)] == []


LEARNERS = {
    "rotate, shared": ({"train": {"steps": 200}, "loss": {"alpha": 0.5}}, 0.6),
    "rotate, rows": (
        {
            "train": {"steps": 200},
            "data": {"negatives": "per_row", "subsampling": True, "filter_negatives": True},
        },
        0.6,
    ),
    "transe, shared": ({"model": {"name": "transe"}, "train": {"steps": 200}}, 0.2),
    "transe, margin": (
        {"model": {"name": "transe"}, "train": {"steps": 200}, "loss": {"name": "margin"}},
        0.2,
    ),
    "distmult, logistic": (
        {
            "model": {"name": "distmult", **NO_GAMMA},
            "train": {"steps": 150},
            "data": {"negatives": "per_row", "neg_size": 16},
            "loss": {"name": "logistic"},
        },
        0.2,
    ),
    "complex, 1vsall, n3": (
        {
            "model": {"name": "complex", **NO_GAMMA},
            "train": {"steps": 60, "mode": "1vsall"},
            "loss": {"name": "cross_entropy"},
            "regularizer": {"name": "n3", "weight": 0.01},
            "optim": {"name": "adagrad", "lr": 0.3},
        },
        0.5,
    ),
    "cp with inverses, 1vsall, dura, relations": (
        {
            "model": {"name": "cp", "reciprocal": True, **NO_GAMMA},
            "train": {"steps": 60, "mode": "1vsall"},
            "loss": {"name": "cross_entropy", "relation_weight": 0.1},
            "regularizer": {"name": "dura", "weight": 0.003},
            "optim": {"name": "adagrad", "lr": 0.3},
        },
        0.3,
    ),
    "transe with inverses, rows": (
        {
            "model": {"name": "transe", "reciprocal": True},
            "train": {"steps": 200},
            "data": {"negatives": "per_row"},
        },
        0.2,
    ),
    "distmult, 1vsall": (
        {
            "model": {"name": "distmult", **NO_GAMMA},
            "train": {"steps": 60, "mode": "1vsall"},
            "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
        },
        0.3,
    ),
    "complex, kvsall": (
        {
            "model": {"name": "complex", **NO_GAMMA},
            "train": {"steps": 150, "mode": "kvsall"},
            "loss": {"name": "bce", "label_smoothing": 0.1, "smoothing_style": "conve"},
            "optim": {"name": "adam", "lr": 0.05},
        },
        0.4,
    ),
    "conve, kvsall": (
        {
            "model": {
                "name": "conve",
                "base_dim": 32,
                "embedding_height": 4,
                "channels": 8,
                "input_dropout": 0.1,
                "feature_dropout": 0.1,
                "hidden_dropout": 0.1,
                **NO_GAMMA,
            },
            "train": {"steps": 400, "mode": "kvsall"},
            "loss": {"name": "bce", "label_smoothing": 0.1},
            "optim": {"name": "adam", "lr": 0.01},
        },
        0.2,
    ),
}


RING = 12  # entities of the graph below
RING_CONFIG = {
    "threads": 1,
    "model": {"name": "rotate", "base_dim": 4, "gamma": 6.0},
    "optim": {"lr": 0.05},
    "train": {"steps": 12, "eval_every": 4, "save_every": 4, "log_every": 1},
    "data": {"train_bs": 5, "neg_size": 3},
}


def ring_triples():
    """Give every entity a next and a previous one: train, valid and test, by name."""
    rows = [(f"e{i}", "next", f"e{(i + 1) % RING}") for i in range(RING)]
    rows += [(f"e{i}", "previous", f"e{(i - 1) % RING}") for i in range(RING)]
    return {"train": rows[2:-2], "valid": rows[:2], "test": rows[-2:]}


def write_ring(
    folder, entities=None, splits=None, layout="official", relations=("next", "previous")
):
    """Write a data folder; ``entities`` is the order of their names in ``entities.dict``."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = ring_triples() if splits is None else splits
    for split, rows in splits.items():
        (folder / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    if layout == "official":
        entities = [f"e{i}" for i in range(RING)] if entities is None else entities
        for name, names in (("entities", entities), ("relations", relations)):
            lines = [f"{i}\t{it}\n" for i, it in enumerate(names)]
            (folder / f"{name}.dict").write_text("".join(lines))
    return folder


def ring_trainer(root, run_dir, **sections):
    """Make a trainer of the data in ``<root>/ring``."""
    values = {"dataset": {"name": "ring", "root": str(root)}} | RING_CONFIG
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    if values["train"].get("mode", "negative") != "negative":
        values["data"] = {"train_bs": 5}
    return Trainer(Config.from_dict(values), run_dir, progress=False)

"""A small graph and trainers that learn it in seconds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kgfast.datasets import synthetic
from kgfast.training import Batch, Config, Trainer
from kgfast.training.config.schema import override

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


def sections_of_table(text: str) -> dict[str, dict[str, Any]]:
    """Read names of configs and, indented below each, its keys: ``optim.lr=0.1 train.steps=2``."""
    found: dict[str, dict[str, Any]] = {}
    name = ""
    for line in text.strip("\n").split("\n"):
        if line.startswith(" "):
            for each in line.split():
                override(found[name], [each])
        else:
            name = line
            found[name] = {}
    return found


def config_of(**sections):
    values = {name: dict(it) if isinstance(it, dict) else it for name, it in BASE.items()}
    mode = sections.get("train", {}).get("mode", "negative")
    if mode != "negative":
        values["data"] = {"train_bs": 128}
    return Config.from_dict(merged(values, sections))


def merged(values, others):
    """Return the values of a config with others in their places."""
    return values | {
        name: merged(values.get(name) or {}, it) if isinstance(it, dict) else it
        for name, it in others.items()
    }


def trainer_of(run_dir=None, dataset=GRAPH, **sections):
    return Trainer(config_of(**sections), run_dir, dataset=dataset, progress=False)


@contextmanager
def crashing(at: int | None, rank: int | None = None) -> Iterator[None]:
    """Let runs fail before a step: everywhere, or in one process."""
    step = Trainer._step

    def stepped(self: Trainer, batch: Batch) -> None:
        if self.state.step == at and rank in (None, self.assignment.rank):
            raise MemoryError("none is left")
        step(self, batch)

    Trainer._step = stepped  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer._step = step  # type: ignore[method-assign]


def assert_same_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare the names and bits of two states."""
    assert found.keys() == expected.keys()
    assert [name for name, it in expected.items() if not torch.equal(found[name], it)] == []


# Each with the least MRR that it learns.
LEARNERS = {
    name.partition(" | ")[0]: (sections, float(name.partition(" | ")[2]))
    for name, sections in sections_of_table("""
rotate, shared | 0.6
    train.steps=200  loss.alpha=0.5
rotate, rows | 0.6
    train.steps=200  data.negatives=per_row  data.subsampling=true  data.filter_negatives=true
transe, shared | 0.2
    model.name=transe  train.steps=200
transe, margin | 0.2
    model.name=transe  train.steps=200  loss.name=margin
distmult, logistic | 0.2
    model.name=distmult  model.gamma=12.0  train.steps=150  data.negatives=per_row
    data.neg_size=16  loss.name=logistic
complex, 1vsall, n3 | 0.5
    model.name=complex  model.gamma=12.0  train.steps=60  train.mode=1vsall
    loss.name=cross_entropy  regularizer.name=n3  regularizer.weight=0.01  optim.name=adagrad
    optim.lr=0.3
cp with inverses, 1vsall, dura, relations | 0.3
    model.name=cp  model.reciprocal=true  model.gamma=12.0  train.steps=60  train.mode=1vsall
    loss.name=cross_entropy  loss.relation_weight=0.1  regularizer.name=dura
    regularizer.weight=0.003  optim.name=adagrad  optim.lr=0.3
transe with inverses, rows | 0.2
    model.name=transe  model.reciprocal=true  train.steps=200  data.negatives=per_row
distmult, 1vsall | 0.3
    model.name=distmult  model.gamma=12.0  train.steps=60  train.mode=1vsall
    loss.name=cross_entropy  loss.label_smoothing=0.1
complex, kvsall | 0.4
    model.name=complex  model.gamma=12.0  train.steps=150  train.mode=kvsall  loss.name=bce
    loss.label_smoothing=0.1  loss.smoothing_style=conve  optim.name=adam  optim.lr=0.05
conve, kvsall | 0.2
    model.name=conve  model.base_dim=32  model.embedding_height=4  model.channels=8
    model.input_dropout=0.1  model.feature_dropout=0.1  model.hidden_dropout=0.1
    model.gamma=12.0  train.steps=400  train.mode=kvsall  loss.name=bce
    loss.label_smoothing=0.1  optim.name=adam  optim.lr=0.01
""").items()
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
    values = merged(values, sections)
    if values["train"].get("mode", "negative") != "negative":
        values["data"] = {"train_bs": 5}
    return Trainer(Config.from_dict(values), run_dir, progress=False)


def content(folder):
    """Return the bytes of every file but the lock, and when each was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

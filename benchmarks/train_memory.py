"""Measure the memory of a training run of RotatE + MED + RSCF from evaluation to evaluation.

    python benchmarks/train_memory.py --data DIR      results/cpu-train-memory.json

DIR is a folder of the config's dataset. Runs the first steps of a config with 20 between
evaluations; reads the memory of the process after each, and its peak within.
"""

import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from kgfast.training import Config, Run, Trainer
from lib.bare_run import TrainerSteps
from lib.benchmark import Benchmark, Option, Options, graph_of, needs_data, positive
from lib.columns import EVALUATIONS
from lib.measure import PeakMemory, Stopwatch, resident_bytes, return_free_memory
from lib.results import ROOT

CONFIG = ROOT / "configs" / "wn18rr" / "rotate_med_rscf.yaml"
QUICK = ("model.base_dim=16", "med.dims=[4,8,16]", "data.train_bs=64")


def measured(run: Run, trainer: Trainer) -> dict[str, Any]:
    """Evaluate on valid; return the memory, the time and the MRR of each sub-model."""
    device, found = trainer.device, []
    stopwatch = Stopwatch(device.type)
    with PeakMemory(device.type) as peak:
        seconds = stopwatch.seconds(lambda: found.append(run.evaluated("valid")))
    metrics, submodels = found[0]
    by_dim = submodels or {str(trainer.model.dim): metrics}
    return {
        "resident_bytes": _held(device),
        "peak_bytes": peak.bytes,
        "method": peak.method,
        "seconds": seconds,
        "mrr": {dim: it["mrr"] for dim, it in by_dim.items()},
    }


def _held(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated()
    gc.collect()
    return_free_memory()
    return resident_bytes()


def trainer_of(options: Options) -> Trainer:
    """Return the trainer of the config, on its data or on a synthetic graph."""
    changes = list(QUICK) if options.quick else [f"dataset.root={options.data}"]
    config = Config.from_yaml(options.config, [*changes, f"device={options.device}"])
    trainer = Trainer(config, dataset=graph_of(options) if options.quick else None, progress=False)
    if options.triples is not None:
        valid = trainer.dataset.valid
        trainer.dataset = replace(trainer.dataset, valid=valid[: options.triples])
    return trainer


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Train and evaluate in turns; yield a row for each evaluation."""
    trainer = trainer_of(options)
    training, med = TrainerSteps(trainer), trainer.config.med
    run = training.run
    for _ in range(options.evaluations):
        before = run.state.seconds_training
        training.steps(options.every)
        row = measured(run, trainer)
        yield {
            "config": options.config.stem,
            "graph": trainer.dataset.name,
            "dims": [trainer.model.dim] if med is None else med.dims,
            "triples": len(trainer.dataset.valid),
            **row,
            "step": run.state.step,
            "seconds_per_step": (run.state.seconds_training - before) / options.every,
        }


BENCHMARK = Benchmark(
    "train_memory",
    __doc__,
    {"evaluations": rows_of},
    options={
        "config": Option("of the run", CONFIG, keywords={"type": Path}),
        "data": Option("where the dataset of the config is"),
        "evaluations": Option("of the run", 3),
        "every": Option("steps between them", 20),
        "triples": Option("of the valid set; all unless given", keywords={"type": positive}),
    },
    tables=EVALUATIONS,
    check=needs_data("the config's dataset"),
    has_device=True,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

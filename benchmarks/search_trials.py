"""Run a search of RotatE's rate, gamma, alpha and negatives, at few dimensions.

    python benchmarks/search_trials.py --data DIR      results/cpu-search-trials.json
    python benchmarks/search_trials.py --add SEARCH    one that `kgfast search` ran, as well

DIR is a folder of WN18RR. On the synthetic graph and on WN18RR 24 trials are run, or as many as ten
minutes allow, and the base of the config, which `kgfast train` would run; evaluated on valid.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kgfast.datasets import Dataset, load, synthetic
from kgfast.extras.search import read_trials, search
from kgfast.training import Config, Trainer
from kgfast.training.build import load_dataset
from lib.benchmark import Benchmark, Option, Options, graph_of
from lib.columns import SEARCHES
from lib.results import Row

SYNTHETIC = (2000, 12, 12000, 500, 500)
RANGES = {
    "optim.lr": {"low": 2e-4, "high": 0.2, "log": True},
    "model.gamma": {"low": 2.0, "high": 16.0},
    "loss.alpha": {"low": 0.1, "high": 2.0, "log": True},
    "data.neg_size": {"choices": [32, 128, 512]},
}


def config_of(graph: Dataset, steps: int, trials: int) -> Config:
    """Return the config of a search; its base has the values that sections have by default."""
    return Config.from_dict(
        {
            "dataset": {"name": graph.name},
            "model": {"name": "rotate", "base_dim": 32},
            "optim": {"name": "row_adam", "lr": 1e-3},
            "sched": {"name": "linear"},
            "train": {"steps": steps},
            "data": {"train_bs": 512, "neg_size": 64, "negatives": "shared"},
            "search": {
                "ranges": RANGES,
                "trials": trials,
                "minutes": 10,
                "first_rung": max(1, steps // 9),
            },
        }
    )


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each graph, or that of a search that is added."""
    if options.add is not None:
        yield added(options.add, options.note)
        return
    steps, trials = (9, 3) if options.quick else (2700, 24)
    graphs = [graph_of(options) if options.quick else synthetic(*SYNTHETIC)]
    if options.data:
        graphs.append(load(options.data, "WN18RR"))
    for graph in graphs:
        config = config_of(graph, steps, trials)
        base = Trainer(config, dataset=graph, progress=False).fit()
        with tempfile.TemporaryDirectory() as folder:
            found = search(config, Path(folder) / "search", dataset=graph, progress=False)
        yield {
            "graph": graph.name,
            "entities": graph.num_entities,
            "steps": steps,
            "config": config.to_dict(),
            "base_mrr": base.valid["mrr"],
            "base_seconds": base.seconds_training + base.seconds_evaluating,
            "seconds": found.seconds,
            **found.to_dict(),
        }


def added(folder: Path, note: str | None) -> dict[str, Any]:
    """Return the row of a search that `kgfast search` ran."""
    config, found = Config.from_yaml(folder / "config.yaml"), read_trials(folder)
    name = f"{config.dataset.name}, {config.model.name} at {config.model.base_dim} dimensions"
    values = config.to_dict()
    values["dataset"].pop("root")  # a folder of the machine that ran it
    return {
        "graph": name,
        "entities": load_dataset(config).num_entities,
        "steps": config.train.steps or config.train.epochs,
        "config": values,
        "base_mrr": None,
        "base_seconds": None,
        "seconds": found.seconds,
        **found.to_dict(),
        "command": "kgfast search --config FILE --set dataset.root=DIR",
        "note": note,
    }


def stays(row: Row, rows: Sequence[Row], _: Options) -> bool:
    """Return whether a row stays in the file: those of graphs that were not searched now."""
    return row["graph"] not in {it["graph"] for it in rows}


BENCHMARK = Benchmark(
    "search_trials",
    __doc__,
    {"searches": rows_of},
    options={
        "data": Option("a folder of WN18RR"),
        "add": Option("the folder of a search", keywords={"type": Path, "metavar": "SEARCH"}),
        "note": Option("of what was added: what else ran on the machine"),
    },
    tables=SEARCHES,
    stays=stays,
    order=lambda row: row["base_mrr"] is None,  # the added ones come last
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

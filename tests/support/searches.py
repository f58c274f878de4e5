"""Searches over a small graph that take a second, and what can be compared of two of them."""

from kgfast.datasets import synthetic
from kgfast.extras.search import rows_of
from kgfast.training import Config
from support.small_runs import merged

GRAPH = synthetic(150, 4, 600, 40, 40)
RANGES = {
    "optim.lr": {"low": 1e-3, "high": 0.3, "log": True},
    "model.base_dim": {"choices": [4, 8]},
    "data.neg_size": {"low": 4, "high": 16},
}


def search_config(ranges=None, /, search=None, **sections):
    values = {
        "threads": 1,
        "dataset": {"name": "synthetic"},
        "model": {"name": "rotate", "base_dim": 8, "gamma": 6.0},
        "optim": {"lr": 0.02},
        "train": {"epochs": 4, "eval_every": 6, "log_every": 6},
        "data": {"train_bs": 256, "neg_size": 8, "negatives": "shared"},
        "search": {"ranges": ranges or RANGES, "trials": 6, **(search or {})},
    }
    return Config.from_dict(merged(values, sections))


def without_times(study):
    """List trials without what depends on the machine."""
    return sorted(
        ({**row, "seconds": None} for row in rows_of(study)), key=lambda row: row["number"]
    )

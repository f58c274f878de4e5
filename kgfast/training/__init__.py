"""Training: a config, a trainer, a run folder.

Names are loaded when they are first asked for: importing kgfast needs none of what they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgfast.training import checkpoint
    from kgfast.training.build import load_dataset
    from kgfast.training.config import Config
    from kgfast.training.divergence import first_bad_row
    from kgfast.training.loading import LoadedRun, Vocabularies, load_run, model_of
    from kgfast.training.logs import read_rows
    from kgfast.training.negatives import Batch, Negatives, asked_of
    from kgfast.training.row_optim import RowAdagrad, RowAdam
    from kgfast.training.run import Run
    from kgfast.training.run_folder import RunFolder
    from kgfast.training.run_graph import RunGraph
    from kgfast.training.steps import NegativeSampling
    from kgfast.training.trainer import Result, Trainer

_HOMES = {
    "build": ("load_dataset",),
    "config": ("Config",),
    "divergence": ("first_bad_row",),
    "loading": (
        "LoadedRun",
        "Vocabularies",
        "load_run",
        "model_of",
    ),
    "logs": ("read_rows",),
    "negatives": (
        "Batch",
        "Negatives",
        "asked_of",
    ),
    "row_optim": ("RowAdagrad", "RowAdam"),
    "run": ("Run",),
    "run_folder": ("RunFolder",),
    "run_graph": ("RunGraph",),
    "steps": ("NegativeSampling",),
    "trainer": (
        "Result",
        "Trainer",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Batch",
    "Config",
    "LoadedRun",
    "NegativeSampling",
    "Negatives",
    "Result",
    "RowAdagrad",
    "RowAdam",
    "Run",
    "RunFolder",
    "RunGraph",
    "Trainer",
    "Vocabularies",
    "asked_of",
    "checkpoint",
    "first_bad_row",
    "load_dataset",
    "load_run",
    "model_of",
    "read_rows",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)

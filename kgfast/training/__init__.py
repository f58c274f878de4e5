"""Training: a config, a trainer, a run folder. A name is imported at its first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgfast.training import checkpoint
    from kgfast.training.build import follow, load_dataset, loss_of
    from kgfast.training.config import Config
    from kgfast.training.data import Batch, Negatives
    from kgfast.training.loading import LoadedRun, Vocabularies, load_run, model_of
    from kgfast.training.logs import Callback, read_rows
    from kgfast.training.loop import Run
    from kgfast.training.objective import Objective
    from kgfast.training.row_optimizer import RowAdagrad, RowAdam
    from kgfast.training.run_folder import RunFolder
    from kgfast.training.saved import is_saved, save
    from kgfast.training.trainer import Result, Trainer

_HOMES = {
    "build": ("follow", "load_dataset", "loss_of"),
    "run_folder": ("RunFolder",),
    "config": ("Config",),
    "data": ("Batch", "Negatives"),
    "loading": ("LoadedRun", "Vocabularies", "load_run", "model_of"),
    "logs": ("Callback", "read_rows"),
    "loop": ("Run",),
    "objective": ("Objective",),
    "row_optimizer": ("RowAdagrad", "RowAdam"),
    "saved": ("is_saved", "save"),
    "trainer": ("Result", "Trainer"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Batch",
    "Callback",
    "Config",
    "LoadedRun",
    "Negatives",
    "Objective",
    "Result",
    "RowAdagrad",
    "RowAdam",
    "Run",
    "RunFolder",
    "Trainer",
    "Vocabularies",
    "checkpoint",
    "follow",
    "is_saved",
    "load_dataset",
    "load_run",
    "loss_of",
    "model_of",
    "read_rows",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)

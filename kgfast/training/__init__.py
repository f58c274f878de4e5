"""Training: a config, a trainer, a run folder. A name is imported at its first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgfast.training import checkpoint as checkpoint
    from kgfast.training.build import follow as follow
    from kgfast.training.build import loss_of as loss_of
    from kgfast.training.checkpoint import Result as Result
    from kgfast.training.checkpoint import RunFolder as RunFolder
    from kgfast.training.config import Config as Config
    from kgfast.training.data import Batch as Batch
    from kgfast.training.data import Objective as Objective
    from kgfast.training.loading import LoadedRun as LoadedRun
    from kgfast.training.loading import Vocabularies as Vocabularies
    from kgfast.training.loading import load_run as load_run
    from kgfast.training.loading import model_of as model_of
    from kgfast.training.logs import Callback as Callback
    from kgfast.training.logs import read_rows as read_rows
    from kgfast.training.row_optimizer import RowAdagrad as RowAdagrad
    from kgfast.training.row_optimizer import RowAdam as RowAdam
    from kgfast.training.trainer import Trainer as Trainer

_HOMES = {
    "build": ("follow", "loss_of"),
    "checkpoint": ("Result", "RunFolder"),
    "config": ("Config",),
    "data": ("Batch", "Objective"),
    "loading": ("LoadedRun", "Vocabularies", "load_run", "model_of"),
    "logs": ("Callback", "read_rows"),
    "row_optimizer": ("RowAdagrad", "RowAdam"),
    "trainer": ("Trainer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [*_HOME_OF, "checkpoint"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)

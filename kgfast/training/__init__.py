"""Training: a config, a trainer, a run folder."""

from kgfast.training import checkpoint
from kgfast.training.build import follow, load_dataset, loss_of
from kgfast.training.callbacks import Callback
from kgfast.training.config import Config
from kgfast.training.data import Batch, Negatives
from kgfast.training.loading import LoadedRun, Vocabularies, load_run, model_of
from kgfast.training.logs import read_rows
from kgfast.training.loop import Run
from kgfast.training.objective import Objective
from kgfast.training.row_optimizer import RowAdagrad, RowAdam
from kgfast.training.run_folder import RunFolder
from kgfast.training.saved import is_saved, save
from kgfast.training.trainer import Result, Trainer

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

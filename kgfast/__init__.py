"""Exact, streamed ranking of knowledge-graph embeddings at the limit of the hardware."""

import os
import sys
from typing import TYPE_CHECKING, Any

if "torch" not in sys.modules:
    # After an operator torch's threads are to sleep: by default they spin for milliseconds, on the
    # cores that the next kernel needs. It is read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kgfast import datasets, losses
from kgfast.graph import KnownTriples, Triples, Vocabulary
from kgfast.models import (
    MED,
    RSCF,
    Candidates,
    ComplEx,
    ConvE,
    DistMult,
    Model,
    RotatE,
    TransE,
)
from kgfast.ops import use_backend
from kgfast.prediction import topk
from kgfast.predictions import Predictions
from kgfast.ranking import rank
from kgfast.ranks import Ranks
from kgfast.training.official import load_official

if TYPE_CHECKING:
    from kgfast.training.loading import load_run

__version__ = "0.1.0"

__all__ = [
    "MED",
    "RSCF",
    "Candidates",
    "ComplEx",
    "ConvE",
    "DistMult",
    "KnownTriples",
    "Model",
    "Predictions",
    "Ranks",
    "RotatE",
    "TransE",
    "Triples",
    "Vocabulary",
    "datasets",
    "load_official",
    "load_run",
    "losses",
    "rank",
    "topk",
    "use_backend",
]


def __getattr__(name: str) -> Any:
    """What only training needs is loaded when it is asked for."""
    if name != "load_run":
        raise AttributeError(f"module 'kgfast' has no attribute {name!r}")
    from kgfast.training.loading import load_run

    return load_run

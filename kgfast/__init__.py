"""Exact, streamed ranking of knowledge-graph embeddings at the limit of the hardware."""

from kgfast import datasets
from kgfast.graph import KnownTriples, Triples, Vocabulary
from kgfast.models import Candidates, ComplEx, DistMult, Model, RotatE, TransE
from kgfast.ops import use_backend
from kgfast.ranking import rank
from kgfast.ranks import Ranks

__version__ = "0.1.0"

__all__ = [
    "Candidates",
    "ComplEx",
    "DistMult",
    "KnownTriples",
    "Model",
    "Ranks",
    "RotatE",
    "TransE",
    "Triples",
    "Vocabulary",
    "datasets",
    "rank",
    "use_backend",
]

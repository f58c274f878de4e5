"""Models: ways to make queries. A score and a table do the rest."""

from kgfast.models.base import Candidates, Model
from kgfast.models.blocks import BlockScorer
from kgfast.models.complex import ComplEx
from kgfast.models.conve import ConvE
from kgfast.models.cp import CP
from kgfast.models.distmult import DistMult
from kgfast.models.med import MED
from kgfast.models.reciprocal import Reciprocal
from kgfast.models.rescal import RESCAL
from kgfast.models.rotate import RotatE
from kgfast.models.rscf import RSCF
from kgfast.models.transe import TransE

__all__ = [
    "CP",
    "MED",
    "RESCAL",
    "RSCF",
    "BlockScorer",
    "Candidates",
    "ComplEx",
    "ConvE",
    "DistMult",
    "Model",
    "Reciprocal",
    "RotatE",
    "TransE",
]

"""Models, which make queries; a score and a table make the scores."""

from kgfast.models.base import (
    EPSILON,
    SIDES,
    Candidates,
    Model,
    RankableModel,
    Side,
    candidates_at,
    check_model,
    queries_at,
)
from kgfast.models.blocks import BlockScorer
from kgfast.models.complex import ComplEx
from kgfast.models.complex_rows import in_layout
from kgfast.models.conve import ConvE
from kgfast.models.cp import CP
from kgfast.models.distmult import DistMult
from kgfast.models.evaluated import evaluated_queries
from kgfast.models.med import MED
from kgfast.models.reciprocal import Reciprocal
from kgfast.models.rescal import RESCAL
from kgfast.models.rotate import RotatE
from kgfast.models.rscf import RSCF
from kgfast.models.saved import is_saved, save
from kgfast.models.tables import from_array
from kgfast.models.tntcomplex import TNTComplEx
from kgfast.models.transe import TransE
from kgfast.models.wrapper import Wrapper

__all__ = [
    "CP",
    "EPSILON",
    "MED",
    "RESCAL",
    "RSCF",
    "SIDES",
    "BlockScorer",
    "Candidates",
    "ComplEx",
    "ConvE",
    "DistMult",
    "Model",
    "RankableModel",
    "Reciprocal",
    "RotatE",
    "Side",
    "TNTComplEx",
    "TransE",
    "Wrapper",
    "candidates_at",
    "check_model",
    "evaluated_queries",
    "from_array",
    "in_layout",
    "is_saved",
    "queries_at",
    "save",
]

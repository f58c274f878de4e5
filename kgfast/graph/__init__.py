"""Knowledge graphs: vocabularies, triples, and the index of known triples for filtering."""

from kgfast.graph.ids import as_integers
from kgfast.graph.known import Cardinality, KnownTriples, Side
from kgfast.graph.nearest import did_you_mean, nearest_names, shown
from kgfast.graph.triples import Triples, Vocabulary, as_triples_tensor

__all__ = [
    "Cardinality",
    "KnownTriples",
    "Side",
    "Triples",
    "Vocabulary",
    "as_integers",
    "as_triples_tensor",
    "did_you_mean",
    "nearest_names",
    "shown",
]

"""Knowledge graphs: vocabularies, triples, and the index of known triples for filtering."""

from kgfast.graph.constraints import TypeConstraints
from kgfast.graph.ids import IdsLike, as_columns, as_integers
from kgfast.graph.known import Cardinality, KnownTriples, Side
from kgfast.graph.named import (
    Names,
    VocabularyLike,
    check_same_names,
    ids_or_names,
    named_columns,
    names_of,
    with_names,
)
from kgfast.graph.nearest import did_you_mean, nearest_names
from kgfast.graph.quads import TimedRelations
from kgfast.graph.triples import Triples, TriplesLike, Vocabulary, as_triples_tensor, with_times

__all__ = [
    "Cardinality",
    "IdsLike",
    "KnownTriples",
    "Names",
    "Side",
    "TimedRelations",
    "Triples",
    "TriplesLike",
    "TypeConstraints",
    "Vocabulary",
    "VocabularyLike",
    "as_columns",
    "as_integers",
    "as_triples_tensor",
    "check_same_names",
    "did_you_mean",
    "ids_or_names",
    "named_columns",
    "names_of",
    "nearest_names",
    "with_names",
    "with_times",
]

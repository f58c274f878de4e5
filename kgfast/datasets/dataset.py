"""A link-prediction dataset: three splits over shared vocabularies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import Tensor

from kgfast.graph import KnownTriples, Triples, Vocabulary, did_you_mean
from kgfast.graph.named import relation_names
from kgfast.text import escaped, shown

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Three splits of triples over shared vocabularies.

    Attributes
    ----------
    name
        The name in reports.
    train, valid, test
        The splits; valid and test may be empty, and may hold entities that train lacks.
    entities, relations
        The vocabularies of all three splits. Relations of quads are
        :class:`kgfast.graph.TimedRelations`, pairs of a relation and a time.
    types : Mapping of str to str
        Types of entities, by name; entities may have none.

    Examples
    --------
    >>> people, relations = Vocabulary(["ann", "bob"]), Vocabulary(["knows"])
    >>> train = Triples([(0, 0, 1)], entities=people, relations=relations)
    >>> nothing = train[:0]
    >>> Dataset("tiny", train, nothing, nothing, people, relations)
    Dataset tiny: 2 entities, 1 relations
    split     triples   entities  relations
    train           1          2          1
    valid           0          0          0
    test            0          0          0
    """

    name: str
    train: Triples
    valid: Triples
    test: Triples
    entities: Vocabulary
    relations: Vocabulary
    types: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def of_type(self, name: str) -> Tensor:
        """Return the ids of the entities of a type, int64, ascending.

        A ValueError suggests the nearest known types.
        """
        if name not in (known := sorted(set(self.types.values()))):
            raise ValueError(f"no entity has type {shown(name)}{did_you_mean(name, known)}")
        here = (entity for entity, kind in self.types.items() if kind == name)
        return self.entities.ids(here).sort().values

    @property
    def num_entities(self) -> int:
        """Return the number of entities in the vocabulary."""
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        """Return the number of relations in the vocabulary."""
        return len(self.relations)

    def sizes(self) -> str:
        """Return the numbers of entities, relations and times in words."""
        relations, times = relation_names(self.relations)
        words = f"{self.num_entities:,} entities, {len(relations or ()):,} relations"
        return words if times is None else f"{words}, {len(times):,} times"

    def split(self, name: str) -> Triples:
        """Return the triples of a split; a ValueError if there is no such split."""
        if name not in SPLITS:
            raise ValueError(f"split must be train, valid or test; got {name!r}")
        triples: Triples = getattr(self, name)
        return triples

    def known(self) -> KnownTriples:
        """Return the triples of all splits, for filtering; built at the first call."""
        return self._known

    @cached_property
    def _known(self) -> KnownTriples:
        return KnownTriples(self.train, self.valid, self.test)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} {escaped(self.name)}: {self.sizes()}"]
        lines.append(f"{'split':<6}{'triples':>11}{'entities':>11}{'relations':>11}")
        for split in SPLITS:
            triples = self.split(split)
            num_entities = len(np.unique(triples.hrt[:, ::2].cpu()))
            num_relations = len(np.unique(triples.quads[:, 1].cpu()))
            lines.append(f"{split:<6}{len(triples):>11,}{num_entities:>11,}{num_relations:>11,}")
        return "\n".join(lines)

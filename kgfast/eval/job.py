"""Jobs: what a call asks of which queries, and how results of blocks join."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import Given
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.sources import CandidateSource, Crops
from kgfast.graph import KnownTriples
from kgfast.graph.named import Names
from kgfast.kernels.operands import Known
from kgfast.models.base import Side
from kgfast.storage import digest


@dataclass
class JobSection:
    """Queries of a job that share a source: one side, and the crops of one sweep."""

    side: Side
    crops: Crops
    given: Given = None  # candidates, as the caller gave them
    place: tuple[int, int] = (0, 0)  # group of crops and column in the results


class SoFar(ABC):
    """Results of some queries over the blocks so far."""

    section: JobSection
    queries: Queries
    source: CandidateSource

    def begin(self) -> None:  # noqa: B027 - a hook: counts need no beginning
        """Read the queries once their vectors are made."""

    @abstractmethod
    def take(self, block: Any) -> None:
        """Add the results of the queries in a block."""

    def join(self, shares: Any) -> None:  # noqa: B027 - a hook: counts are added at the end
        """Merge in the results of other processes."""


class Job(ABC):
    """Checked arguments of a call: what is asked of which queries, and how results join.

    ``name`` names the call in errors.
    """

    name: str
    model: Any
    known: KnownTriples | None
    names: Names
    batch_size: int
    sides: tuple[Side, ...]
    sections: list[JobSection]
    allows_nan = False

    @property
    @abstractmethod
    def num_queries(self) -> int:
        """Number of queries of a section."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Everything that several processes must agree on besides the model, in words."""

    @property
    @abstractmethod
    def result_bytes(self) -> int:
        """Memory of the results of a query while a file is read."""

    @abstractmethod
    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterable[Queries]:
        """Make the queries of a section; facts are too many, and come in batches of a size."""

    @abstractmethod
    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        """Make the queries of a section at places ``rows``, int64 on the host."""

    def sample(self, section: JobSection, home: torch.device, count: int) -> Queries:
        """Make some queries of a section, spread evenly."""
        count = min(count, self.num_queries)
        rows = torch.arange(count, dtype=torch.int64, device=CPU)
        return self.some(section, rows * self.num_queries // max(1, count), home)

    @abstractmethod
    def start(self, section: JobSection, source: CandidateSource, queries: Queries) -> SoFar:
        """Begin the results of some queries."""

    @abstractmethod
    def put(self, result: SoFar) -> None:
        """Keep the results of a pass."""

    def known_of(self, queries: Queries, source: CandidateSource) -> Known | None:
        """Return the known answers to queries."""
        if self.known is None:
            return None
        ids = queries.anchors, queries.others
        return Known(*self.known.exclude(*ids, queries.side, within=source.span))

    def begin(self, source: CandidateSource) -> None:  # noqa: B027 - a hook
        """Look at the candidates before the first pass."""

    def join(self, shares: Any) -> None:  # noqa: B027 - a hook
        """Merge in the results of processes that served other queries."""

    def finish(self) -> None:  # noqa: B027 - a hook
        """Wait for results, after the last pass."""


def names_in_words(names: Names) -> str:
    """Return vocabularies in words, to be compared."""
    return " and ".join(
        "none" if own is None else f"{len(own):,} names {digest(own.names)}" for own in names
    )

"""Jobs: what a call asks of which queries, and how results of blocks join."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import CheckedIds, digest_of
from kgfast.eval.excluded import Excluded
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.sources import CandidateSource, Crops
from kgfast.graph import KnownTriples
from kgfast.graph.named import Names
from kgfast.kernels.operands import Known
from kgfast.models.base import Side
from kgfast.ops.differentiable import full_precision
from kgfast.storage import digest


@dataclass
class JobSection:
    """Queries of a job that share a source: one side, and the crops of one sweep."""

    side: Side
    crops: Crops
    candidate_ids: CheckedIds = None  # ids of the candidates; None: all rows
    place: tuple[int, int] = (0, 0)  # group of crops and column in the results


class SoFar(ABC):
    """Results of some queries of a job over the blocks so far."""

    keeps_double = False  # scores stay float64 until the end of the call

    def __init__(
        self, job: Any, section: JobSection, source: CandidateSource, queries: Queries
    ) -> None:
        self.job, self.section, self.source, self.queries = job, section, source, queries
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Make room for the results."""

    def begin(self) -> None:
        """Widen queries: to full precision, or to float64, so that the sweep rounds no score."""
        if self.queries.vectors is not None:
            vectors = full_precision(self.queries.vectors)
            self.job.dtype = torch.promote_types(self.job.dtype, vectors.dtype)
            self.queries.vectors = vectors.double() if self.keeps_double else vectors

    @abstractmethod
    def take(self, block: Any) -> None:
        """Add the results of the queries in a block."""

    def join(self, shares: Any) -> None:  # noqa: B027 - a hook: counts are added at the end
        """Merge in the results of other processes."""


class Job(ABC):
    """Checked arguments of a call: what is asked of which queries, and how results join.

    ``name`` names the call in errors, and ``start`` begins the results of some queries.
    """

    name: str
    start: type[SoFar]
    model: Any
    known: KnownTriples | None
    names: Names
    batch_size: int
    sections: list[JobSection]
    excluded: Mapping[Side, Excluded] = {}
    allows_nan = False
    dtype = torch.float32  # dtype of the scores that the call returns
    result_bytes = 0  # memory of the results of a query while a file is read

    @property
    @abstractmethod
    def num_queries(self) -> int:
        """Number of queries of a section."""

    @property
    def facts(self) -> dict[str, str]:
        """Arguments that results depend on, besides model and known triples, in words."""
        vocabularies = (vocabulary for vocabulary in self.names if vocabulary is not None)
        names = (
            f"{len(words):,} names {digest(*(column.names for column in words.columns))}"
            for words in vocabularies
        )
        left_out = (digest(side, *vars(ids).values()) for side, ids in self.excluded.items())
        of_sides = {section.side: section.candidate_ids for section in self.sections}
        return {
            "vocabularies": " and ".join(names),
            "exclude": " and ".join(left_out),
            "sides": ", ".join(of_sides),
            "candidate_ids": " and ".join(map(digest_of, of_sides.values())),
            "the crop": str([section.crops for section in self.sections]),
        }

    @abstractmethod
    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterable[Queries]:
        """Make the queries of a section; facts are too many, and come in batches of a size."""

    @abstractmethod
    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        """Make the queries of a section at places ``rows``, int64 on the host."""

    def mean_answers(self, section: JobSection, most: int) -> float:
        """Return the mean number of known answers to at most ``most`` queries, spread evenly."""
        count = min(most, self.num_queries)
        if self.known is None or not count:
            return 0.0
        rows = torch.arange(count, dtype=torch.int64, device=CPU)
        few = self.some(section, rows * self.num_queries // count, CPU)
        anchors, others = few.anchors.contiguous(), few.others.contiguous()
        return float(self.known.counts(anchors, others, section.side).double().mean())

    @abstractmethod
    def put(self, result: Any) -> None:
        """Keep the results of a pass."""

    def known_of(self, queries: Queries, source: CandidateSource) -> Known | None:
        """Return the known answers to queries."""
        if self.known is None:
            return None
        ids = queries.anchors, queries.others
        return Known(*self.known.exclude(*ids, queries.side, within=source.row_range))

    def join(self, shares: Any) -> None:  # noqa: B027 - a hook
        """Merge in the results of processes that served other queries."""

    def finish(self) -> None:  # noqa: B027 - a hook
        """Wait for results, after the last pass."""

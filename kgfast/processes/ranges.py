"""Counts of ranges of entities, made by any scheduler, and their sum: ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import torch
from torch import Tensor

from kgfast.eval.candidates import Allowed, CandidateIds
from kgfast.eval.counting import Ranking
from kgfast.eval.driver import Call
from kgfast.eval.ranking import ranks_of, warn_without_candidates
from kgfast.eval.ranks import Ranks
from kgfast.eval.rows import RowReader, own_reader
from kgfast.graph import KnownTriples, TriplesLike
from kgfast.graph.triples import quads_of
from kgfast.models import RankableModel
from kgfast.models.base import SIDES, Side
from kgfast.processes.shares import check_cover, facts_of
from kgfast.storage import digest
from kgfast.text import shown


@dataclass(frozen=True)
class RangeCounts:
    """Counts of :func:`count_range`, small enough to send, which :func:`merge` adds.

    Attributes
    ----------
    start, stop : int
        The range of entities.
    num_entities : int
        Rows of the whole table.
    counts : Tensor
        int64 ``[6, T, S]``: candidates above and equal to the target, known answers above and equal
        to the target, known answers, and candidates of the whole table.
    triples : Tensor
        int64 ``[T, 3]``.
    sides : tuple of {"head", "tail"}
    asked : str
        A digest of the model (its parameters and 64 rows of its table), ``known``,
        ``candidate_ids``, ``dims`` and ``nan``.
    is_filtered : bool
        Whether known answers are left out.
    """

    start: int
    stop: int
    num_entities: int
    counts: Tensor
    triples: Tensor
    sides: tuple[Side, ...]
    asked: str
    is_filtered: bool

    def __repr__(self) -> str:
        triples, sides = self.counts.shape[1:]
        return (
            f"RangeCounts(entities {self.start} .. {self.stop - 1} of {self.num_entities:,}, "
            f"{triples} triples, {sides} sides)"
        )


def count_range(
    model: RankableModel,
    triples: TriplesLike,
    start: int,
    stop: int,
    *,
    known: KnownTriples | None = None,
    sides: Sequence[Side] = SIDES,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
) -> RangeCounts:
    """Count the entities ``start .. stop - 1`` that beat the targets of triples, or equal them.

    A range can be counted wherever the model can be read: in a task of Dask or Ray, in a job of an
    array, or one range after another on one machine. :func:`merge` adds the counts of all ranges to
    the ranks of :func:`kgfast.rank`.

    Parameters
    ----------
    model, triples, known, sides, batch_size, nan
        As :func:`kgfast.rank` takes them; ``sides`` may not hold relations. A
        :class:`kgfast.tables.Table` is read only at the rows of the range, the queries and the
        targets.
    start, stop : int
        The range; may be empty.
    candidate_ids : optional
        As :func:`kgfast.rank` takes them, but no lists of each query.
    dims : int, optional
        A crop width.

    Returns
    -------
    RangeCounts

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.rank`, and for a range outside the table.
    NotImplementedError
        For a model whose candidates are not the rows of its table.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> parts = [count_range(model, [(0, 0, 1), (1, 0, 2)], i, i + 1) for i in range(3)]
    >>> merge(parts).side("tail").realistic.tolist()
    [[1.0], [1.5]]
    """
    reader = own_reader(model)
    total = len(reader.table)
    if not reader.is_whole:
        raise ValueError(
            f"model: its shard holds rows {reader.start} .. {reader.stop - 1} of {total}; "
            "count_range needs the rows of all queries and targets (kgfast.rank within "
            "kgfast.distributed.processes() does not)"
        )
    if not 0 <= start <= stop <= total:
        raise ValueError(
            f"start, stop must be a range within 0 .. {total}; got {shown(start)}, {shown(stop)}"
        )
    if not set(sides) <= set(SIDES):
        raise ValueError(f"sides must be distinct, of 'head' and 'tail'; got {sides!r}")
    job = Ranking(
        model, triples, sides, Allowed(known, candidate_ids), dims, batch_size, (nan, None)
    )
    call, job.name = Call(model, ""), "count_range"
    call.reader = RowReader(reader.table, start, stop)
    call.run(job)
    # a view is pickled with the whole tensor that it views
    counts, hrt = job.counts[0][:, 0], quads_of(job.hrt.clone(), job.num_times)
    question = digest(facts_of(model, reader), job.facts, None if known is None else known.checksum)
    return RangeCounts(start, stop, total, counts, hrt, job.sides, question, known is not None)


def merge(parts: Sequence[RangeCounts], *, known: KnownTriples | None = None) -> Ranks:
    """Add up the counts of ranges that cover the table: the ranks of :func:`kgfast.rank`.

    Parameters
    ----------
    parts : sequence of RangeCounts
        In any order.
    known : KnownTriples, optional
        For groups of the result by cardinality and frequency; counts are filtered already.

    Returns
    -------
    Ranks

    Raises
    ------
    ValueError
        If ranges overlap, leave rows out, or come from different models, triples, sides or options.
        The message names the first such range.
    """
    parts = sorted(parts, key=lambda part: (part.start, part.stop))
    if not parts:
        raise ValueError("parts must hold the counts of at least one range")
    first = parts[0]
    facts = attrgetter("num_entities", "sides", "asked", "is_filtered")
    for part in parts[1:]:
        if facts(part) != facts(first) or not torch.equal(part.triples, first.triples):
            raise ValueError(f"parts: {part} and {first} are not of one ranking")
    check_cover([(part.start, part.stop) for part in parts], first.num_entities, "parts")
    counts = torch.stack([part.counts for part in parts]).sum(0)
    counts[5] = first.counts[5]  # candidates of the whole table, which every part knows
    warn_without_candidates(counts[5], first.triples, first.sides, (None, None))
    return ranks_of(counts, first.triples, first.sides, known, is_filtered=first.is_filtered)

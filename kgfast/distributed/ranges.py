"""Counts of a range of entities, which add up to ranks: for any scheduler that can add."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.distributed.held import Held
from kgfast.eval.batches import as_candidate_ids, check_known, check_rankable, evaluating
from kgfast.eval.batches import checked_batch_size as checked_size
from kgfast.eval.candidate_ids import pool_sizes
from kgfast.eval.passes import within
from kgfast.eval.ranks import Ranks
from kgfast.graph import KnownTriples, as_triples_tensor, shown
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.lists import contains
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.models.base import SIDES, Side
from kgfast.ops import run
from kgfast.ops.checks import check_ids, check_unique

KINDS = 5  # of counts: greater, equal, both of the excluded, known answers among the candidates
_FILE_BATCHES = 8  # batches that a table in a file is read for at once


class Questions(NamedTuple):
    """Queries of one side, wherever their anchors and targets are."""

    queries: Tensor  # [B, F]
    targets: Tensor  # [B]
    target_scores: Tensor  # [B] float64, canonical
    known: Known


@dataclass(frozen=True)
class Asked:
    """The checked arguments of a ranking, the same for every part of the table."""

    hrt: Tensor  # int64 [T, 3], on the host
    sides: tuple[Side, ...]
    known: KnownTriples | None
    ids: Tensor | None  # of the candidates, ascending
    batch_size: int

    @classmethod
    def of(
        cls,
        held: Held,
        triples: Any,
        sides: Sequence[Side],
        known: KnownTriples | None,
        candidate_ids: Any,
        batch_size: int | None,
    ) -> "Asked":
        """Check them against a model."""
        check_known(known)
        chosen = () if isinstance(sides, str) else tuple(sides)
        if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(SIDES):
            raise ValueError(f"sides must be distinct, of 'head' and 'tail'; got {sides!r}")
        model = held.model
        hrt = as_triples_tensor(
            triples, num_entities=held.total, num_relations=int(model.num_relations)
        )
        size = checked_size(batch_size, model)
        if batch_size is None and held.is_read_in_blocks:
            size *= _FILE_BATCHES
        return cls(hrt.cpu(), chosen, known, ids_of(candidate_ids, held.total), size)

    def batches(self, side: Side, total: int, num_shares: int = 1) -> list[Tensor]:
        """Rows of the triples, equal queries together, for so many who share the work."""
        anchors, relations, _ = roles(self.hrt, side)
        order = (relations * total + anchors).argsort(stable=True)
        size = max(1, min(self.batch_size, -(-len(order) // num_shares)))
        return list(order.split(size)) if len(order) else []

    def known_answers(self, rows: Tensor, side: Side, held: Held) -> Known:
        """Those of some triples' queries that are among the rows held."""
        if self.known is None:
            zeros = torch.zeros(len(rows) + 1, dtype=torch.int64, device=held.device)
            return Known(zeros, zeros[:0])
        anchors, relations, _ = roles(self.hrt[rows], side)
        answers = self.known.exclude(anchors, relations, side, within=(held.start, held.stop))
        return Known(*(part.to(held.device) for part in answers))

    def room(self) -> Tensor:
        """Zeros for the counts of all triples, ``[5, T, S]``."""
        shape = (KINDS, len(self.hrt), len(self.sides))
        return torch.zeros(shape, dtype=torch.int64, device="cpu")

    def ranks(self, counts: Tensor, total: int, vocabularies: Any = (None, None)) -> Ranks:
        """The result, of counts that cover the table."""
        sizes = torch.full_like(counts[0], total)
        if self.ids is not None:
            sizes = torch.full_like(counts[0], len(self.ids))
            for column, side in enumerate(self.sides):
                targets = roles(self.hrt, side)[2].contiguous()
                sizes[:, column] += ~contains(self.ids.cpu(), targets)
        raw = Ranks(counts[0], counts[1], sizes, self.sides, self.hrt)
        return Ranks(
            counts[0] - counts[2],
            counts[1] - counts[3],
            sizes - counts[4],
            self.sides,
            self.hrt,
            raw=raw,
            known=self.known,
            vocabularies=vocabularies,
        )


def ids_of(candidate_ids: Any, total: int) -> Tensor | None:
    """A list of candidates, checked, ascending.

    Raises
    ------
    TypeError, ValueError
        For ids that repeat or are none, and for lists of each query or relation.
    """
    if candidate_ids is None:
        return None
    if isinstance(candidate_ids, dict | tuple) or not hasattr(candidate_ids, "__len__"):
        raise TypeError("candidate_ids must be one list of ids, the same for all queries")
    ids = as_candidate_ids(candidate_ids, None)
    assert ids is not None
    if ids.ndim != 1:
        raise ValueError(f"candidate_ids must have one axis; got shape {list(ids.shape)}")
    check_ids("candidate_ids", ids, total)
    check_unique("candidate_ids", ids)
    return ids.sort().values


def roles(hrt: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, relations and targets of triples ``[B, 3]``."""
    heads, relations, tails = hrt.unbind(1)
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


def count(
    blocks: Iterator[tuple[int, Prepared]] | Sequence[tuple[int, Prepared]],
    asked: Questions,
    held: Held,
) -> Tensor:
    """The counts of the candidates in blocks, int64 ``[5, B]`` on the host."""
    counts = asked.targets.new_zeros((KINDS, len(asked.targets)))
    for first, pool in blocks:
        last = first + pool.num_rows
        known = within(asked.known, first, last)
        is_here = (asked.targets >= first) & (asked.targets < last)
        targets = torch.where(is_here, asked.targets - first, -1)
        checks = run.checks_for(held.device, allows_nan=held.allows_nan)
        operands = Operands(asked.queries, pool, held.crops)
        scores = asked.target_scores[None]
        with named_rows(held, first, pool):
            result = run.rank_counts(operands, targets, known, checks, target_scores=scores)
        counts[:4] += torch.stack([part.reshape(len(targets)) for part in result])
        counts[4] += pool_sizes(known, targets, pool.num_rows, pool.sorted_ids, None)[0]
    return counts.cpu()


@contextmanager
def named_rows(held: Held, first: int, pool: Prepared) -> Iterator[None]:
    """A row that is not finite is named by its id in the whole table."""
    try:
        yield
    except NonFiniteError:
        own = pool.table if pool.ids is None else pool.table[pool.ids]
        bad = (~own.isfinite().all(1)).nonzero()
        if not len(bad):
            raise
        row = bad[0] if pool.ids is None else pool.ids[bad[0]]
        raise held.not_finite(first + int(row)) from None


@dataclass(frozen=True)
class RangeCounts:
    """What :func:`count_range` counted, small enough to send: to be merged.

    Attributes
    ----------
    start, stop : int
        The range of entities.
    num_entities : int
        Of the whole table.
    counts : Tensor
        int64 ``[5, T, S]``: greater, equal, both of the known answers, and how many these are.
    asked : Asked
        What was asked for, without the known triples.
    """

    start: int
    stop: int
    num_entities: int
    counts: Tensor
    asked: Asked

    def __repr__(self) -> str:
        triples, sides = self.counts.shape[1:]
        return (
            f"RangeCounts(entities {self.start} .. {self.stop - 1} of {self.num_entities:,}, "
            f"{triples} triples, {sides} sides)"
        )


def count_range(
    model: Any,
    triples: Any,
    start: int,
    stop: int,
    *,
    known: KnownTriples | None = None,
    sides: Sequence[Side] = SIDES,
    candidate_ids: Any = None,
    dims: int | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
) -> RangeCounts:
    """Count the entities ``start .. stop - 1`` that beat the targets of triples, or equal them.

    Whoever has the model, in a file at least, can count a range: in a task of Dask or Ray, in a job
    of an array, or one after the other on a machine that sleeps at night. :func:`merge` adds the
    counts of all ranges up to the ranks of :func:`kgfast.rank`.

    Parameters
    ----------
    model, triples, known, sides, batch_size, nan
        As :func:`kgfast.rank` takes them; sides are those of entities. A model of a
        :class:`kgfast.tables.Table` reads the rows of the range, those of the queries and those of
        the targets.
    start, stop : int
        The range; may be empty.
    candidate_ids : sequence of int, optional
        One list for all queries: only these are candidates.
    dims : int, optional
        A crop width.

    Returns
    -------
    RangeCounts

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.rank`, and for a range outside of the table.
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
    check_rankable(model)
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")
    held = Held.of(model, dims, allows_nan=nan == "worst")
    if (held.start, held.stop) != (0, held.total):
        raise ValueError(
            f"model: it holds rows {held.start} .. {held.stop - 1} of {held.total}; count_range "
            f"needs the rows of all queries and targets (kgfast.distributed.rank does not)"
        )
    if not 0 <= start <= stop <= held.total:
        raise ValueError(
            f"start, stop must be a range within 0 .. {held.total}; got {shown(start)}, "
            f"{shown(stop)}"
        )
    asked = Asked.of(held, triples, sides, known, candidate_ids, batch_size)
    counts = asked.room()
    with evaluating(model), torch.no_grad():
        for column, side in enumerate(asked.sides):
            own = Held(model, start, stop, dim=dims, allows_nan=held.allows_nan)
            ids = None if asked.ids is None else asked.ids.to(own.device)
            kept = None if own.is_read_in_blocks else list(own.blocks(side, ids))
            for rows in asked.batches(side, held.total):
                blocks = own.blocks(side, ids) if kept is None else kept
                questions = _questions(own, asked, rows, side)
                counts[:, rows, column] = count(blocks, questions, own)
    plain = Asked(asked.hrt, asked.sides, None, asked.ids, asked.batch_size)
    return RangeCounts(start, stop, held.total, counts, plain)


def _questions(held: Held, asked: Asked, rows: Tensor, side: Side) -> Questions:
    """Those of some triples, of a model that has all rows."""
    device = held.device
    anchors, relations, targets = (ids.to(device) for ids in roles(asked.hrt[rows], side))
    queries = held.queries(anchors, relations, side)
    scores = held.target_scores(queries, targets, side)
    return Questions(queries, targets, scores, asked.known_answers(rows, side, held))


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
        If ranges overlap, leave rows out, or are of different triples, sides or tables; the message
        names the first that does.
    """
    parts = sorted(parts, key=lambda part: (part.start, part.stop))
    if not parts:
        raise ValueError("parts must hold the counts of at least one range")
    first = parts[0]
    for part in parts[1:]:
        if not _same_question(first, part):
            raise ValueError(f"parts: {part} and {first} are not of one ranking")
    check_cover([(part.start, part.stop) for part in parts], first.num_entities, "parts")
    counts = torch.stack([part.counts for part in parts]).sum(0)
    asked = Asked(first.asked.hrt, first.asked.sides, known, first.asked.ids, 1)
    return asked.ranks(counts, first.num_entities)


def _same_question(one: RangeCounts, other: RangeCounts) -> bool:
    """Whether two ranges answer the same."""
    a, b = one.asked, other.asked
    same_ids = a.ids is b.ids or (
        a.ids is not None and b.ids is not None and torch.equal(a.ids, b.ids)
    )
    return (
        one.num_entities == other.num_entities
        and a.sides == b.sides
        and torch.equal(a.hrt, b.hrt)
        and same_ids
    )


def check_cover(ranges: Sequence[tuple[int, int]], total: int, name: str) -> None:
    """That ascending ranges hold every row once.

    Raises
    ------
    ValueError
        With the first rows that are missing, or held twice.
    """
    end = 0
    for start, stop in [*(span for span in ranges if span[0] < span[1]), (total, total)]:
        if start > end:
            raise ValueError(f"{name}: nobody holds rows {end} .. {start - 1} of {total}")
        if start < end:
            last = min(stop, end) - 1
            raise ValueError(f"{name}: rows {start} .. {last} of {total} are held twice")
        end = stop

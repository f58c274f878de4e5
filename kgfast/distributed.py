"""Ranking and prediction by several processes: torch.distributed, or any scheduler of ranges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kgfast.eval.asked import asked_for
from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
)
from kgfast.eval.candidate_ids import (
    Given,
    ListedCandidates,
    candidates_of_sides,
    checked_candidates,
)
from kgfast.eval.counting import Ranking, count_candidates, count_side
from kgfast.eval.meeting import LostProcessError, Meeting, OtherProcessError, announced
from kgfast.eval.partial import Fingerprint
from kgfast.eval.predictions import Predictions
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.ranking import ranks_of
from kgfast.eval.ranks import Ranks
from kgfast.eval.rows import RowReader, state_of
from kgfast.eval.search import Search, answers
from kgfast.eval.sources import Crops, InRows
from kgfast.eval.team import Team, check_cover, digest, facts_of, names_digest
from kgfast.graph import KnownTriples, TypeConstraints, as_triples_tensor, names_of, with_names
from kgfast.graph.named import Names
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import SIDES, Side, operator_width
from kgfast.models.relations import is_in_blocks
from kgfast.ops.topk import check_k
from kgfast.progress import progress_bar
from kgfast.tables import Shard, as_rows
from kgfast.text import shown

__all__ = [
    "LostProcessError",
    "OtherProcessError",
    "RangeCounts",
    "count_range",
    "merge",
    "rank",
    "topk",
]

_SAMPLE = 64  # rows that tell the table of one model from that of another
_FILE_BATCHES = 8  # batches that a table in a file is read for at once


@announced
def rank(
    model: RankableModel | BlockScorer,
    triples: Any,
    *,
    known: KnownTriples | None = None,
    sides: Sequence[Side] = SIDES,
    candidate_ids: Any = None,
    dims: int | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
    vocabulary: Any = None,
    timeout: float = 1800.0,
    progress: bool = False,
) -> Ranks:
    """Rank as :func:`kgfast.rank` does, by all processes of ``torch.distributed`` together.

    Every process makes the same call, with the rows that it holds: a model of a
    :class:`kgfast.tables.Shard`, in memory or in a file, or one with all rows. Where several hold
    the same rows, the triples are shared out among them. The integers are those of one process, for
    any number of them, and every process gets them.

    The owner of an anchor makes the query, the owner of a target scores it, by the definition; both
    are sent to all. Counts are int64 and are added once, at the end. So a query costs its width in
    float32 (float64 for float64 tables) and 48 bytes, however large the table is; where it names
    its own candidates, the width of a row and 40 bytes.

    Parameters
    ----------
    model : Model
        Its relations, and all else but the entity table, are the same in all processes. Functions
        are not ranked in shards.
    triples : Triples, Tensor, array or sequence
        As :func:`kgfast.rank` takes them; the same in all processes.
    known : KnownTriples, optional
        Triples to filter by: at least those whose answer is held here.
    sides : sequence of {"head", "tail"}
    candidate_ids : optional
        As :func:`kgfast.rank` takes them; the same in all processes.
    dims : int, optional
        A crop width.
    batch_size : int, optional
        Queries between two meetings of the processes.
    nan : {"error", "worst"}
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the rows; the same in all processes.
    timeout : float
        Seconds to wait for the slowest process at each batch.
    progress : bool
        Show a progress bar, in process 0.

    Returns
    -------
    Ranks
        On the host.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.rank`.
    OtherProcessError
        In the other processes, if one fails: the message names that process.
    LostProcessError
        If a process ended or hangs; its ``ranks`` says which.

    Examples
    --------
    Of a file ``ranking.py``, started by ``torchrun --nproc-per-node=4 ranking.py``::

        part = kgfast.tables.Shard(rows, start=first, total_rows=40_943)
        ranks = kgfast.distributed.rank(kgfast.RotatE(part, relation), triples, known=known)
    """
    with Meeting("kgfast.distributed.rank", timeout) as meeting:
        reader = _reader_of(model, nan)
        triples, names = with_names(triples, vocabulary)
        check_names(names_of(vocabulary), model)
        plan = _plan(model, reader, (triples, known, sides, candidate_ids), batch_size, nan, names)
        team = Team.of(meeting, reader, facts_of(model, reader, dims) | _facts(plan))
        total = len(plan.hrt) * len(plan.sides) // team.num_shares
        shows = progress and meeting.rank == 0
        with evaluating(model), torch.no_grad(), progress_bar(shows, "ranking", total) as advance:
            counts = plan.room(1).zero_()
            for column, side in enumerate(plan.sides):
                source = _source(plan, side, dims, reader)
                count_side(plan, source, counts[..., column], advance, team)
                if team.num_shares > 1:
                    count_candidates(plan, source, counts[5, 0, :, column])
            team.add(counts)
        return _ranks(plan, counts)


@announced
def topk(
    model: RankableModel | BlockScorer,
    *,
    heads: Any = None,
    tails: Any = None,
    relations: Any,
    k: int,
    known: KnownTriples | None = None,
    candidate_ids: Any = None,
    dims: int | None = None,
    pad: bool = False,
    vocabulary: Any = None,
    batch_size: int | None = None,
    timeout: float = 1800.0,
    progress: bool = False,
) -> Predictions:
    """Find the ``k`` best tails or heads as :func:`kgfast.topk` does, by all processes together.

    Every process makes the same call with the rows that it holds, as for
    :func:`kgfast.distributed.rank`, and gets the same answers: those of one process, equal scores
    ordered by the lowest id. A query costs its width and ``16 k`` bytes of each process.

    Parameters
    ----------
    model : Model
    heads, relations, tails, k, known, dims, pad, vocabulary, batch_size
        As :func:`kgfast.topk` takes them; the same in all processes, but for ``known``, which needs
        the triples whose answer is held here.
    candidate_ids : optional
        As :func:`kgfast.rank` takes them; the same in all processes.
    timeout : float
        Seconds to wait for the slowest process at each batch.
    progress : bool
        Show a progress bar, in process 0.

    Returns
    -------
    Predictions
        On the device of the model.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.topk`.
    OtherProcessError
        In the other processes, if one fails: the message names that process.
    LostProcessError
        If a process ended or hangs; its ``ranks`` says which.
    """
    with Meeting("kgfast.distributed.topk", timeout) as meeting:
        check_rankable(model)
        check_known(known)
        names = names_of(vocabulary)
        check_names(names, model)
        if relations is None:
            raise NotImplementedError("relations are predicted by one process: kgfast.topk")
        side, name, anchors, others = asked_for(model, heads, relations, tails, names)
        given = _candidates(candidate_ids, (side,), len(anchors), model, names)[side]
        ids = given if isinstance(given, Tensor) else None
        asked = side, name, anchors.cpu(), others.cpu()
        reader, size = _reader_of(model), checked_batch_size(batch_size, model)
        search = Search(model, *asked, k, known, given, _crop(model, dims), size, pad=pad)
        most = reader.num_rows if ids is None else len(ids)
        is_shared = given is None or ids is not None
        check_k(k, most if len(anchors) and not pad and is_shared else None)
        facts = facts_of(model, reader, dims) | _facts_of_search(search, names)
        team = Team.of(meeting, reader, facts)
        shows, total = progress and meeting.rank == 0, len(search) // team.num_shares
        with evaluating(model), torch.no_grad(), progress_bar(shows, "predicting", total) as show:
            source = InRows(model, side, search.crop, reader, ids)
            scores, best = answers(search, source, search.size(size), team, done=show)
        device = reader.device
        values = scores, best, search.anchors, search.others
        scores, best, anchors, others = (it.to(device) for it in values)
        return Predictions(scores, best, anchors, others, side, vocabulary=names)


@dataclass(frozen=True)
class RangeCounts:
    """Counts of :func:`count_range`, small enough to send, which :func:`merge` adds.

    Attributes
    ----------
    start, stop : int
        The range of entities.
    num_entities : int
        Of the whole table.
    counts : Tensor
        int64 ``[6, T, S]``: greater, equal, both of the known answers, how many these are, and
        candidates of the whole table.
    triples : Tensor
        int64 ``[T, 3]``.
    sides : tuple of {"head", "tail"}
    asked : str
        A digest of the model (its parameters and 64 rows of its table), ``candidate_ids``, ``dims``
        and ``nan``.
    """

    start: int
    stop: int
    num_entities: int
    counts: Tensor
    triples: Tensor
    sides: tuple[Side, ...]
    asked: str

    def is_of(self, other: "RangeCounts") -> bool:
        """Return whether two ranges answer the same."""
        same = (self.num_entities, self.sides, self.asked) == (
            other.num_entities,
            other.sides,
            other.asked,
        )
        return same and torch.equal(self.triples, other.triples)

    def __repr__(self) -> str:
        triples, sides = self.counts.shape[1:]
        return (
            f"RangeCounts(entities {self.start} .. {self.stop - 1} of {self.num_entities:,}, "
            f"{triples} triples, {sides} sides)"
        )


def count_range(
    model: RankableModel | BlockScorer,
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
    candidate_ids : optional
        As :func:`kgfast.rank` takes them.
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
    whole = _reader_of(model, nan)
    if not whole.is_whole:
        raise ValueError(
            f"model: it holds rows {whole.start} .. {whole.stop - 1} of {whole.num_rows}; "
            f"count_range needs the rows of all queries and targets (kgfast.distributed.rank does "
            f"not)"
        )
    if not 0 <= start <= stop <= whole.num_rows:
        raise ValueError(
            f"start, stop must be a range within 0 .. {whole.num_rows}; got {shown(start)}, "
            f"{shown(stop)}"
        )
    plan = _plan(model, whole, (triples, known, sides, candidate_ids), batch_size, nan)
    reader, counts = RowReader.of_part(whole.entity, start, stop), plan.room(1)
    with evaluating(model), torch.no_grad():
        for column, side in enumerate(plan.sides):
            source = _source(plan, side, dims, reader)
            count_side(plan, source, counts[..., column], lambda count: None)
    found = _fingerprint_of(model, whole)
    found.add(_digest_of(plan.candidates), dims, nan)
    asked = plan.hrt, plan.sides, found.text()
    return RangeCounts(start, stop, whole.num_rows, counts[:, 0], *asked)


def _fingerprint_of(model: Any, whole: RowReader) -> Fingerprint:
    """Begin the fingerprint of a ranking with its model: parameters, and some rows of the table."""
    found = Fingerprint()
    few = min(_SAMPLE, whole.num_rows)
    ids = torch.arange(few, dtype=torch.int64, device=CPU) * whole.num_rows // max(1, few)
    found.add(type(model).__name__, model.score, whole.rows(ids))
    found.add_each(it for it in state_of(model) if it is not model.entity)
    return found


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
        If ranges overlap, leave rows out, or are of different models, triples, sides or
        options; the message names the first that does.
    """
    parts = sorted(parts, key=lambda part: (part.start, part.stop))
    if not parts:
        raise ValueError("parts must hold the counts of at least one range")
    first = parts[0]
    for part in parts[1:]:
        if not part.is_of(first):
            raise ValueError(f"parts: {part} and {first} are not of one ranking")
    check_cover([(part.start, part.stop) for part in parts], first.num_entities, "parts")
    counts = torch.stack([part.counts for part in parts]).sum(0)
    counts[5] = first.counts[5]  # the candidates of the whole table, which every part knows
    return ranks_of(counts, first.triples, first.sides, known, (None, None))


class _SharedRanking(Ranking):
    """A ranking whose queries are made where the rows of their anchors are held."""

    def words(self, queries: Queries, place: int) -> str:
        """Name the entity and the relation of a query that is not finite."""
        anchor, relation = int(queries.anchors[place]), int(queries.others[place])
        return (
            f"the {queries.side} query of entity {anchor} and relation {relation} holds a NaN or "
            f"an infinity, from their embeddings"
        )


def _reader_of(model: Any, nan: str = "error") -> RowReader:
    """Return the rows of a model's entities that this process holds."""
    check_rankable(model)
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")
    if is_in_blocks(model):
        raise TypeError(
            "model: a function that scores has no rows to share out; give each process a part of "
            "the triples and call kgfast.rank"
        )
    entity = getattr(model, "entity", None)
    if entity is None:
        raise TypeError(f"{type(model).__name__} must have entity, its table of entities")
    if not isinstance(entity, Tensor) and not hasattr(model, "with_entity"):
        raise TypeError(
            f"{type(model).__name__} must have with_entity(rows), the same model of some of its "
            f"entities, to be ranked in parts"
        )
    if isinstance(entity, Shard):
        return RowReader.of_part(entity, entity.start, entity.stop)
    whole = entity if isinstance(entity, Tensor) else as_rows(entity)
    return RowReader.of_part(whole, 0, int(model.num_entities))


def _plan(
    model: RankableModel | BlockScorer,
    reader: RowReader,
    asked: tuple[Any, Any, Any, Any],
    batch_size: int | None,
    nan: str,
    names: Names = (None, None),
) -> Ranking:
    """Check triples, known triples, sides and candidates against a model."""
    triples, known, sides, candidate_ids = asked
    check_known(known)
    chosen: tuple[Side, ...] = () if isinstance(sides, str) else tuple(sides)
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(SIDES):
        raise ValueError(f"sides must be distinct, of 'head' and 'tail'; got {sides!r}")
    hrt = as_triples_tensor(
        triples, num_entities=reader.num_rows, num_relations=int(model.num_relations)
    ).cpu()
    size = checked_batch_size(batch_size, model)
    if batch_size is None and not reader.in_place:
        size *= _FILE_BATCHES
    candidates = _candidates(candidate_ids, chosen, len(hrt), model, names)
    return _SharedRanking(model, hrt, known, chosen, candidates, size, nan == "worst", names)


def _candidates(
    candidate_ids: Any, sides: tuple[Side, ...], count: int, model: Any, names: Names
) -> dict[Side, Given]:
    """Check the candidates of each side; one list of all queries ascends."""
    found = candidates_of_sides(candidate_ids, sides, count, model, names)
    total = int(model.num_entities)
    return {
        side: checked_candidates(given, total) if isinstance(given, Tensor) else given
        for side, given in found.items()
    }


def _source(plan: Ranking, side: Side, dim: int | None, reader: RowReader) -> InRows:
    """Return the rows held here as candidates of a side."""
    given = plan.candidates[side]
    ids = given if isinstance(given, Tensor) else None
    return InRows(plan.model, side, _crop(plan.model, dim), reader, ids, allows_nan=plan.allows_nan)


def _crop(model: Any, dim: int | None) -> Crops:
    return {dim: None if dim is None else operator_width(model, dim)}


def _ranks(plan: Ranking, counts: Tensor) -> Ranks:
    """Return the ranks of counts that cover the table, ``[6, 1, T, S]``."""
    return ranks_of(counts[:, 0], plan.hrt, plan.sides, plan.known, plan.names)


def _facts(plan: Ranking) -> dict[str, str]:
    """Return what must be the same of a ranking in all processes, in words."""
    return {
        "vocabularies": names_digest(plan.names),
        "triples": f"{len(plan.hrt):,} triples {digest(plan.hrt)}",
        "sides": ", ".join(plan.sides),
        "candidate_ids": _digest_of(plan.candidates),
        "batch_size": str(plan.batch_size),
        "nan": "worst" if plan.allows_nan else "error",
        "whether triples are filtered": str(plan.known is not None),
    }


def _facts_of_search(search: Search, names: Names) -> dict[str, str]:
    """Return what must be the same of a search in all processes, in words."""
    return {
        "vocabularies": names_digest(names),
        "queries": f"{len(search):,} {digest(search.side, search.anchors, search.others)}",
        "k": str(search.k),
        "candidate_ids": _digest_of({search.side: search.given}),
        "whether known answers are left out": str(search.known is not None),
        "pad": str(bool(search.pad)),
        "batch_size": str(search.batch_size),
    }


def _digest_of(candidates: dict[Side, Given]) -> str:
    """Return what two processes compare instead of candidates."""
    return " and ".join(_digest(given) for given in candidates.values())


def _digest(given: Given) -> str:
    if isinstance(given, ListedCandidates):
        ids = given.ids
        ids = ids if isinstance(ids, Tensor) else torch.from_numpy(np.array(ids, dtype=np.int64))
        return digest(ids, *([] if given.indptr is None else [given.indptr]))
    if isinstance(given, TypeConstraints):
        relations = range(given.num_relations)
        return digest(*(given.candidates(it, side) for side in SIDES for it in relations))
    return "none" if given is None else digest(given)

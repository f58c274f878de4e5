"""Ranking and prediction by several processes: torch.distributed, or any scheduler of ranges."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kgfast.eval.above_search import AboveSearch
from kgfast.eval.answers import AskedQueries, Search, answers
from kgfast.eval.batches import check_rankable, evaluating
from kgfast.eval.candidate_ids import (
    Allowed,
    CandidateIds,
    ExcludedIds,
    Given,
    ListedCandidates,
    checked_candidates,
)
from kgfast.eval.counting import (
    Ranking,
    count_relations,
    count_side,
    source_in_memory,
)
from kgfast.eval.one_pass import fingerprint_of
from kgfast.eval.partial import BLOCK_BYTES, Partial, using
from kgfast.eval.predictions import AnswersAbove, Predictions
from kgfast.eval.ranking import ranks_of, warn_without_candidates
from kgfast.eval.ranks import Ranks
from kgfast.eval.rows import RowReader
from kgfast.eval.sources import Crops, InRows, crops_of
from kgfast.graph import IdsLike, KnownTriples, TriplesLike, TypeConstraints, VocabularyLike
from kgfast.kernels.cpu.tiers import counted_pairs
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import SIDES, Side
from kgfast.models.relations import is_in_blocks
from kgfast.ops.above import MAX_RESULTS
from kgfast.ops.topk import check_k
from kgfast.processes.shares import Team, check_cover, facts_of, names_digest
from kgfast.processes.steps import LostProcessError, OtherProcessError, Processes, announced
from kgfast.progress import progress_bar
from kgfast.storage import digest
from kgfast.tables import Shard, as_rows
from kgfast.text import shown

__all__ = [
    "LostProcessError",
    "OtherProcessError",
    "RangeCounts",
    "above",
    "count_range",
    "merge",
    "rank",
    "topk",
]

_FILE_BATCHES = 8  # batches per read of a table in a file


@announced
def rank(
    model: RankableModel | BlockScorer,
    triples: TriplesLike,
    *,
    known: KnownTriples | None = None,
    sides: Sequence[Side] = SIDES,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
    vocabulary: VocabularyLike | None = None,
    partial: str | os.PathLike[str] | None = None,
    timeout: float = 1800.0,
    progress: bool = False,
) -> Ranks:
    """Rank as :func:`kgfast.rank` does, by all processes of ``torch.distributed`` together.

    Every process makes the same call with a model of its own rows: a :class:`kgfast.tables.Shard`
    in memory or in a file, or all rows. Processes with the same rows share the triples among them.
    Every process gets all ranks: the integers that :func:`kgfast.rank` returns in one process.

    The process that owns an anchor makes the query. The process that owns a target computes its
    canonical score. Both are sent to all processes, and int64 counts are added once, at the end. So
    a query sends its width in float32 (float64 for float64 tables) and 48 bytes, for a table of any
    size. A query with its own candidates sends the width of a row and 40 bytes.

    Parameters
    ----------
    model : Model
        All parameters but the entity table must be equal in all processes. A
        :class:`kgfast.BlockScorer` cannot be ranked in shards.
    triples : Triples, Tensor, array or sequence
        As :func:`kgfast.rank` takes them; the same in all processes.
    known : KnownTriples, optional
        Triples to filter by: at least all triples whose answer is a row of this process. For
        relations, all known triples.
    sides : sequence of {"head", "relation", "tail"}
        For relations, the rows of the heads and tails of a batch are sent to all processes, and
        each process ranks: a query sends two rows.
    candidate_ids : optional
        As :func:`kgfast.rank` takes them; the same in all processes.
    dims : int, optional
        A crop width.
    batch_size : int, optional
        Queries between two exchanges of the processes.
    nan : {"error", "worst"}
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the rows; the same in all processes.
    partial : path, optional
        A folder that saves the counts after each range of rows, in one subfolder per process. The
        same call by as many processes resumes from there, as :func:`kgfast.rank` does. Rows in
        memory are then read in blocks, too. Counts of relations are not saved.
    timeout : float
        Seconds to wait for the slowest process at each batch.
    progress : bool
        Show a progress bar, in process 0.

    Returns
    -------
    Ranks
        Ranks of all triples, on the host.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.rank`.
    OtherProcessError
        In the other processes, if one fails: the message names that process.
    LostProcessError
        If a process ended or hangs; the attribute ``ranks`` of the error says which.

    Examples
    --------
    The file ``ranking.py``, started by ``torchrun --nproc-per-node=4 ranking.py``::

        part = kgfast.tables.Shard(rows, start=first, total_rows=40_943)
        ranks = kgfast.distributed.rank(kgfast.RotatE(part, relation), triples, known=known)
    """
    with Processes("kgfast.distributed.rank", timeout) as processes, ExitStack() as stack:
        reader = _reader_of(model)
        allowed = Allowed(known, candidate_ids)
        plan = Ranking(model, triples, sides, allowed, batch_size, nan, vocabulary)
        plan = _plan(plan, reader, batch_size)
        facts = facts_of(model, reader, dims) | _facts(plan, partial)
        team = Team.of(processes, reader, facts)
        kept, reader = _kept(stack, partial, team, reader, [model, known, facts])
        total = len(plan.hrt) * len(plan.sides) // team.num_shares
        shows = progress and processes.rank == 0
        with (
            evaluating(model),
            torch.no_grad(),
            counted_pairs() as pairs,
            progress_bar(shows, "ranking", total) as advance,
        ):
            counts, crops = plan.room(1), crops_of(model, [dims])
            for column, side in enumerate(plan.sides):
                room = counts[..., column]
                if side == "relation":
                    count_relations(plan, crops, room, advance, team.local(model, reader), team)
                    if not team.leads:  # all processes of a team count the same relations
                        room[:5].zero_()
                else:
                    source = _source(plan, side, crops, reader)
                    count_side(plan, source, room, advance, team, kept)
            team.add(counts)
            processes.sum(pairs, team.everyone)
        warn_without_candidates(counts[5, 0], plan.hrt, plan.sides, plan.names)
        return ranks_of(counts[:, 0], plan.hrt, plan.sides, plan.known, plan.names, pairs=pairs)


@announced
def topk(
    model: RankableModel | BlockScorer,
    *,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    relations: IdsLike | None = None,
    k: int,
    known: KnownTriples | None = None,
    exclude: ExcludedIds | None = None,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    pad: bool = False,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    partial: str | os.PathLike[str] | None = None,
    timeout: float = 1800.0,
    progress: bool = False,
) -> Predictions:
    """Find the ``k`` best answers as :func:`kgfast.topk` does, by all processes together.

    Every process makes the same call with its own rows, as for :func:`kgfast.distributed.rank`.
    Every process gets all answers: those of :func:`kgfast.topk` in one process, with equal scores
    ordered by the lowest id. A query sends its width, and ``16 k`` bytes from each process. A query
    for relations sends two rows.

    Parameters
    ----------
    model : Model
    heads, relations, tails, k, known, exclude, dims, pad, vocabulary, batch_size
        As :func:`kgfast.topk` takes them; the same in all processes. Only ``known`` may differ: at
        least all triples whose answer is a row of this process, and for relations all known
        triples.
    candidate_ids : optional
        As :func:`kgfast.rank` takes them; the same in all processes.
    partial : path, optional
        A folder that saves the answers of each process, as :func:`kgfast.distributed.rank` takes
        it.
    timeout : float
        Seconds to wait for the slowest process at each batch.
    progress : bool
        Show a progress bar, in process 0.

    Returns
    -------
    Predictions
        Answers to all queries, on the device of the model.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.topk`.
    OtherProcessError
        In the other processes, if one fails: the message names that process.
    LostProcessError
        If a process ended or hangs; the attribute ``ranks`` of the error says which.
    """
    asked = AskedQueries(heads, relations, tails, vocabulary)
    allowed = Allowed(known, candidate_ids, exclude)

    def search() -> Search:
        return Search(model, asked, k, allowed, dims, batch_size, pad)

    found: Predictions = _answered("topk", search, (model, known, dims), partial, timeout, progress)
    return found


@announced
def above(
    model: RankableModel | BlockScorer,
    threshold: Tensor | float,
    *,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    relations: IdsLike | None = None,
    known: KnownTriples | None = None,
    exclude: ExcludedIds | None = None,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    max_results: int = MAX_RESULTS,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    timeout: float = 1800.0,
    progress: bool = False,
) -> AnswersAbove:
    """Find all answers above a threshold as :func:`kgfast.above` does, by all processes together.

    Every process makes the same call with its own rows, as for :func:`kgfast.distributed.topk`.
    Every process gets all answers: those of :func:`kgfast.above` in one process. A query sends its
    width, and the answers of a batch go to every process.

    Parameters
    ----------
    model : Model
    threshold, max_results
        As :func:`kgfast.above` takes them; the same in all processes.
    heads, relations, tails, known, exclude, candidate_ids, dims, vocabulary, batch_size
        As :func:`kgfast.distributed.topk` takes them.
    timeout : float
        Seconds to wait for the slowest process at each batch.
    progress : bool
        Show a progress bar, in process 0.

    Returns
    -------
    AnswersAbove
        Answers to all queries, on the device of the model.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.above`.
    OtherProcessError, LostProcessError
        As :func:`kgfast.distributed.topk`.
    """
    asked = AskedQueries(heads, relations, tails, vocabulary)
    allowed = Allowed(known, candidate_ids, exclude)

    def search() -> Search:
        return AboveSearch(model, asked, threshold, max_results, allowed, dims, batch_size)

    found: AnswersAbove = _answered("above", search, (model, known, dims), None, timeout, progress)
    return found


def _answered(
    name: str,
    make: Callable[[], Search],
    call: tuple[Any, KnownTriples | None, int | None],
    partial: Any,
    timeout: float,
    progress: bool,
) -> Any:
    """Return the results of all processes; ``make`` checks the arguments once all have met."""
    model, known, dims = call
    with Processes(f"kgfast.distributed.{name}", timeout) as processes, ExitStack() as stack:
        reader = _reader_of(model)
        search = make()
        search.anchors, search.others = search.anchors.cpu(), search.others.cpu()
        is_relation = search.side == "relation"
        rows = int(model.num_relations) if is_relation else reader.num_rows
        ids = search.given = _ascending(search.given, rows)
        most = len(ids) if isinstance(ids, Tensor) else rows
        is_shared = ids is None or isinstance(ids, Tensor)
        check_k(search.k, most if len(search) and not search.pad and is_shared else None)
        facts = facts_of(model, reader, dims) | _facts(search, partial)
        team = Team.of(processes, reader, facts)
        size = search.size(search.batch_size)
        total = len(search) if is_relation else len(search) // team.num_shares
        shows = progress and processes.rank == 0
        with evaluating(model), torch.no_grad(), progress_bar(shows, "predicting", total) as show:
            if is_relation:
                local = team.local(model, reader)(torch.cat([search.anchors, search.others]))
                memory = source_in_memory(local, search.side, search.crop, search.ids)
                return search.predictions(*answers(search, memory, size, done=show))
            folder = None if isinstance(search.given, ListedCandidates) else partial
            kept, reader = _kept(stack, folder, team, reader, [model, known, facts])
            source = InRows(model, search.side, search.crop, reader, search.ids)
            found = answers(search, source, size, team, kept=kept, done=show)
        return search.predictions(*(it.to(reader.device) for it in found))


def _kept(
    stack: ExitStack, partial: Any, team: Team, reader: RowReader, asked: Sequence[Any]
) -> tuple[Partial | None, RowReader]:
    """Open the folder of this process, and return the reader of its rows.

    ``asked`` holds the model, the known triples, and the facts that all processes share.
    """
    if partial is None:
        return None, reader
    model, known, facts = asked
    processes, reader = team.processes, reader.in_blocks(BLOCK_BYTES)
    table = as_rows(reader.entity)
    found = fingerprint_of(model, reader, "shard", table.shape, table.dtype, table.facts)
    spans = reader.start, reader.stop, team.share, team.num_shares
    found.add(*spans, None if known is None else known.checksum, facts)
    folder = Path(partial, f"process-{processes.rank}-of-{processes.size}")
    path = stack.enter_context(using(folder))
    kept = Partial(path, reader, found.text(), 1)
    return kept, kept.reader


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
        A digest of the model (its parameters and 64 rows of its table), ``candidate_ids``, ``dims``
        and ``nan``.
    pairs : Tensor
        int64 ``[5]``: pairs by the sweep that decided them, as :class:`kgfast.eval.TierPairs` reads
        them.
    """

    start: int
    stop: int
    num_entities: int
    counts: Tensor
    triples: Tensor
    sides: tuple[Side, ...]
    asked: str
    pairs: Tensor

    def __repr__(self) -> str:
        triples, sides = self.counts.shape[1:]
        return (
            f"RangeCounts(entities {self.start} .. {self.stop - 1} of {self.num_entities:,}, "
            f"{triples} triples, {sides} sides)"
        )


def count_range(
    model: RankableModel | BlockScorer,
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
        As :func:`kgfast.rank` takes them.
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
    whole = _reader_of(model)
    if not whole.is_whole:
        raise ValueError(
            f"model: its shard holds rows {whole.start} .. {whole.stop - 1} of {whole.num_rows}; "
            "count_range needs the rows of all queries and targets (kgfast.distributed.rank does "
            "not)"
        )
    if not 0 <= start <= stop <= whole.num_rows:
        raise ValueError(
            f"start, stop must be a range within 0 .. {whole.num_rows}; got {shown(start)}, "
            f"{shown(stop)}"
        )
    if not set(sides) <= set(SIDES):
        raise ValueError(f"sides must be distinct, of 'head' and 'tail'; got {sides!r}")
    plan = Ranking(model, triples, sides, Allowed(known, candidate_ids), batch_size, nan)
    plan = _plan(plan, whole, batch_size)
    reader, counts = RowReader.of_part(whole.entity, start, stop), plan.room(1)
    with evaluating(model), torch.no_grad(), counted_pairs() as pairs:
        for column, side in enumerate(plan.sides):
            source = _source(plan, side, crops_of(model, [dims]), reader)
            count_side(plan, source, counts[..., column], lambda count: None)
    found = fingerprint_of(model, whole, "range")
    found.add(_digest_of(plan.candidates), dims, nan)
    # a view is pickled with the whole tensor that it views
    asked = plan.hrt.clone(), plan.sides, found.text()
    return RangeCounts(start, stop, whole.num_rows, counts[:, 0], *asked, pairs)


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
    for part in parts[1:]:
        asked = [(it.num_entities, it.sides, it.asked) for it in (part, first)]
        if asked[0] != asked[1] or not torch.equal(part.triples, first.triples):
            raise ValueError(f"parts: {part} and {first} are not of one ranking")
    check_cover([(part.start, part.stop) for part in parts], first.num_entities, "parts")
    counts = torch.stack([part.counts for part in parts]).sum(0)
    counts[5] = first.counts[5]  # candidates of the whole table, which every part knows
    pairs = torch.stack([part.pairs for part in parts]).sum(0)
    warn_without_candidates(counts[5], first.triples, first.sides, (None, None))
    return ranks_of(counts, first.triples, first.sides, known, (None, None), pairs=pairs)


def _reader_of(model: Any) -> RowReader:
    check_rankable(model)
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


def _plan(plan: Ranking, reader: RowReader, batch_size: int | None) -> Ranking:
    """Sort the candidates of a plan, and serve several batches per read of a file."""
    for side, given in plan.candidates.items():
        plan.candidates[side] = _ascending(given, reader.num_rows)
    if batch_size is None and not reader.in_place:
        plan.batch_size *= _FILE_BATCHES
    return plan


def _ascending(given: Given, count: int) -> Given:
    """Return candidates of ``count`` rows; a list that queries share is checked and sorted."""
    return checked_candidates(given, count) if isinstance(given, Tensor) else given


def _source(plan: Ranking, side: Side, crops: Crops, reader: RowReader) -> InRows:
    given = plan.candidates[side]
    ids = given if isinstance(given, Tensor) else None
    return InRows(plan.model, side, crops, reader, ids, allows_nan=plan.allows_nan)


def _facts(asked: Ranking | Search, partial: Any) -> dict[str, str]:
    """Return the facts of a call that all processes must share, in words."""
    shared = {
        "vocabularies": names_digest(asked.names),
        "batch_size": str(asked.batch_size),
        "whether partial= is given": str(partial is not None),
        "whether known answers are left out": str(asked.known is not None),
    }
    if isinstance(asked, Ranking):
        return shared | {
            "triples": f"{len(asked.hrt):,} triples {digest(asked.hrt)}",
            "sides": ", ".join(asked.sides),
            "candidate_ids": _digest_of(asked.candidates),
            "nan": "worst" if asked.allows_nan else "error",
        }
    left_out = asked.excluded
    return shared | {
        "queries": f"{len(asked):,} {digest(asked.side, asked.anchors, asked.others)}",
        "candidate_ids": _digest_of({asked.side: asked.given}),
        "exclude": "none" if left_out is None else digest(left_out.ids, left_out.indptr),
        **asked.facts,
    }


def _digest_of(candidates: dict[Side, Given]) -> str:
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

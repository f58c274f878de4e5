"""topk() by several processes: each finds the best of its rows; the best of these are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kgfast.distributed.held import Held
from kgfast.distributed.meeting import Meeting, announced
from kgfast.distributed.ranges import ids_of, named_rows
from kgfast.distributed.team import Team, digest, names_digest
from kgfast.eval.asked import asked_for, check_full, query_in_words
from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
)
from kgfast.eval.blocks import best_first
from kgfast.eval.passes import within
from kgfast.eval.predictions import Predictions
from kgfast.graph import KnownTriples, names_of
from kgfast.graph.named import Names
from kgfast.kernels.operands import Known, Operands
from kgfast.models.base import Side
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.ops.topk import check_k
from kgfast.progress import progress_bar


@announced
def topk(
    model: Any,
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
    candidate_ids : sequence of int, optional
        One list for all queries, the same in all processes.
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
        wanted = _Wanted.of(
            (model, heads, relations, tails), (k, candidate_ids, pad), known, vocabulary
        )
        held, size = Held.of(model, dims), checked_batch_size(batch_size, model)
        facts = {"pad": str(bool(pad)), "batch_size": str(size)}
        team = Team.of(meeting, held, wanted.facts() | facts)
        count = len(wanted.anchors)
        scores = torch.zeros((count, k), dtype=torch.float64, device="cpu")
        best = torch.zeros((count, k), dtype=torch.int64, device="cpu")
        shows, total = progress and meeting.rank == 0, count // team.num_shares
        with evaluating(model), torch.no_grad(), progress_bar(shows, "predicting", total) as show:
            search = _Search(team, held, wanted)
            every = torch.arange(count, dtype=torch.int64, device="cpu")
            batches = every.split(max(1, min(size, -(-count // team.num_shares))))
            for rows in team.share_of([rows for rows in batches if len(rows)]):
                scores[rows], best[rows] = search.run(rows)
                show(len(rows))
        team.tell_others(scores)
        team.tell_others(best)
        if not pad:
            check_full(best, wanted.query_in_words)
    dtype = torch.float64 if held.dtype == torch.float64 else torch.float32
    device = held.device
    return Predictions(
        scores.to(device, dtype),
        best.to(device),
        wanted.anchors.to(device),
        wanted.relations.to(device),
        wanted.side,
        vocabulary=wanted.names,
    )


@dataclass(frozen=True)
class _Wanted:
    """The checked arguments of a call."""

    side: Side
    name: str  # of the argument that the anchors are
    anchors: Tensor
    relations: Tensor
    k: int
    ids: Tensor | None
    known: KnownTriples | None
    names: Names

    @classmethod
    def of(
        cls,
        asked: tuple[Any, Any, Any, Any],
        limits: tuple[int, Any, bool],
        known: KnownTriples | None,
        vocabulary: Any,
    ) -> "_Wanted":
        model, heads, relations, tails = asked
        k, candidate_ids, pad = limits
        check_rankable(model)
        check_known(known)
        names = names_of(vocabulary)
        check_names(names, model)
        if relations is None:
            raise NotImplementedError("relations are predicted by one process: kgfast.topk")
        side, name, anchors, others = asked_for(model, heads, relations, tails, names)
        count = int(model.num_entities)
        ids = ids_of(candidate_ids, count)
        count = count if ids is None else len(ids)
        check_k(k, count if len(anchors) and not pad else None)
        return cls(side, name, anchors.cpu(), others.cpu(), k, ids, known, names)

    def facts(self) -> dict[str, str]:
        """What must be the same in all processes, in words."""
        return {
            "vocabularies": names_digest(self.names),
            "queries": f"{len(self.anchors):,} {digest(self.side, self.anchors, self.relations)}",
            "k": str(self.k),
            "candidate_ids": "none" if self.ids is None else digest(self.ids.cpu()),
            "whether known answers are left out": str(self.known is not None),
        }

    def query_in_words(self, row: int) -> str:
        """A query, as messages call it."""
        return query_in_words(self.side, self.name, row, self.anchors[row], self.relations[row])


class _Search:
    """What the batches of one call share."""

    def __init__(self, team: Team, held: Held, wanted: _Wanted) -> None:
        self.team, self.held, self.wanted = team, held, wanted
        self.ids = None if wanted.ids is None else wanted.ids.to(held.device)
        self.kept = team.meeting.together(
            lambda: None if held.is_read_in_blocks else list(held.blocks(wanted.side, self.ids))
        )

    def run(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Canonical scores and ids of some queries' answers, ``[B, k]``, on the host."""
        wanted, team = self.wanted, self.team
        anchors, relations = wanted.anchors[rows], wanted.relations[rows]
        queries = team.queries(self.held, anchors, relations, wanted.side)
        scores, ids = team.meeting.together(partial(self._own, queries, anchors, relations))
        parts = zip(
            team.meeting.gather(scores, team.group),
            team.meeting.gather(ids, team.group),
            strict=True,
        )
        return _best(list(parts), wanted.k)

    def _own(self, queries: Tensor, anchors: Tensor, relations: Tensor) -> tuple[Tensor, Tensor]:
        """The best of the rows that are held."""
        held, wanted = self.held, self.wanted
        known = None
        if wanted.known is not None:
            answers = wanted.known.exclude(
                anchors, relations, wanted.side, within=(held.start, held.stop)
            )
            known = Known(*(part.to(held.device) for part in answers))
        shape = (len(queries), wanted.k)
        found = [
            (
                torch.full(shape, -torch.inf, dtype=torch.float64, device="cpu"),
                torch.full(shape, -1, dtype=torch.int64, device="cpu"),
            )
        ]
        blocks = self.kept
        for first, pool in held.blocks(wanted.side, self.ids) if blocks is None else blocks:
            own = None if known is None else within(known, first, first + pool.num_rows)
            operands = Operands(queries, pool, held.crops)
            check_queries(queries, pool)
            with named_rows(held, first, pool):
                ids = run.topk(operands, wanted.k, own, run.checks_for(held.device))[1]
            ids = ids.reshape(shape)
            ids = torch.where(ids >= 0, ids + first, -1)
            scores = held.scores_of(queries, ids, wanted.side)
            found = [_best([*found, (scores.cpu(), ids.cpu())], wanted.k)]
        return found[0]


def _best(parts: Sequence[tuple[Tensor, Tensor]], k: int) -> tuple[Tensor, Tensor]:
    """The best ``k`` of several answers: by canonical score, and among equals the lowest id."""
    scores, ids = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    by_id = ids.argsort(dim=1, stable=True)
    scores, ids = scores.gather(1, by_id), ids.gather(1, by_id)
    order = best_first(scores, ids)[:, :k]
    return scores.gather(1, order), ids.gather(1, order)

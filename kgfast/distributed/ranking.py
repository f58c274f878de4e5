"""rank() by several processes: each counts the rows that it holds; the counts are added."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from kgfast.distributed.held import Held
from kgfast.distributed.meeting import Meeting, announced
from kgfast.distributed.ranges import Asked, Questions, count, roles
from kgfast.distributed.team import Team, digest, names_digest
from kgfast.eval.batches import check_names, check_rankable, evaluating
from kgfast.eval.ranks import Ranks
from kgfast.graph import KnownTriples, names_of, with_names
from kgfast.graph.named import Names
from kgfast.models.base import SIDES, Side
from kgfast.progress import progress_bar


@announced
def rank(
    model: Any,
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
    float32 (float64 for float64 tables) and 48 bytes, however large the table is.

    Parameters
    ----------
    model : Model
        Its relations, and all else but the entity table, are the same in all processes. Models
        whose candidates are computed (RSCF) and functions are not ranked in shards.
    triples : Triples, Tensor, array or sequence
        As :func:`kgfast.rank` takes them; the same in all processes.
    known : KnownTriples, optional
        Triples to filter by: at least those whose answer is held here.
    sides : sequence of {"head", "tail"}
    candidate_ids : sequence of int, optional
        One list for all queries, the same in all processes.
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
        asked, held, names = _checked(
            (model, triples, vocabulary), (known, sides, candidate_ids), (dims, batch_size, nan)
        )
        team = Team.of(meeting, held, _facts(asked, held, names))
        shows = progress and meeting.rank == 0
        total = len(asked.hrt) * len(asked.sides) // team.num_shares
        with evaluating(model), torch.no_grad(), progress_bar(shows, "ranking", total) as advance:
            counts = asked.room()
            for column, side in enumerate(asked.sides):
                _count_side(team, held, asked, side, counts[:, :, column], advance)
            meeting.together(lambda: None)
            meeting.sum(counts, team.everyone)
        return asked.ranks(counts, held.total, names)


def _checked(
    given: tuple[Any, Any, Any],
    chosen: tuple[KnownTriples | None, Sequence[Side], Any],
    options: tuple[int | None, int | None, str],
) -> tuple[Asked, Held, Names]:
    """The arguments of this process."""
    model, triples, vocabulary = given
    known, sides, candidate_ids = chosen
    dims, batch_size, nan = options
    check_rankable(model)
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")
    held = Held.of(model, dims, allows_nan=nan == "worst")
    triples, names = with_names(triples, vocabulary)
    check_names(names_of(vocabulary), model)
    return Asked.of(held, triples, sides, known, candidate_ids, batch_size), held, names


def _facts(asked: Asked, held: Held, names: Names) -> dict[str, str]:
    """What must be the same in all processes, in words."""
    return {
        "vocabularies": names_digest(names),
        "triples": f"{len(asked.hrt):,} triples {digest(asked.hrt)}",
        "sides": ", ".join(asked.sides),
        "candidate_ids": "none" if asked.ids is None else digest(asked.ids.cpu()),
        "batch_size": str(asked.batch_size),
        "nan": "worst" if held.allows_nan else "error",
        "whether triples are filtered": str(asked.known is not None),
    }


def _count_side(
    team: Team, held: Held, asked: Asked, side: Side, counts: Tensor, advance: Any
) -> None:
    """Add the counts of this process's rows for its team's triples, ``[5, T]``."""
    ids = None if asked.ids is None else asked.ids.to(held.device)
    kept = team.meeting.together(
        lambda: None if held.is_read_in_blocks else list(held.blocks(side, ids))
    )
    for rows in team.share_of(asked.batches(side, held.total, team.num_shares)):
        anchors, relations, targets = roles(asked.hrt[rows], side)
        queries = team.queries(held, anchors, relations, side)
        scores = team.target_scores(held, queries, targets, side)
        known = asked.known_answers(rows, side, held)
        questions = Questions(queries, targets.to(held.device), scores, known)
        blocks = held.blocks(side, ids) if kept is None else kept
        counts[:, rows] = team.meeting.together(partial(count, blocks, questions, held))
        advance(len(rows))

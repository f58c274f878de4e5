"""Answers that queries may have: all rows, one list, a list per query, or lists per relation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph import (
    IdsLike,
    KnownTriples,
    TypeConstraints,
    Vocabulary,
    check_same_names,
    ids_or_names,
)
from kgfast.graph.named import Names
from kgfast.kernels.lists import contains
from kgfast.kernels.operands import Known, Lists
from kgfast.models.base import SIDES, Side
from kgfast.ops.checks import check_index
from kgfast.ops.lists import lists_of
from kgfast.ops.values import check_ids, check_unique
from kgfast.storage import digest

_PAIRS = 1 << 19  # ids of a batch of lists: 4 MiB as int64

_OneSide = IdsLike | npt.NDArray[Any]
# Values that callers may pass as ``candidate_ids``.
CandidateIds = _OneSide | TypeConstraints | Mapping[Any, _OneSide | None]


class Allowed(NamedTuple):
    """Answers that queries may have, as arguments of :func:`kgfast.rank`."""

    known: KnownTriples | None
    candidate_ids: CandidateIds | None
    exclude: Any = None


@dataclass(frozen=True)
class ListedIds:
    """Ids that each of T queries names, ``[T, K]`` of any integer dtype, -1 for none.

    An array may be memory-mapped: only the rows of a batch are read.
    """

    ids: Any

    def rows(self, first: int = 0, last: int | None = None) -> Tensor:
        """Return the ids of a range of queries, or of all."""
        ids = self.ids[first:last]
        return ids if isinstance(ids, Tensor) else torch.from_numpy(np.array(ids, dtype=np.int64))

    def batch_size(self, pairs: int | None = None) -> int:
        """Return the queries of a batch with about ``pairs`` ids in all lists."""
        return max(1, (pairs or _PAIRS) // max(1, int(self.ids.shape[1])))

    def lists(self, first: int, last: int, num_rows: int, device: torch.device) -> Lists:
        """Return the checked, ascending lists of a range of queries."""
        return lists_of(self.rows(first, last).to(device, torch.int64), num_rows, first)


CheckedIds = Tensor | ListedIds | TypeConstraints | None


def candidates_of_sides(
    candidate_ids: Any, sides: Sequence[Side], num_queries: int, model: Any, names: Names
) -> dict[Side, CheckedIds]:
    """Return the candidates of each side that ``candidate_ids`` names."""
    if candidate_ids is None:
        return dict.fromkeys(sides)
    if isinstance(candidate_ids, TypeConstraints):
        if "relation" in sides:
            raise ValueError("candidate_ids: type constraints are of entities, not of relations")
        check_constraints(candidate_ids, model, names)
        return dict.fromkeys(sides, candidate_ids)
    argument, of_sides = "candidate_ids", {}
    if isinstance(candidate_ids, Mapping):
        if unknown := [side for side in candidate_ids if side not in SIDES]:
            raise ValueError(f"candidate_ids must be of 'head' and 'tail'; got {unknown[0]!r}")
        if missing := [side for side in sides if side not in candidate_ids]:
            raise ValueError(f"candidate_ids: side {missing[0]!r} is ranked and has none")
    for side in sides:
        vocabulary, value = names[1 if side == "relation" else 0], candidate_ids
        if isinstance(candidate_ids, Mapping):
            argument, value = f"candidate_ids[{side!r}]", candidate_ids[side]
        of_sides[side] = _checked_ids(argument, value, num_queries, vocabulary)
    return of_sides


def _checked_ids(name: str, value: Any, num_queries: int, names: Vocabulary | None) -> CheckedIds:
    if isinstance(value, TypeConstraints):
        raise TypeError(f"{name}: type constraints have both sides; give them alone, not in a dict")
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 2:
        if len(value) != num_queries:
            raise ValueError(
                f"{name} must have a row for each of {num_queries} queries; got shape "
                f"{list(value.shape)}"
            )
        if "int" not in str(value.dtype):
            raise TypeError(f"{name} must be integers, got dtype {value.dtype}")
        return ListedIds(value)
    return None if value is None else ids_or_names("candidate_ids", value, names)


def checked_ids_of(name: str, values: Any, count: int, names: Vocabulary | None) -> Tensor:
    """Return int64 ids below ``count``, of one axis or none."""
    ids = ids_or_names(name, values, names)
    if ids.ndim > 1:
        raise ValueError(f"{name} must have one axis at most; got shape {list(ids.shape)}")
    if not ids.numel():
        return ids
    ends = [ids.item()] if ids.numel() == 1 else torch.stack(torch.aminmax(ids)).tolist()
    if ends[0] < 0 or ends[-1] >= count:
        row = int(((ids < 0) | (ids >= count)).reshape(-1).nonzero()[0])
        where = f"{name}[{row}]" if ids.ndim else name
        raise ValueError(f"{where} must be in 0 .. {count - 1}; got {int(ids.reshape(-1)[row])}")
    return ids


def check_constraints(constraints: TypeConstraints, model: Any, names: Names) -> None:
    """Check that type constraints have the names of a model, and at most as many ids as rows."""
    check_same_names(names, constraints.names, "the type constraints")
    if constraints.num_times != (times := getattr(model, "num_times", None) or 1):
        raise ValueError(
            f"candidate_ids: the type constraints are of {constraints.num_times} times, the model "
            f"of {times}: make them of quads by from_triples or from_types, or give vocabulary="
        )
    for what in ("entities", "relations"):
        count, size = getattr(constraints, f"num_{what}"), getattr(model, f"num_{what}")
        if count > size:
            raise ValueError(
                f"candidate_ids: the type constraints are of {count:,} {what}, but the model has "
                f"{size:,}"
            )


def checked_candidates(ids: Tensor, count: int) -> Tensor:
    """Return distinct ids below ``count``, ascending, on the host."""
    ids = ids.cpu()
    check_index("candidate_ids", ids, (None,), ids)
    check_ids("candidate_ids", ids, count)
    check_unique("candidate_ids", ids)
    return ids.sort().values


def digest_of(candidate_ids: CheckedIds) -> str:
    """Return candidates in a few words, to be compared."""
    if candidate_ids is None:
        return "none"
    if isinstance(candidate_ids, ListedIds):
        return digest(candidate_ids.rows())
    if isinstance(candidate_ids, TypeConstraints):
        relations = range(candidate_ids.num_relations)
        return digest(*(candidate_ids.candidates(row, side) for side in SIDES for row in relations))
    return digest(candidate_ids)


def pool_sizes(
    known: Known, targets: Tensor, num_rows: int, sorted_ids: Tensor | None, lists: Lists | None
) -> tuple[Tensor, Tensor]:
    """Count known answers that are candidates other than the target, and all candidates, ``[B]``.

    The second count includes the target, but is 0 for a query without candidates. Candidates are
    ``lists``, else ``sorted_ids``, else all rows.
    """
    rows = torch.repeat_interleave(known.indptr.diff(), output_size=len(known.indices))
    counted = known.indices != targets[rows]
    if lists is not None:
        every = torch.arange(len(targets), dtype=torch.int64, device=targets.device)
        counted &= _in_lists(lists, rows, known.indices, num_rows)
        listed = lists.indptr.diff()
        sizes = listed + (~_in_lists(lists, every, targets, num_rows) & (listed > 0)).long()
    elif sorted_ids is not None:
        counted &= contains(sorted_ids, known.indices)
        is_new = ~contains(sorted_ids, targets) & (len(sorted_ids) > 0)
        sizes = len(sorted_ids) + is_new.long()
    else:
        sizes = torch.full_like(targets, num_rows)
    return torch.zeros_like(targets).index_add_(0, rows, counted.long()), sizes


def _in_lists(lists: Lists, rows: Tensor, ids: Tensor, num_rows: int) -> Tensor:
    """Return a mask of the ids ``[P]`` that are in the lists of queries ``rows [P]``."""
    owners = torch.repeat_interleave(lists.indptr.diff(), output_size=len(lists.indices))
    return contains(owners * num_rows + lists.indices, rows * num_rows + ids)

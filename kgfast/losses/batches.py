"""Batches of losses: triples or queries, checked, and queries made of the rows that they read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast import ops
from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.kernels.checks import checks_values, inside_of
from kgfast.kernels.spares import numbers
from kgfast.models import RankableModel
from kgfast.models.base import SIDES, Candidates, Side, candidates_at, queries_at, queries_of
from kgfast.models.wrapper import unwrapped
from kgfast.ops.checks import check_index
from kgfast.ops.differentiable import has_gradients
from kgfast.ops.row_gradients import read_rows
from kgfast.ops.values import safe_ids

# Batches that losses take: triples, or columns of anchors, relations and, optionally, targets.
Batch = TriplesLike | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


class AskedTriples(NamedTuple):
    """Queries with targets, int64 ``[B]`` each: for side ``tail`` heads, relations, tails."""

    anchors: Tensor
    relations: Tensor
    targets: Tensor | None

    def complete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return anchors, relations and targets; raise a ValueError if targets are missing."""
        if self.targets is None:
            raise ValueError(
                "triples must have targets, [B, 3] or (anchors, relations, targets); got "
                "(anchors, relations)"
            )
        return self.anchors, self.relations, self.targets

    def targets_or(self, name: str, given: Any) -> Any:
        """Return the given targets, called ``name``, else the targets of the batch."""
        if given is None and self.targets is None:
            raise ValueError(
                f"{name}: (anchors, relations) have no targets; give {name}, or triples [B, 3]"
            )
        return self.targets if given is None else given


def asked_triples(model: RankableModel, triples: Batch, side: Side, table: Tensor) -> AskedTriples:
    """Return the checked queries of a batch, on the device of the candidates' ``table``.

    ``triples`` are those of :func:`kgfast.losses.sampled_scores`; targets may be missing. A
    ValueError or TypeError names a wrong side, shape or dtype, and an id out of range.
    """
    side = checked(side)
    if isinstance(triples, tuple) and any(isinstance(part, Tensor) for part in triples):
        return _of_tensors(model, triples, side, table)
    sizes = model.num_entities, count_of(model, side)
    checks_ids = checks_values() or 0 in sizes
    hrt = as_triples_tensor(
        triples, num_entities=sizes[0], num_relations=sizes[1], checks_ids=checks_ids
    ).to(table.device)
    ends, relations = hrt[:, ::2], hrt[:, 1]
    if not checks_ids:
        ends, relations = inside_of(ends, sizes[0]), inside_of(relations, sizes[1])
    heads, tails = ends.T
    if side == "tail":
        return AskedTriples(heads, relations, tails)
    return AskedTriples(tails, relations, heads)


def _of_tensors(
    model: RankableModel, parts: tuple[Any, ...], side: Side, table: Tensor
) -> AskedTriples:
    if len(parts) not in (2, 3):
        raise ValueError(
            "triples must be [B, 3], (anchors, relations) or (anchors, relations, targets); got a "
            f"tuple of {len(parts)}"
        )
    anchors, relations, targets = (*parts, None)[:3]
    check_index("anchors", anchors, (None,), table)
    check_index("relations", relations, (len(anchors),), table)
    anchors = safe_ids("anchors", anchors, model.num_entities)
    relations = safe_ids("relations", relations, count_of(model, side))
    if targets is not None:
        check_index("targets", targets, (len(anchors),), table)
        targets = safe_ids("targets", targets, model.num_entities)
    return AskedTriples(anchors, relations, targets)


def checked(side: Side) -> Side:
    """Return the side, or raise a ValueError."""
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {side!r}")
    return side


@dataclass(frozen=True)
class Asked:
    """Batch of queries: a model, and checked ids; ``side`` is a side of that model."""

    model: Any
    anchors: Tensor  # int64 [B]
    relations: Tensor  # int64 [B]
    side: Side

    def queries(self, dim: int | None = None) -> Tensor:
        """Return the queries ``[B, F]``, or the queries of a crop."""
        return queries_at(self.model, self.anchors, self.relations, self.side, dim)

    def queries_of(self, dims: Sequence[int]) -> list[Tensor]:
        """Return the queries of several crops."""
        return queries_of(self.model, self.anchors, self.relations, self.side, dims)

    def of_rows(self, rows: Tensor) -> "Asked":
        """Return the same queries, made from the rows ``[B, G]`` of the anchors."""
        anchors = numbers(len(rows), rows.device)
        return replace(self, model=self.model.with_entity(rows), anchors=anchors)


def count_of(model: Any, side: Side) -> int:
    """Count the relations that triples may name; for predicted tails also inverse relations."""
    if side == "tail" and getattr(model, "has_inverses", False):
        return len(model.relation)
    return int(model.num_relations)


def of_wide_relations(asked: Asked) -> Asked:
    """Read the relations of queries if relations are wide, so that few rows are read."""
    model = asked.model
    inner = unwrapped(model)
    if not getattr(inner, "has_wide_relations", False) or not inner.relation.requires_grad:
        return asked
    ids = model.relation_ids(asked.relations, asked.side)
    side: Side = "tail" if model.has_inverses else asked.side
    distinct, places = ids.unique(return_inverse=True)
    _, rows = read_rows(inner.relation, distinct)
    return replace(asked, model=inner.with_relation(rows), relations=places, side=side)


def adds_in_place(model: Any, candidates: Candidates) -> bool:
    """Return whether anchor gradients are added in place to the candidates', by default.

    So a GPU, with little memory, makes no second gradient of the size of the table.
    """
    entity = getattr(model, "entity", None)
    if not (isinstance(entity, Tensor) and hasattr(model, "with_entity")):
        return False
    if torch.compiler.is_compiling() or not has_gradients(entity):
        return False
    return ops.waits_for(entity.device) and _shares_memory(candidates.table, entity)


def of_distinct_anchors(
    asked: Asked, candidates: Candidates, *, sparse: bool
) -> tuple[Asked, Candidates]:
    """Read each distinct anchor row once, and if ``sparse`` also rows of wide relations.

    A GPU reads a row once per use: the host would wait for the number of distinct rows. Where
    candidates are rows or columns of the table itself, the gradients of anchors are added in place
    to the gradients of the candidates.
    """
    model = asked.model
    distinct, places = asked.anchors, None
    if not ops.waits_for(distinct.device):
        distinct, places = distinct.unique(return_inverse=True)
    table, rows = read_rows(model.entity, distinct)
    if _shares_memory(candidates.table, model.entity):
        candidates = candidates_at(model.with_entity(table), asked.side, None)
    asked = of_wide_relations(asked) if sparse else asked
    if places is None:
        return asked.of_rows(rows), candidates
    return replace(asked, model=asked.model.with_entity(rows), anchors=places), candidates


def _shares_memory(table: Tensor, other: Tensor) -> bool:
    return table.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()

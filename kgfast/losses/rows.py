"""Queries made from the rows that they read, so that gradients are row gradients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.spares import numbers
from kgfast.models.base import Candidates, Side, candidates_at, queries_at, queries_of
from kgfast.models.wrapper import unwrapped
from kgfast.ops.differentiable import has_gradients
from kgfast.ops.row_gradients import read_rows


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

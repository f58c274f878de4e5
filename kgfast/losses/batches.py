"""Batches of losses: triples or queries, checked, and the rows that their queries read."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, is_tensor

from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.kernels.checks import checks_values, inside_of
from kgfast.kernels.spares import numbers
from kgfast.models.base import SIDES, Side, queries_at
from kgfast.models.wrapper import unwrapped
from kgfast.ops.checks import check_index
from kgfast.ops.row_gradients import read_rows
from kgfast.ops.values import safe_ids

# Batches that losses take: triples, or columns of anchors, relations and, optionally, targets.
Batch = TriplesLike | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class QueryBatch:
    """Batch of queries: a model, and checked ids, int64 ``[B]`` each.

    For side ``tail`` anchors are heads, and targets tails. ``side`` is a side of the model.
    """

    model: Any
    anchors: Tensor
    relations: Tensor
    targets: Tensor | None
    side: Side

    @classmethod
    def of(cls, model: Any, triples: Batch, side: Side, table: Tensor) -> "QueryBatch":
        """Check a batch, and move it to the device of the candidates' ``table``.

        A ValueError or TypeError names a wrong side, shape or dtype, and an id out of range.
        """
        check_side(side)
        # predicted tails also of inverse relations
        ways = 2 if side == "tail" and getattr(model, "has_inverses", False) else 1
        sizes = model.num_entities, ways * int(model.num_relations)
        if isinstance(triples, tuple) and any(map(is_tensor, triples)):
            return cls(model, *_columns(triples, sizes, table), side)
        checks_ids = checks_values() or 0 in sizes
        options: Any = {"num_times": getattr(model, "num_times", None), "checks_ids": checks_ids}
        hrt = as_triples_tensor(triples, num_entities=sizes[0], num_relations=sizes[1], **options)
        heads, relations, tails = hrt.to(table.device).unbind(1)
        if not checks_ids:
            heads, tails = inside_of(heads, sizes[0]), inside_of(tails, sizes[0])
            relations = inside_of(relations, sizes[1])
        ends = (heads, tails) if side == "tail" else (tails, heads)
        return cls(model, ends[0], relations, ends[1], side)

    def targets_or(self, name: str, values: Any = None) -> Any:
        """Return given values, called ``name``, else the targets of the batch."""
        if values is None and self.targets is None:
            raise ValueError(
                f"{name}: (anchors, relations) have no targets; give {name}, or triples [B, 3]"
            )
        return self.targets if values is None else values

    def queries(self) -> Tensor:
        """Return the queries ``[B, F]``."""
        return queries_at(self.model, self.anchors, self.relations, self.side, None)

    def of_rows(self, rows: Tensor, places: Tensor | None = None) -> "QueryBatch":
        """Return the same queries, made from rows ``[M, G]`` at the places of the anchors."""
        if places is None:
            places = numbers(len(rows), rows.device)
        return replace(self, model=self.model.with_entity(rows), anchors=places)

    def of_wide_relations(self) -> "QueryBatch":
        """Read the relations of queries if relations are wide, so that few rows are read."""
        model, inner = self.model, unwrapped(self.model)
        if not getattr(inner, "has_wide_relations", False) or not inner.relation.requires_grad:
            return self
        ids = model.relation_ids(self.relations, self.side)
        side: Side = "tail" if model.has_inverses else self.side
        distinct, places = ids.unique(return_inverse=True)
        _, rows = read_rows(inner.relation, distinct)
        return replace(self, model=inner.with_relation(rows), relations=places, side=side)


def _columns(
    columns: tuple[Any, ...], sizes: tuple[int, int], table: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    if len(columns) not in (2, 3):
        raise ValueError(
            "triples must be [B, 3], (anchors, relations) or (anchors, relations, targets); got a "
            f"tuple of {len(columns)}"
        )
    checked: list[Tensor] = []
    for name, ids in zip(("anchors", "relations", "targets"), columns, strict=False):
        check_index(name, ids, (len(checked[0]) if checked else None,), table)
        checked.append(safe_ids(name, ids, sizes[name == "relations"]))
    return checked[0], checked[1], checked[2] if len(checked) == 3 else None


def check_side(side: Side) -> None:
    """Check the name of a side."""
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {side!r}")

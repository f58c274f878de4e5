"""Batches of losses: triples, or queries with separate targets."""

from typing import Any, NamedTuple

from torch import Tensor

from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.kernels.checks import checks_values, inside_of
from kgfast.losses.rows import count_of
from kgfast.models import RankableModel
from kgfast.models.base import SIDES, Side
from kgfast.ops.checks import check_index, safe_ids

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

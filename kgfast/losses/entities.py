"""Queries, candidates and labels of losses over all entities."""

from typing import Any

import torch
from torch import Tensor

from kgfast.losses.batches import AskedTriples, Batch, asked_triples
from kgfast.losses.rows import Asked, adds_in_place, of_distinct_anchors
from kgfast.models import RankableModel
from kgfast.models.base import Candidates, Side, candidates_at, check_model
from kgfast.ops.checks import check_index

Positives = Tensor | tuple[Tensor, Tensor]


def queries_and_candidates(
    model: RankableModel, triples: Batch, side: Side, *, sparse: bool = False
) -> tuple[AskedTriples, Tensor, Candidates]:
    """Return a checked batch, the queries that a model makes of the batch, and all candidates.

    ``sparse`` is that of :func:`kgfast.losses.bce`.
    """
    check_model(model)
    candidates = candidates_at(model, side, None)
    asked = asked_triples(model, triples, side, candidates.table)
    read = Asked(model, asked.anchors, asked.relations, side)
    if sparse:
        check_model(model, "with_entity")
    if sparse or adds_in_place(model, candidates):
        read, candidates = of_distinct_anchors(read, candidates, sparse=sparse)
    return asked, read.queries(), candidates


def operands_of_all(candidates: Candidates, loss: str) -> dict[str, Any]:
    """Return candidates as arguments of operators over all of them."""
    operands = candidates.operands()
    if operands.pop("factor") is not None:
        raise ValueError(
            f"{loss} takes no scores with a factor: RSCF needs relation_transform=False here"
        )
    return operands


def given_or_own(name: str, given: Any, asked: AskedTriples) -> Any:
    """Return the given targets, else the targets of the batch."""
    if given is None and asked.targets is None:
        raise ValueError(
            f"{name}: (anchors, relations) have no targets; give {name}, or triples [B, 3]"
        )
    return asked.targets if given is None else given


def csr(positives: Positives, queries: Tensor) -> dict[str, Tensor]:
    """Return positives as keyword arguments of an operator."""
    if isinstance(positives, Tensor):
        check_index("positives", positives, (len(queries),), queries)
        indptr = torch.arange(len(queries) + 1, dtype=torch.int64, device=positives.device)
        return {"positive_indptr": indptr, "positive_indices": positives}
    if not isinstance(positives, tuple) or len(positives) != 2:
        raise TypeError("positives must be a tensor [B] or a pair (indptr, indices)")
    return {"positive_indptr": positives[0], "positive_indices": positives[1]}

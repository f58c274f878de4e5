"""Losses over all entities: their hyperparameters, queries, candidates and labels."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kgfast.losses.batches import (
    Asked,
    AskedTriples,
    Batch,
    adds_in_place,
    asked_triples,
    of_distinct_anchors,
)
from kgfast.losses.loss import Loss, Reduction
from kgfast.models import RankableModel
from kgfast.models.base import Candidates, Side, candidates_at, check_model
from kgfast.ops.checks import check_index, check_share
from kgfast.ops.losses import check_precision

Positives = Tensor | tuple[Tensor, Tensor]
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class EntitiesLoss(Loss):
    """Base of losses of the scores of a query with all entities, and of labels ``a y + c``.

    Attributes
    ----------
    label_smoothing : float
        Smoothing eps, in ``[0, 1)``.
    reduction : {"mean", "sum", "none"}
        The mean, the sum, or the loss of each query ``[B]``.
    precision : {"float32", "bf16"}
        Precision of the factors of products; see :func:`kgfast.ops.bce`.
    takes_several : bool
        True if a query may have several targets.
    is_softmax : bool
        True if scores are normalised over the entities; False if each entity has its own
        probability.
    """

    over = "entities"
    takes_several: ClassVar[bool]
    is_softmax: ClassVar[bool]
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"
    precision: Precision = "float32"

    def check(self) -> None:
        check_share("label_smoothing", self.label_smoothing)
        check_precision(self.precision)

    @abstractmethod
    def labels(self, num_entities: int) -> tuple[float, float]:
        """Return ``a`` and ``c``."""

    def _read(
        self, model: RankableModel, triples: Batch, side: Side
    ) -> tuple[AskedTriples, Tensor, Candidates]:
        """Return a checked batch, the queries that a model makes of it, and all candidates."""
        check_model(model)
        candidates = candidates_at(model, side, None)
        asked = asked_triples(model, triples, side, candidates.table)
        read = Asked(model, asked.anchors, asked.relations, side)
        if self.sparse:
            check_model(model, "with_entity")
        if self.sparse or adds_in_place(model, candidates):
            read, candidates = of_distinct_anchors(read, candidates, sparse=self.sparse)
        return asked, read.queries(), candidates

    def _operands(self, candidates: Candidates, score: str) -> dict[str, Any]:
        """Return the arguments of operators over all candidates."""
        operands = candidates.operands()
        if operands.pop("factor") is not None:
            name = "bce" if self.takes_several else "cross_entropy"
            raise ValueError(
                f"{name} takes no scores with a factor: RSCF needs relation_transform=False here"
            )
        return {**operands, "score": score, "precision": self.precision}


def csr(positives: Positives, queries: Tensor) -> dict[str, Tensor]:
    """Return positives as keyword arguments of an operator."""
    if isinstance(positives, Tensor):
        check_index("positives", positives, (len(queries),), queries)
        indptr = torch.arange(len(queries) + 1, dtype=torch.int64, device=positives.device)
        return {"positive_indptr": indptr, "positive_indices": positives}
    if not isinstance(positives, tuple) or len(positives) != 2:
        raise TypeError("positives must be a tensor [B] or a pair (indptr, indices)")
    return {"positive_indptr": positives[0], "positive_indices": positives[1]}

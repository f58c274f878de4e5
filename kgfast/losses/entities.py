"""Losses over all entities: their hyperparameters, queries, candidates and labels."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from kgfast import ops
from kgfast.losses.batches import Batch, QueryBatch
from kgfast.losses.loss import Loss, Reduction, reduced
from kgfast.losses.sampled import with_gamma
from kgfast.models import RankableModel
from kgfast.models.base import Candidates, Side, candidates_at, check_model
from kgfast.ops.checks import check_share
from kgfast.ops.losses import check_precision
from kgfast.ops.row_gradients import read_rows


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
    sparse : bool
        Make row gradients for anchors, which are added to the gradient of the candidates in place,
        and for wide relations (:attr:`kgfast.Model.has_wide_relations`). Not available under
        ``torch.compile``.
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
    precision: Literal["float32", "bf16"] = "float32"

    def check(self) -> None:
        check_share("label_smoothing", self.label_smoothing)
        check_precision(self.precision)

    @abstractmethod
    def labels(self, num_entities: int) -> tuple[float, float]:
        """Return ``a`` and ``c``."""

    def _read(
        self, model: RankableModel, triples: Batch, side: Side
    ) -> tuple[QueryBatch, Tensor, dict[str, Any]]:
        """Return a checked batch, its queries, and arguments of operators over all candidates."""
        check_model(model, *(["with_entity"] if self.sparse else []))
        candidates = candidates_at(model, side, None)
        batch = QueryBatch.of(model, triples, side, candidates.table)
        if self.sparse:
            batch, candidates = _of_distinct_anchors(batch, candidates)
        queries = batch.queries()
        if not self.is_softmax:  # gamma cancels in a softmax
            candidates = with_gamma(candidates, model, queries.dtype)
        operands = candidates.operands()
        if operands.pop("factor") is not None:
            raise ValueError(f"{type(self).__name__} takes no scores with a factor, as RSCF's are")
        return batch, queries, {**operands, "score": model.score, "precision": self.precision}

    def _reduced(
        self, operator: Callable[..., Tensor], queries: Tensor, count: int, **arguments: Any
    ) -> Tensor:
        """Return the rows of an operator, their sum, or their sum divided by ``count``."""
        if self.reduction == "none" or not len(queries):
            return reduced(operator(queries, **arguments), count, self.reduction)
        return operator(queries, **arguments, divisor=count if self.reduction == "mean" else 1)


def _of_distinct_anchors(
    batch: QueryBatch, candidates: Candidates
) -> tuple[QueryBatch, Candidates]:
    """Read each distinct anchor row once (on a GPU once per use), and rows of wide relations.

    Where candidates are rows or columns of the table itself, the gradients of anchors are added in
    place to the gradients of the candidates.
    """
    model, distinct, places = batch.model, batch.anchors, None
    if not ops.waits_for(distinct.device):
        distinct, places = distinct.unique(return_inverse=True)
    table, rows = read_rows(model.entity, distinct)
    storages = candidates.table.untyped_storage(), model.entity.untyped_storage()
    if storages[0].data_ptr() == storages[1].data_ptr():
        candidates = candidates_at(model.with_entity(table), batch.side, None)
    return batch.of_wide_relations().of_rows(rows, places), candidates

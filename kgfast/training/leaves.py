"""The rows of the entity table that a step reads, as leaves, and the scores of sampled negatives.

The gradients of leaves are as small as they are, so no gradient of the size of the table is made
where a step uses few rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.negatives import NegativeLoss
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.losses.formula import NegativesFormula, NegativeTerms
from kgfast.losses.sampled import (
    Sample,
    TableReader,
    distinct_ids,
    negatives_of_sample,
    operands_of,
    scores_of,
    widths_of_one_pass,
)
from kgfast.models.base import Candidates, Model, Side, candidates_at
from kgfast.models.wrapper import unwrapped
from kgfast.ops.collected import collected_scores
from kgfast.ops.negatives import ListRows, list_rows
from kgfast.training.negatives import Batch
from kgfast.training.row_gradients import RowGradients

MeanOverAll = Callable[[Any, slice], Tensor]  # of a model, and of some rows of a batch


@dataclass
class Leaves:
    """The leaves of one step.

    Attributes
    ----------
    model : Model
        Whose entity table they are rows of.
    fuses : bool
        Whether a backend may reduce scores of negatives where they arise.
    """

    fuses = True
    model: Model
    _relations: tuple[Tensor, Tensor] | None = None
    _rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _collected: list[RowGradients] = field(default_factory=list)

    def among(self, batch: Batch, negatives: Tensor) -> tuple[Batch, Tensor]:
        """Make the entities of a batch and its negatives readable; both, by ids of the model.

        Those are the same ids, unless the model is one of the rows that were fetched.
        """
        return batch, negatives

    def among_relations(self, batch: Batch) -> Batch:
        """Read the relations of a batch as a leaf; the batch, by ids of the model as it then is."""
        ids = self.model.relation_ids(batch.relations, batch.side)
        side: Side = "tail" if self.model.has_inverses else batch.side
        model = unwrapped(self.model)
        distinct, places = ids.unique(return_inverse=True)
        rows = model.relation.detach().index_select(0, distinct).requires_grad_()
        self.model, self._relations = model.with_relation(rows), (distinct, rows)
        return replace(batch, side=side, relations=places)

    @cached_property
    def table(self) -> Tensor:
        """The whole table as a leaf."""
        return self.model.entity.detach().requires_grad_()

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` of the entity table, ``[len(ids), G]``, as a leaf.

        The same tensor of ids gives the same leaf again.
        """
        for known_ids, leaf in self._rows:
            if known_ids is ids:
                return leaf
        leaf = self.model.entity.detach().index_select(0, ids).requires_grad_()
        self._rows.append((ids, leaf))
        return leaf

    def scores(
        self,
        queries: Tensor,
        candidates: Candidates,
        index: Tensor | None,
        score: str,
        widths: list[int] | None,
    ) -> Tensor:
        """Score queries with all candidates, or with those that ``index [B, K]`` names.

        With an index, the gradient of the whole table comes as rows.
        """
        operands = candidates.operands()
        if index is None:
            return ops.pairwise_scores(queries, score=score, dims=widths, **operands)
        table, bias = operands.pop("candidates"), candidates.bias
        if table is not self.table:
            return ops.indexed_scores(queries, table, index, score, dims=widths, **operands)
        dims = None if widths is None else tuple(widths)
        collected = Operands(queries, Prepared(table, get_score(score), bias), dims)
        return collected_scores(collected, index, self.collect)

    def over_all(self, model: Any, anchors: Tensor, batch: Batch, mean: MeanOverAll) -> Tensor:
        """The mean of a loss over all entities, of a batch whose anchors are rows of a model."""
        return mean(model, slice(0, len(anchors)))

    def collect(self, ids: Tensor, rows: Tensor) -> None:
        """Take gradients of rows of the table, whose ids ascend, each once."""
        self._collected.append(RowGradients(ids, rows, distinct=True))

    def gradients(self) -> list[RowGradients]:
        """What the backward left in them."""
        leaves = list(self._rows)
        if self.table.grad is not None:  # of a model whose candidates are made of its whole table
            leaves.append((_numbers(self.table), self.table))
        of_leaves = [RowGradients(ids, leaf.grad) for ids, leaf in leaves if leaf.grad is not None]
        return [*of_leaves, *self._collected]

    def relation_gradients(self) -> list[RowGradients]:
        """Those of the rows of the relation table, where they were read as a leaf."""
        leaves = [] if self._relations is None else [self._relations]
        return [
            RowGradients(ids, leaf.grad, distinct=True)
            for ids, leaf in leaves
            if leaf.grad is not None
        ]


@dataclass(frozen=True)
class SampledScores:
    """Scores of a batch and its negatives, gamma included.

    Attributes
    ----------
    positive, negative : Tensor
        ``[B]`` and ``[B, K]``, or with a leading axis of crops.
    rows : list of Tensor
        Those of anchors and targets, ``[B, G]`` each; none where they were not asked for.
    """

    positive: Tensor
    negative: Tensor
    rows: list[Tensor]


def sample_scores(
    leaves: Leaves, batch: Batch, negatives: Tensor, dims: Sequence[int] | None, *, takes_rows: bool
) -> SampledScores:
    """Score a batch and its negatives.

    Parameters
    ----------
    leaves : Leaves
    batch : Batch
        Of triples.
    negatives : Tensor
        ``[B, K]``, or ``[K]``, shared.
    dims : sequence of int, optional
        Crops of the model.
    takes_rows : bool
        Whether a penalty or relation prediction takes the rows of anchors and targets.
    """
    read, entities = _read(leaves, batch, negatives, dims)
    return SampledScores(*scores_of(*read), entities() if takes_rows else [])


def sample_negatives(
    leaves: Leaves, batch: Batch, negatives: Tensor, loss: NegativesFormula, *, takes_rows: bool
) -> tuple[NegativeTerms, list[Tensor]]:
    """Score a batch, and reduce the scores of its negatives by a loss.

    Parameters
    ----------
    leaves, batch, negatives, takes_rows
        As of :func:`sample_scores`.
    loss : NegativesFormula

    Returns
    -------
    NegativeTerms
        And ``rows`` as of :class:`SampledScores`.
    """
    read, entities = _read(leaves, batch, negatives, None)
    return negatives_of_sample(*read, loss), entities() if takes_rows else []


def _read(
    leaves: Leaves, batch: Batch, negatives: Tensor, dims: Sequence[int] | None
) -> tuple[tuple[Model, Model, Sample, TableReader], Callable[[], list[Tensor]]]:
    """The arguments of :func:`~kgfast.losses.sampled.scores_of`, and what makes the rows."""
    assert batch.targets is not None
    model, targets = leaves.model, batch.targets
    reader = _LeafReader(leaves)
    if scores_rows(model, batch.side, dims):
        table = leaves.table
    else:  # each distinct candidate of the step once
        distinct, (targets, negatives) = distinct_ids(targets, negatives)
        table = leaves.rows(distinct)
    anchors = leaves.rows(batch.anchors)
    sample = Sample(_numbers(anchors), batch.relations, targets, negatives, batch.side, dims)
    models = model.with_entity(anchors), model.with_entity(table)
    return (*models, sample, reader), lambda: [anchors, reader.rows(table, targets)]


def scores_rows(model: Model, side: Side, dims: Sequence[int] | None) -> bool:
    """Return whether the rows of the entity table are scored as they are, all crops at once."""
    in_one_pass = dims is None or widths_of_one_pass(model, dims) is not None
    if not in_one_pass or get_score(model.score).is_rscf:
        return False
    return candidates_at(model, side, None).table is model.entity


class _LeafReader(TableReader):
    """Reads the rows of the entity table as leaves; what is made of the table, through it."""

    def __init__(self, leaves: Leaves) -> None:
        super().__init__()
        self._leaves, self.fuses = leaves, leaves.fuses

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """As :meth:`TableReader.rows`; the same tensor of ids gives the same leaf again."""
        leaves = self._leaves
        return leaves.rows(ids) if table is leaves.table else super().rows(table, ids)

    def targets(self, candidates: Candidates, ids: Tensor) -> tuple[Candidates, Tensor]:
        """As :meth:`TableReader.targets`; rows of the table are leaves, as those of a pool are."""
        if candidates.table is not self._leaves.table:
            return super().targets(candidates, ids)
        return self.some(candidates, ids), _numbers(ids)[:, None]

    def scores(
        self,
        queries: Tensor,
        candidates: Candidates,
        index: Tensor,
        score: str,
        widths: list[int] | None,
    ) -> Tensor:
        """As :meth:`TableReader.scores`; the gradient of the table goes to the leaves as rows."""
        return self._leaves.scores(queries, candidates, index, score, widths)

    def pool_scores(
        self, queries: Tensor, pool: Candidates, score: str, widths: list[int] | None
    ) -> Tensor:
        """As :meth:`TableReader.pool_scores`."""
        return self._leaves.scores(queries, pool, None, score, widths)

    def list_rows(
        self,
        queries: Tensor,
        candidates: Candidates,
        sample: Sample,
        score: str,
        loss: NegativeLoss,
    ) -> ListRows:
        """As :meth:`TableReader.list_rows`; the table's gradient goes to the leaves as rows."""
        if candidates.table is not self._leaves.table:
            return super().list_rows(queries, candidates, sample, score, loss)
        operands = operands_of(queries, candidates, score)
        ids = sample.targets, sample.negatives
        return list_rows(operands, *ids, loss, collect=self._leaves.collect)


def _numbers(rows: Tensor) -> Tensor:
    """``0 .. len(rows) - 1``."""
    return torch.arange(len(rows), dtype=torch.int64, device=rows.device)

"""The rows of the entity table that a step reads, as leaves, and the scores of sampled negatives.

The gradients of leaves are as small as they are, so no gradient of the size of the table is made
where a step uses few rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.kernels.scores import get_score
from kgfast.losses.sampled import distinct_ids, scores_of
from kgfast.models.base import Candidates, Model
from kgfast.training.negatives import Batch
from kgfast.training.row_gradients import RowGradients


@dataclass
class Leaves:
    """The leaves of one step.

    Attributes
    ----------
    model : Model
        Whose entity table they are rows of.
    """

    model: Model
    _rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _tables: list[Tensor] = field(default_factory=list)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` of the entity table, ``[len(ids), G]``, as a leaf."""
        leaf = self.model.entity.detach().index_select(0, ids).requires_grad_()
        self._rows.append((ids, leaf))
        return leaf

    def table(self) -> Tensor:
        """The whole table as a leaf, for operators whose gradient is sparse."""
        leaf = self.model.entity.detach().requires_grad_()
        self._tables.append(leaf)
        return leaf

    def gradients(self) -> list[RowGradients]:
        """What the backward left in them."""
        return [
            *(RowGradients.of(ids, leaf) for ids, leaf in self._rows),
            *(RowGradients.of_table(leaf) for leaf in self._tables),
        ]


@dataclass(frozen=True)
class Sampled:
    """Scores of a batch and its negatives, gamma included.

    Attributes
    ----------
    positive, negative : Tensor
        ``[B]`` and ``[B, K]``, or with a leading axis of crops.
    factors : list of Tensor
        The rows of anchors and targets, ``[B, G]`` each, as a penalty takes them.
    """

    positive: Tensor
    negative: Tensor
    factors: list[Tensor]


def sample_scores(
    leaves: Leaves, batch: Batch, ids: Tensor, dims: Sequence[int] | None, *, penalised: bool
) -> Sampled:
    """Score a batch and its negatives.

    Parameters
    ----------
    leaves : Leaves
    batch : Batch
        Of triples.
    ids : Tensor
        Negatives: ``[B, K]``, or ``[K]``, shared.
    dims : sequence of int, optional
        Crops of the model.
    penalised : bool
        Whether the rows of targets are wanted.
    """
    assert batch.targets is not None
    model = leaves.model
    if get_score(model.score).is_rscf or not (dims is None or model.nested):
        return _of_distinct_rows(leaves, batch, batch.targets, ids, dims)
    widths = None if dims is None else [model.crop_width(dim) for dim in dims]
    if widths is not None and None in widths:
        return _of_distinct_rows(leaves, batch, batch.targets, ids, dims)
    anchors, queries = _queries(leaves, batch)
    crops = None if widths is None else [width for width in widths if width is not None]
    if ids.ndim == 1:
        targets = leaves.rows(batch.targets)
        own = torch.arange(len(targets), dtype=torch.int64, device=targets.device)[:, None]
        positive = _indexed(leaves, batch, queries, targets, own, crops)
        negative = _pairwise(leaves, batch, queries, leaves.rows(ids), crops)
    else:
        targets = leaves.rows(batch.targets) if penalised else anchors
        index = torch.cat([batch.targets[:, None], ids], 1)
        scores = _indexed(leaves, batch, queries, leaves.table(), index, crops)
        positive, negative = scores[..., :1], scores[..., 1:]
    return Sampled(positive.squeeze(-1), negative, [anchors, targets])


def _of_distinct_rows(
    leaves: Leaves, batch: Batch, targets: Tensor, ids: Tensor, dims: Sequence[int] | None
) -> Sampled:
    """Where entities are transformed: each distinct candidate of the step once."""
    distinct, (own, negatives) = distinct_ids(targets, ids)
    rows, anchors = leaves.rows(distinct), leaves.rows(batch.anchors)
    local, asking = (leaves.model.with_entity(it) for it in (rows, anchors))
    places = torch.arange(len(anchors), dtype=torch.int64, device=anchors.device)
    scores = scores_of(
        local, places, batch.relations, own, negatives, batch.side, dims, asking=asking
    )
    return Sampled(*scores, [anchors, nn.functional.embedding(own, rows)])


def _queries(leaves: Leaves, batch: Batch) -> tuple[Tensor, Tensor]:
    """The rows of the anchors, and the queries made of them."""
    anchors = leaves.rows(batch.anchors)
    local = torch.arange(len(anchors), dtype=torch.int64, device=anchors.device)
    queries = leaves.model.with_entity(anchors).queries(local, batch.relations, batch.side)
    return anchors, queries


def gamma_of(model: Model) -> float:
    """The margin, of models that have one."""
    return float(getattr(model, "gamma", 0.0))


def _candidates(model: Model, batch: Batch) -> Candidates:
    """The candidates of a model whose ids are rows of a step, with its margin as their bias."""
    candidates, gamma = model.candidates(batch.side), gamma_of(model)
    if not gamma:
        return candidates
    return replace(candidates, bias=candidates.table.new_full((1,), gamma))


def _pairwise(
    leaves: Leaves, batch: Batch, queries: Tensor, pool: Tensor, dims: list[int] | None
) -> Tensor:
    """Scores ``[B, K]`` of all queries with rows of a pool."""
    model = leaves.model.with_entity(pool)
    operands = _candidates(model, batch).operands()
    return ops.pairwise_scores(queries, score=model.score, dims=dims, **operands)


def _indexed(
    leaves: Leaves,
    batch: Batch,
    queries: Tensor,
    rows: Tensor,
    index: Tensor,
    dims: list[int] | None,
) -> Tensor:
    """Scores ``[B, K]`` of each query with the rows that its index names."""
    model = leaves.model.with_entity(rows)
    found = _candidates(model, batch)
    return ops.indexed_scores(
        queries, found.table, index, model.score, bias=found.bias, dims=dims, sparse=True
    )

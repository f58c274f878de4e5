"""Scores of triples and of sampled negatives: never ``[B, K, D]``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from kgfast import ops
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.sampled import NegativeLoss, Sampled
from kgfast.kernels.scores import get_score
from kgfast.kernels.spares import constant, numbers
from kgfast.losses.batches import Batch, QueryBatch, check_side
from kgfast.losses.loss import check_mask
from kgfast.models import RankableModel
from kgfast.models.base import (
    Candidates,
    Side,
    candidates_at,
    candidates_of,
    check_model,
    is_nested,
    operator_width,
    queries_of,
)
from kgfast.ops.checks import check_index, checked_operands
from kgfast.ops.differentiable import full_precision
from kgfast.ops.negatives import fusing_backend, negative_loss
from kgfast.ops.row_gradients import read_rows
from kgfast.ops.run import operands_of
from kgfast.ops.values import check_rows, safe_ids

Scores = tuple[Tensor, Tensor]


def sampled_scores(
    model: RankableModel,
    triples: Batch,
    negatives: Tensor,
    side: Side = "tail",
    dims: Sequence[int] | None = None,
    *,
    sparse: bool = False,
) -> Scores:
    """Score triples, and negatives that replace one side of each triple, with gamma.

    Parameters
    ----------
    model : Model
        As in :func:`kgfast.losses.bce`. RSCF filters each distinct candidate once.
    triples : Triples, Tensor, array, or tuple of Tensor
        int64 ``[B, 3]``; or ``(anchors, relations, targets)``, int64 ``[B]`` each: for side
        ``tail`` heads, relations and tails, for ``head`` tails, relations and heads. Relations may
        be inverses as in :func:`kgfast.losses.bce`.
    negatives : Tensor
        int64 ``[B, K]``, entities for each triple; or ``[K]``, a pool for all triples.
    side : {"head", "tail"}
        Side that the negatives replace.
    dims : sequence of int, optional
        Crop widths of the model. Results get a leading axis. All crops come from one pass, unless
        the model's operands depend on the crop.
    sparse : bool
        Make row gradients (:class:`kgfast.RowGradients`) for the rows of anchors, targets and
        negatives, and for wide relations (:attr:`kgfast.Model.has_wide_relations`). Not available
        under ``torch.compile``.

    Returns
    -------
    positive, negative : Tensor
        ``[B]`` and ``[B, K]``, or ``[len(dims), B]`` and ``[len(dims), B, K]``. A ValueError or
        TypeError names an argument that does not fit the model, or the position of an id.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]), gamma=2.0)
    >>> positive, negative = sampled_scores(model, [(0, 0, 1)], torch.tensor([[2, 0]]))
    >>> positive.tolist(), negative.tolist()
    ([2.0], [[-2.0, 1.0]])
    """
    sample = read(model, triples, negatives, side, dims, sparse=sparse)
    widths = None if dims is None else widths_of_one_pass(model, dims)
    if dims is None or widths is not None:
        return _scores(sample, *_operands(sample), widths)
    positives, scores, batch = [], [], sample.batch
    crops = queries_of(batch.model, batch.anchors, batch.relations, batch.side, dims)
    operands = crops, candidates_of(sample.model, side, dims)
    for dim, queries, candidates in zip(dims, *operands, strict=True):
        width = operator_width(model, dim)
        candidates = _with_bias(sample, candidates, queries.dtype)
        crop = _scores(sample, queries, candidates, None if width is None else [width])
        positives.append(crop[0].reshape(-1))
        scores.append(crop[1].reshape(crop[1].shape[-2:]))
    return torch.stack(positives), torch.stack(scores)


@dataclass(frozen=True)
class Sample:
    """Triples, and negatives that replace one side of each; ids are checked."""

    batch: QueryBatch  # the queries
    model: Any  # model with the candidates: targets and negatives are ids of these candidates
    targets: Tensor  # int64 [B]
    negatives: Tensor  # int64 [B, K]; or [K], a pool
    side: Side
    table: Tensor | None = None  # rows that are read instead of the candidates, with row gradients
    besides: Tensor | None = None  # more rows in these row gradients
    rows: Sequence[Tensor] = ()  # targets [B, G] and negatives [K, G] of a pool, if read before
    entities: Tensor | None = None  # int64 [M]: the entities of the model's rows, if not all
    candidates: Candidates | None = None  # those of the model, if their rows are scored unchanged


def read(
    model: Any,
    triples: Batch,
    negatives: Tensor,
    side: Side,
    dims: Sequence[int] | None,
    *,
    sparse: bool,
    mask: Tensor | None = None,
) -> Sample:
    """Check a batch, and read the rows that queries and candidates are made of.

    If ``sparse``, all gradients of these rows come back as one tensor.
    """
    check_model(model)
    entity = getattr(model, "entity", None)
    if not isinstance(entity, Tensor):
        check_side(side)
        entity = None
    table = candidates_at(model, side, None).table if entity is None else entity
    batch = QueryBatch.of(model, triples, side, table)
    targets: Tensor = batch.targets_or("triples")
    shape = (None,) if getattr(negatives, "ndim", 0) == 1 else (len(targets), None)
    check_index("negatives", negatives, shape, table, "the model's candidates")
    if mask is not None:
        check_mask(mask, negatives, (len(targets), negatives.shape[-1]))
    if sparse:
        batch = batch.of_wide_relations()
    sample = Sample(batch, model, targets, negatives, side)
    candidates = scored_unchanged(model, side, dims)
    if candidates is None:
        return _read_distinct(sample, table, sparse=sparse)
    sample, scored = replace(sample, candidates=candidates), candidates.table
    if negatives.ndim == 1:  # the ids of lists are checked during scoring
        sample = replace(sample, negatives=safe_ids("negatives", negatives, len(scored)))
    if not sparse:
        return sample
    is_shared = scored is entity and hasattr(model, "with_entity")
    ids = [batch.anchors] if is_shared else []
    if negatives.ndim == 1:
        _, *rows = read_rows(scored, *ids, targets, sample.negatives)
        sample = replace(sample, rows=rows[-2:])
    else:
        table, *rows = read_rows(scored, *ids)
        sample = replace(sample, table=table, besides=batch.anchors if is_shared else None)
    return replace(sample, batch=batch.of_rows(rows[0])) if is_shared else sample


def _read_distinct(sample: Sample, table: Tensor, *, sparse: bool) -> Sample:
    """Read the rows that candidates are computed from: each distinct row once."""
    model, batch, negatives = sample.model, sample.batch, sample.negatives
    check_model(model, "with_entity")
    flat = safe_ids("negatives", negatives.flatten(), len(table))
    distinct, (targets, flat) = distinct_ids(sample.targets, flat, of=len(table))
    if sparse:
        _, rows, anchors = read_rows(table, distinct, batch.anchors)
    else:
        rows, anchors = embedding(distinct, table), embedding(batch.anchors, table)
    return replace(
        sample,
        batch=batch.of_rows(anchors),
        model=model.with_entity(rows),
        targets=targets,
        negatives=flat.view(negatives.shape),
        entities=distinct,
    )


def scored_unchanged(model: Any, side: Side, dims: Sequence[int] | None) -> Candidates | None:
    """Return the candidates if their rows are scored unchanged, with all crops at once; else None.

    A model with ``with_entity`` computes candidates from few rows instead.
    """
    if get_score(model.score).is_rscf:
        return None
    if dims is not None and widths_of_one_pass(model, dims) is None:
        return None
    candidates = candidates_at(model, side, None)
    is_given = candidates.table.is_leaf or candidates.table is getattr(model, "entity", None)
    return candidates if is_given or not hasattr(model, "with_entity") else None


def widths_of_one_pass(model: Any, dims: Sequence[int]) -> list[int] | None:
    """Return the operator's widths of crops that come from one pass; None if they do not."""
    crops = [operator_width(model, dim) for dim in dims]
    widths = [width for width in crops if width is not None]
    return widths if is_nested(model) and len(widths) == len(crops) else None


def distinct_ids(*ids: Tensor, of: int) -> tuple[Tensor, list[Tensor]]:
    """Return the distinct ids of several tensors, ascending, and each tensor as places in them.

    If the host would wait for their number, the last id is repeated up to the maximal number; no
    place refers to a repetition. The length is then never exactly ``of``, the number of all ids: a
    bias of all ids differs in length from a bias of these rows.
    """
    flat = torch.cat([some.flatten() for some in ids])
    if len(flat) and ops.waits_for(flat.device):
        rising, order = flat.sort()
        number = pad((rising[1:] != rising[:-1]).cumsum(0), (1, 0))
        room = len(flat) if len(flat) < of else of + 1
        distinct = rising[-1:].repeat(room).scatter_(0, number, rising)
        places = torch.empty_like(order).scatter_(0, order, number)
    else:
        distinct, places = flat.unique(return_inverse=True)
    split = places.split([some.numel() for some in ids])
    return distinct, [place.view(some.shape) for place, some in zip(split, ids, strict=True)]


def loss_of(
    sample: Sample, loss: NegativeLoss | None, of_scores: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the loss of a sample without crops: fused by a backend, or a function of scores."""
    queries, candidates = _operands(sample)
    negatives, score = sample.negatives, sample.model.score
    backend = loss and fusing_backend(queries, candidates.bias, negatives, loss)
    if loss is None or backend is None:
        return of_scores(*_scores(sample, queries, candidates, None))
    if negatives.ndim == 2:
        table = candidates.table if sample.table is None else sample.table
        rows = table, score, candidates.bias, candidates.factor
        operands = checked_operands(queries, *rows, table_name="table")
        is_sparse = sample.table is not None
        lists = Sampled(None, sample.targets, negatives, is_sparse, sample.besides)
        return negative_loss(operands, lists, loss, backend)
    with _naming_by_id(sample, candidates):
        positive, pool = _read_pool(sample, queries, candidates, None)  # checks the queries
        rows = pool.table, score, pool.bias, pool.factor
        operands = operands_of(full_precision(queries), *rows)
        return negative_loss(operands, Sampled(positive), loss, backend)


def _operands(sample: Sample) -> tuple[Tensor, Candidates]:
    queries = sample.batch.queries()
    candidates = sample.candidates or candidates_at(sample.model, sample.side, None)
    return queries, _with_bias(sample, candidates, queries.dtype)


def _with_bias(sample: Sample, candidates: Candidates, dtype: torch.dtype) -> Candidates:
    """Return candidates with the biases of their own entities, and gamma."""
    bias, entities = candidates.bias, sample.entities
    if bias is not None and entities is not None and len(bias) not in (1, len(candidates.table)):
        candidates = replace(candidates, bias=embedding(entities, bias[:, None])[:, 0])
    return with_gamma(candidates, sample.model, dtype)


def _scores(
    sample: Sample, queries: Tensor, candidates: Candidates, widths: list[int] | None
) -> Scores:
    score = sample.model.score
    if sample.negatives.ndim == 1:
        with _naming_by_id(sample, candidates):
            positive, pool = _read_pool(sample, queries, candidates, widths)
            options = pool.operands()
            return positive, ops.pairwise_scores(queries, score=score, dims=widths, **options)
    index = torch.cat([sample.targets[:, None], sample.negatives], 1)  # one pass, one gradient
    table = candidates.table if sample.table is None else sample.table
    options = {"bias": candidates.bias, "factor": candidates.factor, "besides": sample.besides}
    is_sparse = sample.table is not None
    scores = ops.indexed_scores(
        queries, table, index, score, dims=widths, sparse=is_sparse, **options
    )
    positive, negative = scores.split([1, sample.negatives.shape[1]], -1)
    return positive.squeeze(-1), negative


def _read_pool(
    sample: Sample, queries: Tensor, candidates: Candidates, widths: list[int] | None
) -> tuple[Tensor, Candidates]:
    """Return the scores ``[..., B]`` of the targets, and the pool as new candidates."""
    of_targets, ids = candidates, sample.targets
    rows_of_targets, rows_of_pool = sample.rows or (None, None)
    if rows_of_targets is not None:
        of_targets = _some(candidates, ids, rows_of_targets)
        ids = numbers(len(ids), ids.device)
    options = of_targets.operands()
    table = options.pop("candidates")
    score = sample.model.score
    scores = ops.indexed_scores(queries, table, ids[:, None], score, dims=widths, **options)
    return scores.squeeze(-1), _some(candidates, sample.negatives, rows_of_pool)


def _some(candidates: Candidates, ids: Tensor, rows: Tensor | None) -> Candidates:
    """Return some of the candidates; unlike index_select's, gradients have a fixed order."""
    bias, factor = candidates.bias, candidates.factor
    if bias is not None and len(bias) > 1:
        bias = embedding(ids, bias[:, None])[:, 0]
    factor = None if factor is None else embedding(ids, factor)
    return Candidates(embedding(ids, candidates.table) if rows is None else rows, bias, factor)


@contextmanager
def _naming_by_id(sample: Sample, candidates: Candidates) -> Iterator[None]:
    """Name a row that is not finite by id in errors, not by place among gathered rows."""
    try:
        yield
    except NonFiniteError:
        check_rows("table", candidates.table, sample.targets)
        check_rows("candidates", candidates.table, sample.negatives)
        raise


def with_gamma(candidates: Candidates, model: RankableModel, dtype: torch.dtype) -> Candidates:
    """Return candidates with the model's gamma added to the bias."""
    gamma = getattr(model, "gamma", None)
    if gamma is None:
        return candidates
    if candidates.bias is not None:
        return replace(candidates, bias=candidates.bias + gamma)
    return replace(candidates, bias=constant(float(gamma), (1,), dtype, candidates.table.device))

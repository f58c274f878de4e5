"""Scores of triples and of sampled negatives: never ``[B, K, D]``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kgfast import ops
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.sampled import NegativeLoss
from kgfast.kernels.scores import get_score
from kgfast.kernels.spares import constant
from kgfast.losses.batches import Asked, Batch, asked_triples, checked, of_wide_relations
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
)
from kgfast.ops import run
from kgfast.ops.checks import check_device, check_tensor
from kgfast.ops.negatives import fuses_negatives, list_loss, pool_loss
from kgfast.ops.row_gradients import read_rows
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
        ``tail`` heads, relations and tails, for ``head`` tails, relations and heads. With inverse
        relations, ids of relations may also name inverses, to predict tails of an inverse relation
        (:attr:`kgfast.Model.has_inverses`).
    negatives : Tensor
        int64 ``[B, K]``, entities for each triple; or ``[K]``, a pool for all triples.
    side : {"head", "tail"}
        Side that the negatives replace.
    dims : sequence of int, optional
        Crop widths of the model. Results get a leading axis. All crops come from one pass, unless
        the model's operands depend on the crop.
    sparse : bool
        Make row gradients for the entity table (:class:`kgfast.RowGradients`): for the rows of
        anchors, targets and negatives. A relation table of wide rows gets row gradients, too
        (:attr:`kgfast.Model.has_wide_relations`). Not available under ``torch.compile``.

    Returns
    -------
    positive, negative : Tensor
        ``[B]`` and ``[B, K]``, or ``[len(dims), B]`` and ``[len(dims), B, K]``.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model or an id out of range; the message names the first
        offending position.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]), gamma=2.0)
    >>> positive, negative = sampled_scores(model, [(0, 0, 1)], torch.tensor([[2, 0]]))
    >>> positive.tolist(), negative.tolist()
    ([2.0], [[-2.0, 1.0]])
    """
    return scores_of(read(model, triples, negatives, side, dims, sparse=sparse))


@dataclass(frozen=True)
class Sample:
    """Triples, and negatives that replace one side of each; ids are checked."""

    asked: Asked  # the queries
    model: Any  # model with the candidates: targets and negatives are ids of these candidates
    targets: Tensor  # int64 [B]
    negatives: Tensor  # int64 [B, K]; or [K], a pool
    side: Side
    dims: Sequence[int] | None = None  # crop widths of the model
    table: Tensor | None = None  # rows that are read instead of the candidates, with row gradients
    besides: Tensor | None = None  # more rows in these row gradients
    rows: tuple[Tensor, Tensor] | None = None  # targets [B, G] and pool [K, G], if read before
    entities: Tensor | None = None  # int64 [M]: the entities of the model's rows, if not all

    @property
    def is_pool(self) -> bool:
        return self.negatives.ndim == 1


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
    check_model(model)
    has_table = isinstance(getattr(model, "entity", None), Tensor)
    table = model.entity if has_table else candidates_at(model, checked(side), None).table
    anchors, relations, targets = asked_triples(model, triples, side, table).complete()
    check_negatives(negatives, len(targets), table)
    if mask is not None:
        check_mask(mask, negatives, (len(targets), negatives.shape[-1]))
    are_rows = is_nested(model) and not get_score(model.score).is_rscf
    asked = Asked(model, anchors, relations, side)
    sample = Sample(asked, model, targets, negatives, side, dims)
    if sparse:
        return _read_sparse(sample, table if has_table else None)
    if are_rows:
        return _with_safe_pool(sample, table)
    check_model(model, "with_entity")  # candidates are computed from rows: each distinct row once
    negatives = safe_ids("negatives", negatives.flatten(), len(table)).view(negatives.shape)
    distinct, (anchors, targets, negatives) = distinct_ids(
        anchors, targets, negatives, of=len(table)
    )
    own = model = model.with_entity(_embedded(table, distinct))
    if not ops.waits_for(table.device):
        several, anchors = anchors.unique(return_inverse=True)
        own = model.with_entity(_embedded(model.entity, several))
    asked = Asked(own, anchors, relations, side)
    return Sample(asked, model, targets, negatives, side, dims, entities=distinct)


def _with_safe_pool(sample: Sample, table: Tensor) -> Sample:
    """Check the ids of a pool; ids of lists are checked during scoring."""
    if not sample.is_pool:
        return sample
    return replace(sample, negatives=safe_ids("negatives", sample.negatives, len(table)))


def scored_table(model: Any, side: Side, dims: Sequence[int] | None) -> Tensor | None:
    """Return the table whose rows are scored unchanged, with all crops at once; None if none is.

    A model with ``with_entity`` computes candidates from few rows instead.
    """
    if get_score(model.score).is_rscf:
        return None
    if dims is not None and widths_of_one_pass(model, dims) is None:
        return None
    table = candidates_at(model, side, None).table
    is_given = table.is_leaf or table is getattr(model, "entity", None)
    return table if is_given or not hasattr(model, "with_entity") else None


def _read_sparse(sample: Sample, entity: Tensor | None) -> Sample:
    """Read rows so that all their gradients come back as one tensor."""
    model, asked = sample.model, of_wide_relations(sample.asked)
    candidates = scored_table(model, sample.side, sample.dims)
    if candidates is None:
        return _read_distinct(replace(sample, asked=asked), entity)
    sample = _with_safe_pool(sample, candidates)
    shares = candidates is entity and hasattr(model, "with_entity")
    read = [sample.asked.anchors] if shares else []
    if sample.is_pool:
        _, *rows = read_rows(candidates, *read, sample.targets, sample.negatives)
        sample = replace(sample, rows=(rows[-2], rows[-1]))
    else:
        table, *rows = read_rows(candidates, *read)
        sample = replace(sample, table=table, besides=read[0] if shares else None)
    return replace(sample, asked=asked.of_rows(rows[0]) if shares else asked)


def _read_distinct(sample: Sample, entity: Tensor | None) -> Sample:
    check_model(sample.model, "with_entity")
    assert entity is not None
    negatives = safe_ids("negatives", sample.negatives.flatten(), len(entity))
    distinct, (targets, negatives) = distinct_ids(sample.targets, negatives, of=len(entity))
    _, rows, anchors = read_rows(entity, distinct, sample.asked.anchors)
    return replace(
        sample,
        asked=sample.asked.of_rows(anchors),
        model=sample.model.with_entity(rows),
        targets=targets,
        negatives=negatives.view(sample.negatives.shape),
        entities=distinct,
    )


def _with_own_bias(candidates: Candidates, sample: Sample) -> Candidates:
    bias, entities = candidates.bias, sample.entities
    if bias is None or entities is None or len(bias) in (1, len(candidates.table)):
        return candidates
    return replace(candidates, bias=_embedded(bias[:, None], entities)[:, 0])


def _embedded(table: Tensor, ids: Tensor) -> Tensor:
    """Read rows of a table; unlike index_select's, the gradient has a fixed order on a GPU."""
    return torch.nn.functional.embedding(ids, table)


def _some(candidates: Candidates, ids: Tensor, rows: Tensor | None = None) -> Candidates:
    bias, factor = candidates.bias, candidates.factor
    if bias is not None and len(bias) > 1:
        bias = _embedded(bias[:, None], ids)[:, 0]
    factor = None if factor is None else _embedded(factor, ids)
    return Candidates(_embedded(candidates.table, ids) if rows is None else rows, bias, factor)


def widths_of_one_pass(model: Any, dims: Sequence[int]) -> list[int] | None:
    """Return the operator's widths of crops that come from one pass; None if they do not."""
    crops = [operator_width(model, dim) for dim in dims]
    widths = [width for width in crops if width is not None]
    return widths if is_nested(model) and len(widths) == len(crops) else None


def distinct_ids(*ids: Tensor, of: int | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return the distinct ids of several tensors, ascending, and each tensor as places in them.

    If the host would wait for the number of distinct ids, and ``of`` is the number of all ids, the
    last id is repeated up to the maximal number. No place refers to a repetition. The length is
    then never exactly ``of``, so that a bias of all ids differs in length from a bias of these
    rows.
    """
    flat = torch.cat([part.flatten() for part in ids])
    if of is not None and len(flat) and ops.waits_for(flat.device):
        room = len(flat) if len(flat) < of else of + 1
        distinct, places = _distinct_without_wait(flat, room)
    else:
        distinct, places = flat.unique(return_inverse=True)
    parts = places.split([part.numel() for part in ids])
    return distinct, [place.view(part.shape) for place, part in zip(parts, ids, strict=True)]


def _distinct_without_wait(ids: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """Return the distinct ids, padded to ``room`` with the last id, and places."""
    rising, order = ids.sort()
    number = functional.pad((rising[1:] != rising[:-1]).cumsum(0), (1, 0))
    distinct = rising[-1:].repeat(room).scatter_(0, number, rising)
    return distinct, torch.empty_like(order).scatter_(0, order, number)


def scores_of(sample: Sample) -> Scores:
    """Return the scores of a sample, gamma included, as :func:`sampled_scores` does."""
    side, dims, model = sample.side, sample.dims, sample.model

    def at(queries: Tensor, widths: list[int] | None, candidates: Candidates) -> Scores:
        candidates = with_gamma(_with_own_bias(candidates, sample), model, queries.dtype)
        score = _pool_scores if sample.is_pool else _row_scores
        return score(queries, candidates, sample, widths)

    if dims is None:
        return at(sample.asked.queries(), None, candidates_at(model, side, None))
    widths = widths_of_one_pass(model, dims)
    if widths is not None:
        return at(sample.asked.queries(), widths, candidates_at(model, side, None))
    parts = []
    operands = sample.asked.queries_of(dims), candidates_of(model, side, dims)
    for dim, queries, candidates in zip(dims, *operands, strict=True):
        width = operator_width(model, dim)
        parts.append(at(queries, None if width is None else [width], candidates))
    positives, negatives = zip(*parts, strict=True)
    return (
        torch.cat([part.reshape(1, -1) for part in positives]),
        torch.cat([part.reshape(1, *part.shape[-2:]) for part in negatives]),
    )


def loss_of(
    sample: Sample, loss: NegativeLoss | None, of_scores: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the loss of a sample without crops: fused by a backend, or a function of scores."""
    queries = sample.asked.queries()
    candidates = _with_own_bias(candidates_at(sample.model, sample.side, None), sample)
    candidates = with_gamma(candidates, sample.model, queries.dtype)
    ids, score = sample.negatives, sample.model.score
    if loss is None or not fuses_negatives(queries, candidates.bias, ids, loss.weights):
        scores_of_kind = _pool_scores if sample.is_pool else _row_scores
        return of_scores(*scores_of_kind(queries, candidates, sample, None))
    if sample.is_pool:
        positive, pool = _read_pool(queries, candidates, sample, None)
        operands = run.operands_of(queries, pool.table, score, pool.bias, pool.factor)
        with _named_by_id("candidates", candidates, ids):
            return pool_loss(operands, positive, loss)
    is_sparse = sample.table is not None
    table = candidates.table if sample.table is None else sample.table
    operands = run.operands_of(queries, table, score, candidates.bias, candidates.factor)
    given = sample.targets, ids, loss
    return list_loss(operands, *given, sparse=is_sparse, besides=sample.besides)


def _row_scores(
    queries: Tensor, candidates: Candidates, sample: Sample, widths: list[int] | None
) -> Scores:
    """Score target and negatives of a row in one list: one pass, one gradient of the table."""
    index = torch.cat([sample.targets[:, None], sample.negatives], 1)
    options: dict[str, Any] = {"bias": candidates.bias, "factor": candidates.factor, "dims": widths}
    table = candidates.table
    if sample.table is not None:
        table = sample.table
        options |= {"sparse": True, "besides": sample.besides}
    scores = ops.indexed_scores(queries, table, index, sample.model.score, **options)
    positive, negative = scores.split([1, sample.negatives.shape[1]], -1)
    return positive.squeeze(-1), negative


def _pool_scores(
    queries: Tensor, candidates: Candidates, sample: Sample, widths: list[int] | None
) -> Scores:
    positive, pool = _read_pool(queries, candidates, sample, widths)
    with _named_by_id("candidates", candidates, sample.negatives):
        score = sample.model.score
        negative = ops.pairwise_scores(queries, score=score, dims=widths, **pool.operands())
    return positive, negative


def _read_pool(
    queries: Tensor, candidates: Candidates, sample: Sample, widths: list[int] | None
) -> tuple[Tensor, Candidates]:
    """Return the scores ``[..., B]`` of the targets, and the pool as new candidates."""
    own, index = candidates, sample.targets[:, None]
    of_targets, of_pool = sample.rows or (None, None)
    if of_targets is not None:
        own = _some(candidates, sample.targets, of_targets)
        count = len(sample.targets)
        index = torch.arange(count, dtype=torch.int64, device=index.device)[:, None]
    operands = own.operands()
    table = operands.pop("candidates")
    with _named_by_id("table", candidates, sample.targets):
        scores = ops.indexed_scores(
            queries, table, index, sample.model.score, dims=widths, **operands
        )
    return scores.squeeze(-1), _some(candidates, sample.negatives, of_pool)


@contextmanager
def _named_by_id(name: str, candidates: Candidates, ids: Tensor) -> Iterator[None]:
    """Name a row that is not finite by id in errors, not by place among gathered rows."""
    try:
        yield
    except NonFiniteError:
        check_rows(name, candidates.table, ids)
        raise


def check_negatives(negatives: Tensor, batch: int, table: Tensor) -> None:
    """Check type, shape and device of negatives."""
    check_tensor("negatives", negatives)
    if negatives.dtype != torch.int64:
        raise TypeError(f"negatives must be int64; got {negatives.dtype}")
    if negatives.ndim != 1 and (negatives.ndim != 2 or len(negatives) != batch):
        raise ValueError(
            f"negatives must have shape [{batch}, K], a row per triple, or [K], a pool for all; "
            f"got {list(negatives.shape)}"
        )
    check_device("negatives", negatives, table, "the model's candidates")


def with_gamma(candidates: Candidates, model: RankableModel, dtype: torch.dtype) -> Candidates:
    """Return candidates with the model's gamma added to the bias."""
    gamma = getattr(model, "gamma", None)
    if gamma is None:
        return candidates
    if candidates.bias is not None:
        return replace(candidates, bias=candidates.bias + gamma)
    return replace(candidates, bias=constant(float(gamma), (1,), dtype, candidates.table.device))

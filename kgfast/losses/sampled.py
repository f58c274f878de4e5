"""Scores of triples and of sampled negatives: never ``[B, K, D]``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.negatives import NegativeLoss
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.losses.batches import asked_triples, checked
from kgfast.losses.formula import NegativesFormula, NegativeTerms, check_taking_part
from kgfast.models import RankableModel
from kgfast.models.base import (
    Candidates,
    Side,
    candidates_at,
    candidates_of,
    check_model,
    is_nested,
    operator_width,
    queries_at,
)
from kgfast.ops.checks import check_device, check_tensor, safe_ids
from kgfast.ops.finite import check_rows
from kgfast.ops.negatives import ListRows, fuses_negatives, list_rows, pool_rows

Scores = tuple[Tensor, Tensor]


def sampled_scores(
    model: RankableModel,
    triples: Any,
    negatives: Tensor,
    side: Side = "tail",
    dims: Sequence[int] | None = None,
    *,
    sparse: bool = False,
) -> Scores:
    """Scores of triples and of negatives that replace one side of them, gamma included.

    Parameters
    ----------
    model : Model
        As in :func:`kgfast.losses.bce`. What RSCF makes of a candidate is made once for each
        distinct one.
    triples : Triples, Tensor, array, or tuple of Tensor
        int64 ``[B, 3]``; or ``(anchors, relations, targets)``, int64 ``[B]`` each: for side
        ``tail`` heads, relations and tails, for ``head`` tails, relations and heads.
    negatives : Tensor
        int64 ``[B, K]``, entities for each triple; or ``[K]``, a pool for all of them.
    side : {"head", "tail"}
        What the negatives replace.
    dims : sequence of int, optional
        Crop widths of the model. Results get a leading axis; all come from one pass, but for
        models whose operands depend on the crop.
    sparse : bool
        Give the table row-sparse gradients, as :func:`kgfast.ops.indexed_scores`.

    Returns
    -------
    positive, negative : Tensor
        ``[B]`` and ``[B, K]``, or ``[len(dims), B]`` and ``[len(dims), B, K]``.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model or an id out of range; the message names the first
        offending place.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]), gamma=2.0)
    >>> positive, negative = sampled_scores(model, [(0, 0, 1)], torch.tensor([[2, 0]]))
    >>> positive.tolist(), negative.tolist()
    ([2.0], [[-2.0, 1.0]])
    """
    return scores_of(*_read(model, triples, negatives, side, dims, sparse=sparse))


def sampled_negatives(
    model: RankableModel,
    triples: Any,
    negatives: Tensor,
    side: Side,
    loss: NegativesFormula,
    *,
    sparse: bool = False,
) -> NegativeTerms:
    """Scores of triples, and what negatives add to a loss; the latter's scores need not exist.

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As of :func:`sampled_scores`.
    loss : NegativesFormula

    Returns
    -------
    NegativeTerms

    Raises
    ------
    ValueError, TypeError
        As :func:`sampled_scores`, and for a mask that does not fit.
    """
    read = _read(model, triples, negatives, side, None, sparse=sparse, mask=loss.mask)
    return negatives_of_sample(*read, loss)


def _read(
    model: Any,
    triples: Any,
    negatives: Tensor,
    side: Side,
    dims: Sequence[int] | None,
    *,
    sparse: bool,
    mask: Tensor | None = None,
) -> "tuple[Any, Any, Sample, TableReader]":
    """The arguments of :func:`scores_of`, checked."""
    check_model(model)
    has_table = isinstance(getattr(model, "entity", None), Tensor)
    table = model.entity if has_table else candidates_at(model, checked(side), None).table
    anchors, relations, targets = asked_triples(model, triples, side, table).complete()
    check_negatives(negatives, len(targets), table)
    if mask is not None:
        check_taking_part(mask, negatives, (len(targets), negatives.shape[-1]))
    reader = TableReader(sparse)
    is_read = is_nested(model) and not get_score(model.score).is_rscf
    if is_read and not (sparse and has_table and _are_columns(model, side)):
        if negatives.ndim == 1:
            negatives = safe_ids("negatives", negatives, len(table))
        sample = Sample(anchors, relations, targets, negatives, side, dims)
        return model, model, sample, reader
    check_model(model, "with_entity")  # candidates are made of rows: each distinct one once
    negatives = safe_ids("negatives", negatives.flatten(), len(table)).view(negatives.shape)
    distinct, (anchors, targets, negatives) = distinct_ids(anchors, targets, negatives)
    model = model.with_entity(reader.rows(table, distinct))
    own, anchors = anchors.unique(return_inverse=True)
    anchor_model = model.with_entity(_embedded(model.entity, own))
    sample = Sample(anchors, relations, targets, negatives, side, dims)
    return anchor_model, model, sample, TableReader()


@dataclass(frozen=True)
class Sample:
    """Triples and the negatives that replace one side of them; ids that were checked.

    Attributes
    ----------
    anchors, relations, targets : Tensor
        int64 ``[B]``: for side ``tail`` heads, relations and tails.
    negatives : Tensor
        int64 ``[B, K]``, or ``[K]``, a pool.
    side : {"head", "tail"}
    dims : sequence of int, optional
        Crop widths of the model.
    """

    anchors: Tensor
    relations: Tensor
    targets: Tensor
    negatives: Tensor
    side: Side
    dims: Sequence[int] | None = None


class TableReader:
    """How the rows of a table are read, and where their gradients go: to the table.

    Parameters
    ----------
    sparse : bool
        Whether the table's gradient is row-sparse.

    Attributes
    ----------
    fuses : bool
        Whether a backend may reduce scores of negatives where they arise.
    """

    fuses: bool = True

    def __init__(self, sparse: bool = False) -> None:
        self.sparse = sparse

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows of a table, ``[len(ids), G]``."""
        return _embedded(table, ids, self.sparse)

    def scores(
        self,
        queries: Tensor,
        candidates: Candidates,
        index: Tensor,
        score: str,
        widths: list[int] | None,
    ) -> Tensor:
        """Scores of each query with the candidates that its row of the index names."""
        operands = candidates.operands()
        table = operands.pop("candidates")
        return ops.indexed_scores(
            queries, table, index, score, dims=widths, sparse=self.sparse, **operands
        )

    def pool_scores(
        self, queries: Tensor, pool: Candidates, score: str, widths: list[int] | None
    ) -> Tensor:
        """Scores of each query with each candidate of a pool."""
        return ops.pairwise_scores(queries, score=score, dims=widths, **pool.operands())

    def list_rows(
        self,
        queries: Tensor,
        candidates: Candidates,
        sample: Sample,
        score: str,
        loss: NegativeLoss,
    ) -> ListRows:
        """What negatives of each query add to a loss: :func:`kgfast.ops.negatives.list_rows`."""
        operands = operands_of(queries, candidates, score)
        ids = sample.targets, sample.negatives
        return list_rows(operands, *ids, loss, sparse=self.sparse)

    def targets(self, candidates: Candidates, ids: Tensor) -> tuple[Candidates, Tensor]:
        """What the targets ``[B]`` are scored among, and their index ``[B, 1]`` in that."""
        return candidates, ids[:, None]

    def some(self, candidates: Candidates, ids: Tensor) -> Candidates:
        """Some of the candidates, as candidates of their own."""
        bias, factor = candidates.bias, candidates.factor
        if bias is not None and len(bias) > 1:
            bias = _embedded(bias[:, None], ids)[:, 0]
        factor = None if factor is None else _embedded(factor, ids)
        return Candidates(self.rows(candidates.table, ids), bias, factor)


def _embedded(table: Tensor, ids: Tensor, sparse: bool = False) -> Tensor:
    """Rows of a table; unlike that of index_select, its gradient has a fixed order on a GPU."""
    return torch.nn.functional.embedding(ids, table, sparse=sparse)


def _of_one_gather(
    candidates: Candidates, sample: Sample, reader: TableReader
) -> tuple[Candidates, Sample, TableReader]:
    """Gather the targets and the pool, where the table's gradient is row-sparse.

    The gradient is then one sparse tensor: torch does not add two of float16.
    """
    if not reader.sparse:
        return candidates, sample, reader
    ids = torch.cat([sample.targets, sample.negatives])
    places = torch.arange(len(ids), dtype=torch.int64, device=ids.device)
    targets, negatives = places.split([len(sample.targets), len(sample.negatives)])
    own = replace(sample, targets=targets, negatives=negatives)
    return reader.some(candidates, ids), own, TableReader()


def _are_columns(model: Any, side: Side) -> bool:
    """Return whether candidates are columns of the entity table: those take no sparse gradient."""
    table, entity = candidates_at(model, side, None).table, model.entity
    memory = table.untyped_storage().data_ptr()
    is_narrower = hasattr(model, "with_entity") and table.shape[1] < entity.shape[1]
    return is_narrower and memory == entity.untyped_storage().data_ptr()


def widths_of_one_pass(model: Any, dims: Sequence[int]) -> list[int] | None:
    """The operator's widths of crops that come from one pass; None where each has its own."""
    crops = [operator_width(model, dim) for dim in dims]
    widths = [width for width in crops if width is not None]
    return widths if is_nested(model) and len(widths) == len(crops) else None


def distinct_ids(*ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The distinct ids of several tensors, ascending, and each tensor as places among them."""
    distinct, places = torch.cat([part.flatten() for part in ids]).unique(return_inverse=True)
    parts = places.split([part.numel() for part in ids])
    return distinct, [place.view(part.shape) for place, part in zip(parts, ids, strict=True)]


def scores_of(anchor_model: Any, model: Any, sample: Sample, reader: TableReader) -> Scores:
    """The scores of a sample, gamma included, as :func:`sampled_scores` returns them.

    Parameters
    ----------
    anchor_model : Model
        Makes the queries; anchors are rows of its table.
    model : Model
        The same model on the table that targets and negatives are rows of.
    sample : Sample
    reader : TableReader
    """
    side, dims = sample.side, sample.dims

    def at(crop: int | None, widths: list[int] | None, candidates: Candidates) -> Scores:
        queries = queries_at(anchor_model, sample.anchors, sample.relations, side, crop)
        candidates = with_gamma(candidates, model, queries.dtype)
        score = _pool_scores if sample.negatives.ndim == 1 else _row_scores
        return score(queries, candidates, sample, model.score, widths, reader)

    if dims is None:
        return at(None, None, candidates_at(model, side, None))
    widths = widths_of_one_pass(model, dims)
    if widths is not None:
        return at(None, widths, candidates_at(model, side, None))
    parts = []
    for dim, candidates in zip(dims, candidates_of(model, side, dims), strict=True):
        width = operator_width(model, dim)
        parts.append(at(dim, None if width is None else [width], candidates))
    positives, negatives = zip(*parts, strict=True)
    return (
        torch.cat([part.reshape(1, -1) for part in positives]),
        torch.cat([part.reshape(1, *part.shape[-2:]) for part in negatives]),
    )


def negatives_of_sample(
    anchor_model: Any, model: Any, sample: Sample, reader: TableReader, loss: NegativesFormula
) -> NegativeTerms:
    """What the negatives of a sample without crops add to a loss; see :func:`scores_of`."""
    queries = queries_at(anchor_model, sample.anchors, sample.relations, sample.side, None)
    candidates = with_gamma(candidates_at(model, sample.side, None), model, queries.dtype)
    is_pool, kernel = sample.negatives.ndim == 1, loss.fused()
    fuses = reader.fuses and fuses_negatives(queries, candidates.bias, sample.negatives)
    if kernel is None or not fuses:
        score = _pool_scores if is_pool else _row_scores
        scores = score(queries, candidates, sample, model.score, None, reader)
        return loss.terms(*scores)
    fused = _pool_negatives if is_pool else _row_negatives
    positive, rows, masses = fused(queries, candidates, sample, model.score, kernel, reader)
    count: Tensor | int = len(queries) * sample.negatives.shape[-1]
    if loss.mask is not None and loss.mean_over != "rows":
        count = masses.sum()
    return NegativeTerms(positive, rows, count)


def _row_negatives(
    queries: Tensor,
    candidates: Candidates,
    sample: Sample,
    score: str,
    loss: NegativeLoss,
    reader: TableReader,
) -> ListRows:
    return reader.list_rows(queries, candidates, sample, score, loss)


def _pool_negatives(
    queries: Tensor,
    candidates: Candidates,
    sample: Sample,
    score: str,
    loss: NegativeLoss,
    reader: TableReader,
) -> ListRows:
    """As :func:`_pool_scores`, of the pool what it adds to the loss."""
    gathered, places, reader = _of_one_gather(candidates, sample, reader)
    own, index = reader.targets(gathered, places.targets)
    with _named_by_id("table", candidates, sample.targets):
        positive = reader.scores(queries, own, index, score, None).squeeze(-1)
    pool = reader.some(gathered, places.negatives)
    with _named_by_id("candidates", candidates, sample.negatives):
        return positive, *pool_rows(operands_of(queries, pool, score), positive, loss)


def operands_of(queries: Tensor, candidates: Candidates, score: str) -> Operands:
    """Operands without crops."""
    table, bias, factor = candidates.table, candidates.bias, candidates.factor
    return Operands(queries, Prepared(table, get_score(score), bias, factor))


def _row_scores(
    queries: Tensor,
    candidates: Candidates,
    sample: Sample,
    score: str,
    widths: list[int] | None,
    reader: TableReader,
) -> Scores:
    """Target and negatives of a row in one list: one pass, and one gradient of the table."""
    index = torch.cat([sample.targets[:, None], sample.negatives], 1)
    scores = reader.scores(queries, candidates, index, score, widths)
    positive, negative = scores.split([1, sample.negatives.shape[1]], -1)
    return positive.squeeze(-1), negative


def _pool_scores(
    queries: Tensor,
    candidates: Candidates,
    sample: Sample,
    score: str,
    widths: list[int] | None,
    reader: TableReader,
) -> Scores:
    """Each target with its own query, and the pool with all of them."""
    gathered, places, reader = _of_one_gather(candidates, sample, reader)
    own, index = reader.targets(gathered, places.targets)
    with _named_by_id("table", candidates, sample.targets):
        positive = reader.scores(queries, own, index, score, widths).squeeze(-1)
    pool = reader.some(gathered, places.negatives)
    with _named_by_id("candidates", candidates, sample.negatives):
        return positive, reader.pool_scores(queries, pool, score, widths)


@contextmanager
def _named_by_id(name: str, candidates: Candidates, ids: Tensor) -> Iterator[None]:
    """Name a row that is not finite by its id, not by its place among those that were gathered."""
    try:
        yield
    except NonFiniteError:
        check_rows(name, candidates.table, ids)
        raise


def check_negatives(negatives: Tensor, batch: int, table: Tensor) -> None:
    """Type, shape and device of negatives."""
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
    """Candidates whose bias holds the model's gamma."""
    gamma = getattr(model, "gamma", None)
    if gamma is None:
        return candidates
    if candidates.bias is not None:
        return replace(candidates, bias=candidates.bias + gamma)
    return replace(candidates, bias=candidates.table.new_full((1,), gamma, dtype=dtype))

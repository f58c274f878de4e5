"""Scores of triples and of sampled negatives: never ``[B, K, D]``."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from kgfast.graph import as_triples_tensor
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.scores import get_score
from kgfast.models.base import (
    SIDES,
    Candidates,
    Side,
    candidates_at,
    candidates_of,
    check_model,
    is_nested,
    operator_width,
    queries_at,
)
from kgfast.ops.checks import check_device, check_ids, check_tensor
from kgfast.ops.finite import check_rows

Scores = tuple[Tensor, Tensor]


def sampled_scores(
    model: Any,
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
    triples : Triples, Tensor or array
        int64 ``[B, 3]``.
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
    check_model(model)
    hrt = as_triples_tensor(
        triples, num_entities=model.num_entities, num_relations=model.num_relations
    )
    has_table = isinstance(getattr(model, "entity", None), Tensor)
    table = model.entity if has_table else candidates_at(model, checked(side), None).table
    check_negatives(negatives, len(hrt), table)
    heads, relations, tails = hrt.to(table.device).T
    anchors, targets = (heads, tails) if checked(side) == "tail" else (tails, heads)
    if get_score(model.score).is_rscf or not is_nested(model):  # then rows are made of rows
        check_model(model, "with_entity")
        check_ids("negatives", negatives.flatten(), len(table))
        ids, (anchors, targets, negatives) = distinct_ids(anchors, targets, negatives)
        model = model.with_entity(_rows(table, ids, sparse))
        asked, anchors = anchors.unique(return_inverse=True)
        asking = model.with_entity(_rows(model.entity, asked, sparse=False))
        return scores_of(model, anchors, relations, targets, negatives, side, dims, asking=asking)
    return scores_of(model, anchors, relations, targets, negatives, side, dims, sparse=sparse)


def distinct_ids(*ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The distinct ids of several tensors, ascending, and each tensor as places among them."""
    distinct, places = torch.cat([it.flatten() for it in ids]).unique(return_inverse=True)
    parts = places.split([it.numel() for it in ids])
    return distinct, [part.view(it.shape) for part, it in zip(parts, ids, strict=True)]


def scores_of(
    model: Any,
    anchors: Tensor,
    relations: Tensor,
    targets: Tensor,
    negatives: Tensor,
    side: Side,
    dims: Sequence[int] | None,
    *,
    asking: Any = None,
    sparse: bool = False,
) -> Scores:
    """:func:`sampled_scores` of ids that were checked.

    Anchors are rows of the model ``asking``, which is the same on another table; by default of the
    model itself.
    """
    asking = model if asking is None else asking

    def at(crop: int | None, widths: list[int] | None, candidates: Candidates) -> Scores:
        queries = queries_at(asking, anchors, relations, side, crop)
        candidates = with_gamma(candidates, model, queries.dtype)
        score = _pool_scores if negatives.ndim == 1 else _row_scores
        return score(queries, candidates, targets, negatives, model.score, widths, sparse)

    if dims is None:
        return at(None, None, candidates_at(model, side, None))
    crops = {dim: operator_width(model, dim) for dim in dims}
    widths = [width for dim in dims if (width := crops[dim]) is not None]
    if len(widths) == len(dims) and is_nested(model):
        return at(None, widths, candidates_at(model, side, None))
    found = candidates_of(model, side, dims)
    parts = [
        at(dim, None if (width := crops[dim]) is None else [width], candidates)
        for dim, candidates in zip(dims, found, strict=True)
    ]
    positives, others = zip(*parts, strict=True)
    return (
        torch.cat([part.reshape(1, -1) for part in positives]),
        torch.cat([part.reshape(1, *part.shape[-2:]) for part in others]),
    )


def _row_scores(
    queries: Tensor,
    candidates: Candidates,
    targets: Tensor,
    negatives: Tensor,
    score: str,
    widths: list[int] | None,
    sparse: bool,
) -> Scores:
    """Target and negatives of a row in one list: one pass, and one gradient of the table."""
    operands = candidates.operands()
    index = torch.cat([targets[:, None], negatives], 1)
    scores = ops.indexed_scores(
        queries,
        operands.pop("candidates"),
        index,
        score,
        dims=widths,
        sparse=sparse,
        **operands,
    )
    positive, negative = scores.split([1, negatives.shape[1]], -1)
    return positive.squeeze(-1), negative


def _pool_scores(
    queries: Tensor,
    candidates: Candidates,
    targets: Tensor,
    negatives: Tensor,
    score: str,
    widths: list[int] | None,
    sparse: bool,
) -> Scores:
    check_ids("negatives", negatives, len(candidates.table))
    own = targets[:, None][:, :0]
    positive, _ = _row_scores(queries, candidates, targets, own, score, widths, sparse)
    bias = candidates.bias
    pool = Candidates(
        _rows(candidates.table, negatives, sparse),
        bias if bias is None or len(bias) == 1 else _rows(bias[:, None], negatives, False)[:, 0],
        None if candidates.factor is None else _rows(candidates.factor, negatives, False),
    )
    try:
        return positive, ops.pairwise_scores(queries, score=score, dims=widths, **pool.operands())
    except NonFiniteError:
        check_rows("candidates", candidates.table, negatives)  # by its own id, not by its place
        raise


def _rows(table: Tensor, ids: Tensor, sparse: bool) -> Tensor:
    """Rows of a table; unlike that of index_select, its gradient has a fixed order on a GPU."""
    return torch.nn.functional.embedding(ids, table, sparse=sparse)


def checked(side: Side) -> Side:
    """The side, if it is one."""
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {side!r}")
    return side


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


def with_gamma(candidates: Candidates, model: Any, dtype: torch.dtype) -> Candidates:
    """Candidates whose bias holds the model's gamma."""
    gamma = getattr(model, "gamma", None)
    if gamma is None:
        return candidates
    if candidates.bias is not None:
        return replace(candidates, bias=candidates.bias + gamma)
    return replace(candidates, bias=candidates.table.new_full((1,), gamma, dtype=dtype))

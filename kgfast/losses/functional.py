"""Losses of a model: queries and candidates from the model, scores and gradients by one operator.

Losses over all entities never hold ``[B, N]``, sampled ones never ``[B, K, D]``. A model's
``gamma`` is added to its scores; biases of its candidates are, too.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from kgfast.graph import as_triples_tensor
from kgfast.losses import formulas
from kgfast.losses.formulas import Reduction, SmoothingStyle, check_reduction, smoothed_labels
from kgfast.models.base import SIDES, Candidates, Side, check_dim
from kgfast.ops.checks import check_ids, check_index

Positives = Tensor | tuple[Tensor, Tensor]


def bce(
    model: Any,
    anchors: Tensor,
    relations: Tensor,
    positives: Positives,
    *,
    side: Side = "tail",
    label_smoothing: float = 0.0,
    smoothing_style: SmoothingStyle = "torch",
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross entropy over all entities: 1-vs-all, or KvsAll (Dettmers et al. 2018, eq. 2).

    ``-sum_j y_j log sigmoid(x_j) + (1 - y_j) log sigmoid(-x_j)`` for the scores ``x`` of each
    query with every entity and labels ``y``.

    Parameters
    ----------
    model : Model
        Any object with ``score``, ``num_entities``, ``num_relations``, ``queries`` and
        ``candidates`` as :class:`kgfast.Model` has them; ``gamma`` is added to scores if there.
    anchors, relations : Tensor
        int64 ``[B]``: heads and relations for side ``tail``, tails and relations for ``head``.
    positives : Tensor or pair of Tensor
        int64 ``[B]``, one true entity per query (1-vs-all); or CSR ``(indptr [B + 1],
        indices [nnz])`` with at least one per query, as of :meth:`kgfast.KnownTriples.exclude`
        (KvsAll).
    side : {"head", "tail"}
        What is predicted.
    label_smoothing : float
        In ``[0, 1)``.
    smoothing_style : {"torch", "conve", "pykeen"}
        See :func:`kgfast.losses.smoothed_labels`.
    reduction : {"mean", "sum", "none"}
        Mean over all B N labels, their sum, or the sum of each row.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model, a row without positives, an id out of range, a NaN
        or an infinity; the message names the first offending row.

    Examples
    --------
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0]]))
    >>> bce(model, torch.tensor([1]), torch.tensor([0]), torch.tensor([1]), reduction="none")
    tensor([0.7113])
    """
    check_reduction(reduction)
    a, c = smoothed_labels(label_smoothing, smoothing_style, model.num_entities)
    queries, candidates = _queries(model, anchors, relations, side)
    rows = ops.bce(
        queries,
        **_all_candidates(_with_gamma(candidates, model, queries.dtype), "bce"),
        **_csr(positives, queries),
        label_a=a,
        label_c=c,
        score=model.score,
    )
    return _reduced(rows, len(rows) * len(candidates.table), reduction)


def cross_entropy(
    model: Any,
    anchors: Tensor,
    relations: Tensor,
    targets: Tensor,
    *,
    side: Side = "tail",
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Softmax cross entropy over all entities, 1-vs-all (Lacroix et al. 2018, eq. 3).

    ``logsumexp(x) - (1 - eps) x_target - (eps / N) sum_j x_j`` for the scores ``x`` of each query
    with every entity, as ``torch.nn.functional.cross_entropy``. Gamma cancels and is left out.

    Parameters
    ----------
    model, anchors, relations, side
        As in :func:`bce`.
    targets : Tensor
        int64 ``[B]``, the true entity of each query.
    label_smoothing : float
        eps, in ``[0, 1)``.
    reduction : {"mean", "sum", "none"}
        Mean or sum over rows, or the rows.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        As in :func:`bce`.

    Examples
    --------
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> cross_entropy(model, torch.tensor([1]), torch.tensor([0]), torch.tensor([1]))
    tensor(0.3133)
    """
    check_reduction(reduction)
    queries, candidates = _queries(model, anchors, relations, side)
    rows = ops.cross_entropy(
        queries,
        **_all_candidates(candidates, "cross_entropy"),
        targets=targets,
        label_smoothing=label_smoothing,
        score=model.score,
    )
    return _reduced(rows, len(rows), reduction)


def nssa(
    model: Any,
    triples: Any,
    negatives: Tensor,
    *,
    side: Side = "tail",
    alpha: float = 1.0,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Self-adversarial negative sampling loss (Sun et al. 2019, eq. 5-6; official code).

    :func:`kgfast.losses.formulas.nssa` of :func:`sampled_scores`: with ``p = softmax(alpha s_neg)``
    without gradient, ``-1/2 (log sigmoid(s_pos) + sum_i p_i log sigmoid(-s_neg_i))``.

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    alpha : float
        Temperature, at least 0.
    weights : Tensor, optional
        ``[B]``, as of :func:`kgfast.losses.subsampling_weights`.
    mask : Tensor, optional
        bool ``[B, K]``: False where a negative takes no part.
    reduction : {"mean", "sum", "none"}
        Weighted mean, weighted sum, or weighted rows.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]), gamma=2.0)
    >>> nssa(model, torch.tensor([[0, 0, 1]]), torch.tensor([[2, 0]]))
    tensor(0.6920)
    """
    scores = sampled_scores(model, triples, negatives, side, sparse=sparse)
    return formulas.nssa(*scores, alpha=alpha, weights=weights, mask=mask, reduction=reduction)


def margin(
    model: Any,
    triples: Any,
    negatives: Tensor,
    *,
    side: Side = "tail",
    margin: float = 1.0,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Margin ranking loss over all (positive, negative) pairs (Bordes et al. 2013, eq. 1).

    ``max(0, margin - s_pos + s_neg)``: :func:`kgfast.losses.formulas.margin` of
    :func:`sampled_scores`.

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    margin : float
        Finite.
    mask, reduction
        As in :func:`kgfast.losses.formulas.margin`.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[1.0]]))
    >>> margin(model, torch.tensor([[0, 0, 1]]), torch.tensor([2, 0]), margin=2.0)
    tensor(0.5000)
    """
    scores = sampled_scores(model, triples, negatives, side, sparse=sparse)
    return formulas.margin(*scores, margin=margin, mask=mask, reduction=reduction)


def logistic(
    model: Any,
    triples: Any,
    negatives: Tensor,
    *,
    side: Side = "tail",
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Logistic loss of positives and negatives (Trouillon et al. 2016, eq. 10).

    ``log(1 + exp(-y s))``: :func:`kgfast.losses.formulas.logistic` of :func:`sampled_scores`.

    Parameters
    ----------
    model, triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    mask, reduction
        As in :func:`kgfast.losses.formulas.logistic`.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Examples
    --------
    >>> from kgfast import DistMult
    >>> model = DistMult(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> logistic(model, torch.tensor([[1, 0, 1]]), torch.tensor([0]), reduction="sum")
    tensor(1.0064)
    """
    scores = sampled_scores(model, triples, negatives, side, sparse=sparse)
    return formulas.logistic(*scores, mask=mask, reduction=reduction)


def sampled_scores(
    model: Any,
    triples: Any,
    negatives: Tensor,
    side: Side = "tail",
    dims: Sequence[int] | None = None,
    *,
    sparse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scores of triples and of negatives that replace one side of them, gamma included.

    Parameters
    ----------
    model : Model
        As in :func:`bce`.
    triples : Triples, Tensor or array
        int64 ``[B, 3]``.
    negatives : Tensor
        int64 ``[B, K]``, entities for each triple; or ``[K]``, a pool for all of them.
    side : {"head", "tail"}
        What the negatives replace.
    dims : sequence of int, optional
        Crop widths of the model. Results get a leading axis; where queries do not depend on the
        crop, all come from one pass.
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
    hrt = as_triples_tensor(
        triples, num_entities=model.num_entities, num_relations=model.num_relations
    )
    table = model.candidates(_checked(side)).table
    heads, relations, tails = hrt.to(table.device).T
    anchors, targets = (heads, tails) if side == "tail" else (tails, heads)
    _check_negatives(negatives, len(hrt), table)

    def at(crop: int | None, widths: list[int] | None) -> tuple[Tensor, Tensor]:
        queries = model.queries(anchors, relations, side, dims=crop)
        candidates = _with_gamma(model.candidates(side), model, queries.dtype)
        score = _pool_scores if negatives.ndim == 1 else _row_scores
        return score(queries, candidates, targets, negatives, model.score, widths, sparse)

    if dims is None:
        return at(None, None)
    width_of = getattr(model, "crop_width", lambda dim: dim)
    crops = {dim: width_of(check_dim(dim, model.dim)) for dim in dims}
    widths = [width for width in crops.values() if width is not None]
    if len(widths) == len(crops):
        return at(None, [crops[dim] for dim in dims])
    parts = [at(dim, None if crops[dim] is None else [crops[dim]]) for dim in dims]
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
) -> tuple[Tensor, Tensor]:
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
) -> tuple[Tensor, Tensor]:
    check_ids("negatives", negatives, len(candidates.table))
    own = targets[:, None][:, :0]
    positive, _ = _row_scores(queries, candidates, targets, own, score, widths, sparse)
    bias = candidates.bias
    pool = Candidates(
        _rows(candidates.table, negatives, sparse),
        bias if bias is None or len(bias) == 1 else _rows(bias[:, None], negatives, False)[:, 0],
        None if candidates.factor is None else _rows(candidates.factor, negatives, False),
    )
    return positive, ops.pairwise_scores(queries, score=score, dims=widths, **pool.operands())


def _rows(table: Tensor, ids: Tensor, sparse: bool) -> Tensor:
    """Rows of a table; unlike that of index_select, its gradient has a fixed order on a GPU."""
    return torch.nn.functional.embedding(ids, table, sparse=sparse)


def _queries(
    model: Any, anchors: Tensor, relations: Tensor, side: Side
) -> tuple[Tensor, Candidates]:
    """The checked queries of a model, and the candidates of that side."""
    candidates: Candidates = model.candidates(_checked(side))
    check_index("anchors", anchors, (None,), candidates.table)
    check_index("relations", relations, (len(anchors),), candidates.table)
    check_ids("anchors", anchors, model.num_entities)
    check_ids("relations", relations, model.num_relations)
    return model.queries(anchors, relations, side), candidates


def _checked(side: Side) -> Side:
    if side not in SIDES:
        raise ValueError(f"side must be 'head' or 'tail'; got {side!r}")
    return side


def _check_negatives(negatives: Tensor, batch: int, table: Tensor) -> None:
    if not isinstance(negatives, Tensor) or negatives.dtype != torch.int64:
        raise TypeError("negatives must be an int64 tensor")
    if negatives.ndim != 1 and (negatives.ndim != 2 or len(negatives) != batch):
        raise ValueError(
            f"negatives must have shape [{batch}, K], a row per triple, or [K], a pool for all; "
            f"got {list(negatives.shape)}"
        )
    if negatives.device != table.device:
        raise ValueError(
            f"negatives must be on {table.device}, as the model; got {negatives.device}"
        )


def _with_gamma(candidates: Candidates, model: Any, dtype: torch.dtype) -> Candidates:
    """Candidates whose bias holds the model's gamma."""
    gamma = getattr(model, "gamma", None)
    if gamma is None:
        return candidates
    if candidates.bias is not None:
        return replace(candidates, bias=candidates.bias + gamma)
    return replace(candidates, bias=candidates.table.new_full((1,), gamma, dtype=dtype))


def _all_candidates(candidates: Candidates, loss: str) -> dict[str, Any]:
    operands = candidates.operands()
    if operands.pop("factor") is not None:
        raise ValueError(f"{loss} takes no scores with a factor")
    return operands


def _csr(positives: Positives, queries: Tensor) -> dict[str, Tensor]:
    """Positives as the operator takes them."""
    if isinstance(positives, Tensor):
        check_index("positives", positives, (len(queries),), queries)
        indptr = torch.arange(len(queries) + 1, device=positives.device)
        return {"positive_indptr": indptr, "positive_indices": positives}
    if not isinstance(positives, tuple) or len(positives) != 2:
        raise TypeError("positives must be a tensor [B] or a pair (indptr, indices)")
    return {"positive_indptr": positives[0], "positive_indices": positives[1]}


def _reduced(rows: Tensor, count: int, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / count

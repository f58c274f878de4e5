"""Losses of a model: queries and candidates from the model, scores and gradients by one operator.

Losses over all entities never hold ``[B, N]``, sampled ones never ``[B, K, D]``. A model's
``gamma`` is added to its scores; biases of its candidates are, too.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.negatives import NegativeLoss
from kgfast.losses.croppable import med_of
from kgfast.losses.formulas import (
    Reduction,
    SmoothingStyle,
    check_reduction,
    check_weights,
    reduced,
    smoothed_labels,
)
from kgfast.losses.rows import Asked, count_of, of_distinct_anchors
from kgfast.losses.sampled import checked, sampled_negatives, sampled_scores, with_gamma
from kgfast.models import MED, RankableModel
from kgfast.models.base import Candidates, Side, candidates_at, check_model
from kgfast.models.med import check_increasing
from kgfast.ops.checks import check_bounded, check_index, safe_ids

Positives = Tensor | tuple[Tensor, Tensor]
Precision = Literal["float32", "bf16"]


def bce(
    model: RankableModel,
    anchors: Tensor,
    relations: Tensor,
    positives: Positives,
    *,
    side: Side = "tail",
    label_smoothing: float = 0.0,
    smoothing_style: SmoothingStyle = "torch",
    reduction: Reduction = "mean",
    precision: Precision = "float32",
    sparse: bool = False,
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
        int64 ``[B]``: heads and relations for side ``tail``, tails and relations for ``head``. Of a
        model with inverse relations, tails of these are predicted by their own numbers, too.
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
    precision : {"float32", "bf16"}
        ``bf16``: what is multiplied is rounded to bfloat16, of models whose score is ``dot``; see
        :func:`kgfast.ops.bce`.
    sparse : bool
        Read the rows of anchors, and of wide relations (:attr:`kgfast.Model.has_wide_relations`),
        so that their gradients are those of rows. The gradients of anchors are added to that of the
        candidates, and no second tensor of its size is made. Not under ``torch.compile``.

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
    check_model(model)
    a, c = smoothed_labels(label_smoothing, smoothing_style, model.num_entities)
    queries, candidates = _queries(model, anchors, relations, side, sparse=sparse)
    arguments = {
        **_all_candidates(with_gamma(candidates, model, queries.dtype), "bce"),
        **_csr(positives, queries),
        "label_a": a,
        "label_c": c,
        "score": model.score,
        "precision": precision,
    }
    if reduction == "none" or not len(queries):
        rows = ops.bce(queries, **arguments)
        return _reduced(rows, len(rows) * len(candidates.table), reduction)
    divisor = len(queries) * len(candidates.table) if reduction == "mean" else 1
    return ops.bce_total(queries, **arguments, divisor=divisor)


def cross_entropy(
    model: RankableModel,
    anchors: Tensor,
    relations: Tensor,
    targets: Tensor,
    *,
    side: Side = "tail",
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    precision: Precision = "float32",
    sparse: bool = False,
) -> Tensor:
    """Softmax cross entropy over all entities, 1-vs-all (Lacroix et al. 2018, eq. 3).

    ``logsumexp(x) - (1 - eps) x_target - (eps / N) sum_j x_j`` for the scores ``x`` of each query
    with every entity, as ``torch.nn.functional.cross_entropy``. Gamma cancels and is left out.

    Parameters
    ----------
    model, anchors, relations, side, precision, sparse
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
    check_model(model)
    queries, candidates = _queries(model, anchors, relations, side, sparse=sparse)
    divisors = {"mean": max(1, len(queries)), "sum": 1, "none": None}
    rows = ops.cross_entropy(
        queries,
        **_all_candidates(candidates, "cross_entropy"),
        targets=targets,
        label_smoothing=label_smoothing,
        score=model.score,
        divisor=divisors[reduction],
        precision=precision,
    )
    return _reduced(rows, len(rows), reduction)


def nssa(
    model: RankableModel,
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
    check_reduction(reduction)
    check_bounded("alpha", alpha, 0)
    loss = NegativeLoss("nssa", alpha, mask)
    made = sampled_negatives(model, triples, negatives, side, loss, sparse=sparse)
    if weights is not None:
        check_weights(weights, made.positive)
    return reduced(loss, made, weights, reduction)


def margin(
    model: RankableModel,
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
    check_reduction(reduction)
    check_bounded("margin", margin)
    loss = NegativeLoss("margin", margin, mask)
    made = sampled_negatives(model, triples, negatives, side, loss, sparse=sparse)
    return reduced(loss, made, None, reduction)


def logistic(
    model: RankableModel,
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
    check_reduction(reduction)
    loss = NegativeLoss("logistic", mask=mask)
    made = sampled_negatives(model, triples, negatives, side, loss, sparse=sparse)
    return reduced(loss, made, None, reduction)


def med(
    model: MED,
    triples: Any,
    negatives: Tensor,
    *,
    side: Side = "tail",
    dims: Sequence[int] | None = None,
    mask: Tensor | None = None,
    sparse: bool = False,
) -> Tensor:
    """Loss of croppable embeddings (Zhu et al. 2025, section 3).

    :func:`kgfast.losses.med_loss` of :func:`sampled_scores` of the sub-models.

    Parameters
    ----------
    model : MED
    triples, negatives, side, sparse
        As in :func:`sampled_scores`.
    dims : sequence of int, optional
        Increasing widths of the sub-models that take part, as of :meth:`MED.draw`; all by default.
    mask : Tensor, optional
        bool ``[B, K]``: False where a negative takes no part.

    Returns
    -------
    Tensor
        A scalar.

    Examples
    --------
    >>> from kgfast import RotatE
    >>> model = MED(RotatE.init(9, 2, dim=4, seed=0), dims=[2, 4])
    >>> med(model, [(0, 1, 2)], torch.tensor([[3, 4]])).ndim
    0
    """
    if not isinstance(model, MED):
        raise TypeError(f"model must be a MED; got {type(model).__name__}")
    widths = model.dims if dims is None else dims
    check_increasing(widths)
    scores = sampled_scores(model, triples, negatives, side, widths, sparse=sparse)
    return med_of(model, *scores, widths, mask)


def _queries(
    model: Any, anchors: Tensor, relations: Tensor, side: Side, *, sparse: bool
) -> tuple[Tensor, Candidates]:
    """The checked queries of a model, and the candidates of that side."""
    candidates = candidates_at(model, checked(side), None)
    check_index("anchors", anchors, (None,), candidates.table)
    check_index("relations", relations, (len(anchors),), candidates.table)
    anchors = safe_ids("anchors", anchors, model.num_entities)
    relations = safe_ids("relations", relations, count_of(model, side))
    asked = Asked(model, anchors, relations, side)
    if sparse:
        check_model(model, "with_entity")
        asked, candidates = of_distinct_anchors(asked, candidates)
    return asked.queries(), candidates


def _all_candidates(candidates: Candidates, loss: str) -> dict[str, Any]:
    operands = candidates.operands()
    if operands.pop("factor") is not None:
        raise ValueError(
            f"{loss} takes no scores with a factor: RSCF needs relation_transform=False here"
        )
    return operands


def _csr(positives: Positives, queries: Tensor) -> dict[str, Tensor]:
    """Positives as the operator takes them."""
    if isinstance(positives, Tensor):
        check_index("positives", positives, (len(queries),), queries)
        indptr = torch.arange(len(queries) + 1, dtype=torch.int64, device=positives.device)
        return {"positive_indptr": indptr, "positive_indices": positives}
    if not isinstance(positives, tuple) or len(positives) != 2:
        raise TypeError("positives must be a tensor [B] or a pair (indptr, indices)")
    return {"positive_indptr": positives[0], "positive_indices": positives[1]}


def _reduced(rows: Tensor, count: int, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / count

"""Penalties of the embeddings of triples, for any loss: N3, L2 and DURA.

A penalty is a mean over triples, of rows of the tables themselves: for filtered and croppable
models (RSCF, MED) of the tables of the inner model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding

from kgfast.graph import TriplesLike
from kgfast.losses.batches import QueryBatch
from kgfast.losses.loss import reduced
from kgfast.models import CP, RESCAL, ComplEx, DistMult, Model
from kgfast.models.base import Side, distinct_relations
from kgfast.models.complex_rows import split
from kgfast.models.wrapper import unwrapped
from kgfast.ops.differentiable import full_precision
from kgfast.ops.row_gradients import read_rows

_OF_FACTORS = (DistMult, ComplEx, CP)  # scores that are sums of products of three numbers
_OF_PRODUCTS = (*_OF_FACTORS, RESCAL)  # bilinear scores


def n3(model: Model, triples: TriplesLike, *, side: Side = "tail", sparse: bool = False) -> Tensor:
    """Compute the nuclear 3-norm of triples: the mean of ``sum_k |h_k|^3 + |r_k|^3 + |t_k|^3``.

    See Lacroix et al. 2018 (arXiv 1806.07297), eq. 4, with the factors of eq. 9: moduli of complex
    rows. The norm itself is a third of this sum. The weight in the authors' code, and
    ``regularizer.weight`` of a config, multiply the mean of this sum.

    Parameters
    ----------
    model : DistMult, ComplEx or CP
        Also a :class:`kgfast.Reciprocal` or MED around one of these.
    triples : Triples, Tensor or array; or pair of Tensor
        int64 ``[B, 3]``; or anchors and relations ``[B]`` of queries with many answers. Rows of
        answers then have no penalty. The mean over no triple is 0.
    side : {"head", "tail"}
        The predicted side; with a Reciprocal, the relation or the inverse takes part.
    sparse : bool
        Make row gradients for the entity table (:class:`kgfast.RowGradients`).

    Returns
    -------
    Tensor
        A scalar. A ValueError or TypeError names triples or a model that do not fit.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> n3(model, [(0, 0, 1)])
    tensor(36.)
    """
    uses = _uses(model, triples, side, sparse=sparse)
    _check_fits("n3", uses[0].model, _OF_FACTORS)
    return _mean_of_factors(uses, partial(_cubes, uses[0].model))


def l2(model: Model, triples: TriplesLike, *, side: Side = "tail", sparse: bool = False) -> Tensor:
    """Compute squared lengths of triples: the mean of ``|h|^2 + |r|^2 + |t|^2``.

    A row counts once per use, which LibKGE calls weighted by frequency. Any model of kgfast has
    this penalty; all else is as in :func:`n3`.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> l2(model, [(0, 0, 1)])
    tensor(14.)
    """
    return _mean_of_factors(_uses(model, triples, side, sparse=sparse), _squares)


def dura(
    model: Model, triples: TriplesLike, *, side: Side = "tail", sparse: bool = False
) -> Tensor:
    """Compute DURA, induced by duality: the mean of ``|h|^2 + |t|^2 + |h R|^2 + |t R^T|^2``.

    See Zhang et al. 2020 (arXiv 2011.05816), eq. 8: the penalty bounds scores by distances of query
    and candidate. ``R`` is the relation as a matrix, which is diagonal for DistMult, ComplEx and
    CP. Queries need targets, and the model may also be RESCAL; all else is as in :func:`n3`.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> dura(model, [(0, 0, 1)])
    tensor(50.)
    """
    uses = _uses(model, triples, side, sparse=sparse)
    if len(uses) < 2:
        raise ValueError("dura takes triples [B, 3]: targets are penalised as queries")
    _check_fits("dura", uses[0].model, _OF_PRODUCTS)
    total = torch.stack([*map(_squares, _entities(uses))]).sum(0)
    for use in uses:
        total = total + _squares(use.queries())
    return reduced(total, len(total), "mean")


def _uses(model: Model, triples: TriplesLike, side: Side, *, sparse: bool) -> list[QueryBatch]:
    """Return queries of the anchors and, if there are targets, of the targets for the other side.

    Each use of a row is a query of a model of the rows of its own, without wrappers.
    """
    table, batch = model.entity, QueryBatch.of(model, triples, side, model.entity)
    ids = [batch.anchors] if batch.targets is None else [batch.anchors, batch.targets]
    rows = read_rows(table, *ids)[1:] if sparse else [embedding(some, table) for some in ids]
    relations = model.relation_ids(batch.relations, side)
    side = "tail" if model.has_inverses else side
    use = replace(batch, model=unwrapped(model), relations=relations)
    sides = side, _other(side)
    return [replace(use, side=s).of_rows(x) for s, x in zip(sides, rows, strict=False)]


def _entities(uses: Sequence[QueryBatch]) -> list[Tensor]:
    """Return the score's parts of anchors and, if given, of targets, ``[B, *]`` each."""
    return [use.model.candidates(_other(use.side)).table for use in uses]


def _mean_of_factors(uses: Sequence[QueryBatch], penalty: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum a penalty of rows, ``[*, G]`` to ``[*]``, over all rows of a use; return the mean.

    Many uses share a relation: the penalty of each relation is computed once.
    """
    distinct, places = distinct_relations(uses[0].relations)
    of_relations = torch.stack([*map(penalty, uses[0].model.relation_factors(distinct))]).sum(0)
    if places is not None:  # the gradient of a plain index has no fixed order
        of_relations = embedding(places, of_relations[:, None])[:, 0]
    of_anchors, *of_targets = map(penalty, _entities(uses))
    total = torch.stack([of_anchors, of_relations, *of_targets]).sum(0)
    return reduced(total, len(total), "mean")


def _check_fits(name: str, model: Model, fitting: Sequence[type[Model]]) -> None:
    if not isinstance(model, tuple(fitting)):
        names = ", ".join(kind.__name__ for kind in fitting)
        raise ValueError(f"{name} takes {names}; got {type(model).__name__}")


def _other(side: Side) -> Side:
    return "head" if side == "tail" else "tail"


def _squares(rows: Tensor) -> Tensor:
    return full_precision(rows).square().sum(1)


def _cubes(model: Any, rows: Tensor) -> Tensor:
    rows = full_precision(rows)
    if not hasattr(model, "layout"):
        return rows.abs().pow(3).sum(1)
    re, im = split(rows, model.layout)
    return (re * re + im * im).pow(1.5).sum(1)

"""Penalties of the embeddings of triples, for any loss: N3, L2 and DURA.

Each penalty is a function of a model and of triples. Penalties are on rows of the tables
themselves. For filtered and croppable models (RSCF, MED) these are the tables of the inner model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.losses.batches import checked, count_of
from kgfast.losses.loss import Reduction, check_reduction, reduced
from kgfast.models import CP, RESCAL, ComplEx, DistMult, Model
from kgfast.models.base import Side, distinct_relations
from kgfast.models.complex_rows import split
from kgfast.models.wrapper import unwrapped
from kgfast.ops.checks import check_bounded, check_index
from kgfast.ops.row_gradients import read_rows
from kgfast.ops.values import safe_ids

_OF_FACTORS = (DistMult, ComplEx, CP)  # scores that are sums of products of three numbers
_OF_PRODUCTS = (*_OF_FACTORS, RESCAL)  # bilinear scores


def n3(
    model: Model,
    triples: TriplesLike,
    *,
    side: Side = "tail",
    weighted: bool = True,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Compute the nuclear 3-norm of triples: ``sum_k |h_k|^3 + |r_k|^3 + |t_k|^3``.

    See Lacroix et al. 2018 (arXiv 1806.07297), eq. 4, with the factors of eq. 9: moduli of complex
    rows. The norm itself is a third of this sum. The weight in the authors' code, and
    ``regularizer.weight`` of a config, multiply the mean of this sum.

    Parameters
    ----------
    model : DistMult, ComplEx or CP
        Also a :class:`kgfast.Reciprocal` (or RSCF, MED) around one of these.
    triples : Triples, Tensor or array; or pair of Tensor
        int64 ``[B, 3]``; or anchors and relations ``[B]`` of queries with many answers. Rows of
        answers then have no penalty.
    side : {"head", "tail"}
        The predicted side; with a Reciprocal, the relation or the inverse takes part.
    weighted : bool
        Count a row once per use; else once in all, with equal shares for all uses.
    reduction : {"mean", "sum", "none"}
        The mean over no triple is 0.
    sparse : bool
        Make row gradients for the entity table (:class:`kgfast.RowGradients`).

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For triples that do not fit, and a model with another score than a sum of such products.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> n3(model, [(0, 0, 1)])
    tensor(36.)
    """
    uses = _uses(model, triples, side, weighted=weighted, sparse=sparse)
    _check_fits("n3", uses.model, _OF_FACTORS)
    return _reduced(uses.of_factors(partial(_cubes, uses.model)), reduction)


def l2(
    model: Model,
    triples: TriplesLike,
    *,
    side: Side = "tail",
    weighted: bool = True,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Compute squared lengths of triples: ``|h|^2 + |r|^2 + |t|^2``.

    Unless ``weighted`` is False, a row counts once per use, which LibKGE calls weighted by
    frequency.

    Parameters
    ----------
    model : Model
        Any model of kgfast.
    triples, side, weighted, reduction, sparse
        See :func:`n3`.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> l2(model, [(0, 0, 1)])
    tensor(14.)
    """
    uses = _uses(model, triples, side, weighted=weighted, sparse=sparse)
    return _reduced(uses.of_factors(_squares), reduction)


def dura(
    model: Model,
    triples: TriplesLike,
    *,
    side: Side = "tail",
    product_weight: float = 1.0,
    reduction: Reduction = "mean",
    sparse: bool = False,
) -> Tensor:
    """Compute DURA, induced by duality: ``|h|^2 + |t|^2 + w (|h R|^2 + |t R^T|^2)``.

    See Zhang et al. 2020 (arXiv 2011.05816), eq. 8, where ``w`` is 1: the penalty bounds scores by
    distances of query and candidate. ``R`` is the relation as a matrix, which is diagonal for
    DistMult, ComplEx and CP.

    Parameters
    ----------
    model : DistMult, ComplEx, CP or RESCAL
        Also a :class:`kgfast.Reciprocal` around one of these.
    triples, side, reduction, sparse
        See :func:`n3`; queries need targets.
    product_weight : float
        ``w``, at least 0.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For triples that do not fit, and a model that is not bilinear.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> dura(model, [(0, 0, 1)])
    tensor(50.)
    """
    check_bounded("product_weight", product_weight, 0)
    uses = _uses(model, triples, side, weighted=True, sparse=sparse)
    if uses.targets is None:
        raise ValueError("dura takes triples [B, 3]: targets are penalised as queries")
    _check_fits("dura", uses.model, _OF_PRODUCTS)
    anchors, targets = (_squares(rows) for rows in uses.entities())
    forth, back = (_squares(rows) for rows in uses.products())
    return _reduced(anchors + targets + product_weight * (forth + back), reduction)


@dataclass(frozen=True)
class _Uses:
    """Rows of tables that triples use."""

    model: Model  # model with the tables, without wrappers
    side: Side  # side of the targets
    anchors: Tensor  # [B, G], rows of entities
    relations: Tensor  # int64 [B], rows of the relation table
    targets: Tensor | None  # [B, G], rows of entities; None where a query has many targets
    shares: Sequence[Tensor] | None = None  # [B] each: weight of a use; 1 by default

    def entities(self) -> list[Tensor]:
        """Return the score's parts of anchors and, if given, targets, ``[B, *]`` each."""
        rows = [_part(self.model, self.anchors, _other(self.side))]
        if self.targets is not None:
            rows.append(_part(self.model, self.targets, self.side))
        return rows

    def of_factors(self, penalty: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum a penalty of rows, ``[*, G]`` to ``[*]``, over all rows of a use: ``[B]``.

        Many uses share a relation: the penalty of each relation is computed once.
        """
        distinct, places = distinct_relations(self.relations)
        of_relations = penalty(functional.embedding(distinct, self.model.relation))
        if places is not None:  # the gradient of a plain index has no fixed order
            of_relations = functional.embedding(places, of_relations[:, None])[:, 0]
        of_anchors, *of_targets = [penalty(rows) for rows in self.entities()]
        penalties = [of_anchors, of_relations, *of_targets]
        if self.shares is not None:
            penalties = [one * share for one, share in zip(penalties, self.shares, strict=True)]
        return torch.stack(penalties).sum(0)

    def products(self) -> list[Tensor]:
        """Return ``h R`` and ``R t``, ``[B, *]`` each: anchors and targets as queries."""
        assert self.targets is not None
        numbers = torch.arange(len(self.anchors), dtype=torch.int64, device=self.anchors.device)
        asked = ((self.anchors, self.side), (self.targets, _other(self.side)))
        return [
            self.model.with_entity(rows).queries(numbers, self.relations, side)
            for rows, side in asked
        ]


def _uses(model: Model, triples: TriplesLike, side: Side, *, weighted: bool, sparse: bool) -> _Uses:
    if isinstance(triples, tuple) and len(triples) == 2 and isinstance(triples[0], Tensor):
        anchors, relations = triples
        check_index("anchors", anchors, (None,), model.entity)
        check_index("relations", relations, (len(anchors),), model.entity)
        relations = safe_ids("relations", relations, count_of(model, side))
        ids = [safe_ids("anchors", anchors, model.num_entities)]
    else:
        hrt = as_triples_tensor(
            triples, num_entities=model.num_entities, num_relations=count_of(model, side)
        )
        heads, relations, tails = hrt.to(model.entity.device).T
        ids = [heads, tails] if side == "tail" else [tails, heads]
    if sparse:
        _, *rows = read_rows(model.entity, *ids)
    else:
        rows = [functional.embedding(it, model.entity) for it in ids]
    side, relations = checked(side), model.relation_ids(relations, side)
    own_side: Side = "tail" if model.has_inverses else side
    targets = rows[1] if len(rows) > 1 else None
    shares = None if weighted else _shares(ids, relations)
    return _Uses(unwrapped(model), own_side, rows[0], relations, targets, shares)


def _shares(entities: list[Tensor], relations: Tensor) -> list[Tensor]:
    """Return the share of each anchor, relation and target, where ids count once among all."""
    of_anchors, *of_targets = _once(entities)
    return [of_anchors, *_once([relations]), *of_targets]


def _once(ids: list[Tensor]) -> list[Tensor]:
    """Return, for each of the ids ``[B]``, one over the number of its uses in all tensors."""
    _, places, counts = torch.cat(ids).unique(return_inverse=True, return_counts=True)
    shares = counts.float().reciprocal().index_select(0, places)
    return list(shares.split([len(it) for it in ids]))


def _check_fits(name: str, model: Model, fitting: Sequence[type[Model]]) -> None:
    if not isinstance(model, tuple(fitting)):
        raise ValueError(
            f"{name} takes {', '.join(it.__name__ for it in fitting)}; got {type(model).__name__}"
        )


def _part(model: Model, rows: Tensor, side: Side) -> Tensor:
    return model.with_entity(rows).candidates(side).table


def _other(side: Side) -> Side:
    return "head" if side == "tail" else "tail"


def _squares(rows: Tensor) -> Tensor:
    return rows.square().sum(1)


def _cubes(model: Any, rows: Tensor) -> Tensor:
    if not hasattr(model, "layout"):
        return rows.abs().pow(3).sum(1)
    cubes: Tensor = _Cubes.apply(*split(rows, model.layout))  # type: ignore[no-untyped-call]
    return cubes


class _Cubes(Function):
    """Sums of the cubed moduli of complex rows, ``[B]``.

    With torch's operators a step takes three times as long for these sums, most of the time in
    powers. There is no forward mode. A second derivative at 0 is NaN, as for a modulus.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(re: Tensor, im: Tensor) -> Tensor:
        squares = (re * re).add_(im * im)
        return squares.mul_(squares.sqrt()).sum(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor) -> tuple[Tensor, Tensor]:
        re, im = ctx.saved_tensors
        slopes = (re * re).add_(im * im).sqrt_() * (3 * grad_rows)[:, None]
        return re * slopes, im * slopes


def _reduced(rows: Tensor, reduction: Reduction) -> Tensor:
    check_reduction(reduction)
    return reduced(rows, len(rows), reduction)

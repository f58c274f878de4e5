"""Penalties of the embeddings of triples, whatever their loss: N3, L2 and DURA.

Each is a function of a model and of triples. What it penalises are rows of the tables themselves:
of filtered and croppable models (RSCF, MED) those of the model inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from kgfast.graph import TriplesLike, as_triples_tensor
from kgfast.losses.batches import checked
from kgfast.losses.formula import Reduction, check_reduction
from kgfast.losses.rows import count_of
from kgfast.models import CP, RESCAL, ComplEx, DistMult, Model
from kgfast.models.base import Side, distinct_relations
from kgfast.models.complex_rows import split
from kgfast.models.wrapper import unwrapped
from kgfast.ops.checks import check_bounded, check_index, safe_ids
from kgfast.ops.row_gradients import read_rows

_OF_FACTORS = (DistMult, ComplEx, CP)  # scores that are sums of products of three numbers
_OF_PRODUCTS = (*_OF_FACTORS, RESCAL)  # bilinear ones


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

    Lacroix et al. 2018 (arXiv 1806.07297), eq. 4, with the factors of eq. 9: moduli of complex
    rows; a third of it is the norm. Weights in their code, and in ``regularizer.weight`` of a
    config, are those of the mean of this.

    Parameters
    ----------
    model : DistMult, ComplEx or CP
        Or a :class:`kgfast.Reciprocal` (or RSCF, MED) around one.
    triples : Triples, Tensor or array; or pair of Tensor
        int64 ``[B, 3]``; or the anchors and relations ``[B]`` of queries with many answers, whose
        rows are not penalised.
    side : {"head", "tail"}
        What is predicted: of a Reciprocal, which of its relations takes part.
    weighted : bool
        Whether a row counts as often as triples use it; else once, shared out among its uses.
    reduction : {"mean", "sum", "none"}
    sparse : bool
        Give the entity table a gradient of rows (:class:`kgfast.RowGradients`).

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        For triples that do not fit, and a model whose score is no sum of such products.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> n3(model, [(0, 0, 1)])
    tensor(36.)
    """
    uses = _uses(model, triples, side, weighted=weighted, sparse=sparse)
    return _reduced(_n3(uses), reduction)


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

    Unless ``weighted`` is False, a row counts as often as triples use it: weighted by frequency, as
    LibKGE calls it.

    Parameters
    ----------
    model : Model
        Any of kgfast's.
    triples, side, weighted, reduction, sparse
        As of :func:`n3`.

    Returns
    -------
    Tensor
        A scalar, or ``[B]`` for ``none``.

    Raises
    ------
    ValueError, TypeError
        As :func:`n3`.

    Examples
    --------
    >>> model = DistMult(torch.tensor([[1.0], [2.0]]), torch.tensor([[-3.0]]))
    >>> l2(model, [(0, 0, 1)])
    tensor(14.)
    """
    uses = _uses(model, triples, side, weighted=weighted, sparse=sparse)
    return _reduced(_l2(uses), reduction)


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

    Zhang et al. 2020 (arXiv 2011.05816), eq. 8, where ``w`` is 1: the penalty bounds scores by
    distances of a query and its candidate. ``R`` is the relation as a matrix, which for DistMult,
    ComplEx and CP is diagonal.

    Parameters
    ----------
    model : DistMult, ComplEx, CP or RESCAL
        Or a :class:`kgfast.Reciprocal` around one.
    triples, side, reduction, sparse
        As of :func:`n3`; not of queries without targets.
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
        raise ValueError("dura takes triples [B, 3]: it penalises targets as queries")
    return _reduced(_dura(uses, product_weight), reduction)


@dataclass(frozen=True)
class Uses:
    """Rows of tables that triples use."""

    model: Model  # whose tables they are, without wrappers
    side: Side  # of targets
    anchors: Tensor  # [B, G] of entities
    relations: Tensor  # int64 [B], rows of the relation table
    targets: Tensor | None  # [B, G] of entities; None where a query has many
    shares: Sequence[Tensor] | None = None  # [B] each: what a use counts for; 1 by default

    @classmethod
    def of(
        cls, model: Model, side: Side, anchors: Tensor, relations: Tensor, targets: Tensor | None
    ) -> "Uses":
        """Return the uses of queries of a model as it is asked: wrapped, or with inverses."""
        ids = model.relation_ids(relations, side)
        side = "tail" if model.has_inverses else side
        return cls(unwrapped(model), side, anchors, ids, targets)

    def entities(self) -> list[Tensor]:
        """Return the score's parts of anchors and of targets that there are, ``[B, *]`` each."""
        rows = [_part(self.model, self.anchors, _other(self.side))]
        if self.targets is not None:
            rows.append(_part(self.model, self.targets, self.side))
        return rows

    def of_factors(self, penalty: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum a penalty of rows, ``[*, G]`` to ``[*]``, over all rows of a use: ``[B]``.

        Many uses have a relation in common: its penalty is made once.
        """
        distinct, places = distinct_relations(self.relations)
        of_relations = penalty(functional.embedding(distinct, self.model.relation))
        if places is not None:  # the gradient of a bare index has no fixed order
            of_relations = functional.embedding(places, of_relations[:, None])[:, 0]
        of_anchors, *of_targets = [penalty(rows) for rows in self.entities()]
        return self.total([of_anchors, of_relations, *of_targets])

    def products(self) -> list[Tensor]:
        """Return ``h R`` and ``R t``, ``[B, *]`` each: anchors and targets as queries."""
        assert self.targets is not None
        numbers = torch.arange(len(self.anchors), dtype=torch.int64, device=self.anchors.device)
        asked = ((self.anchors, self.side), (self.targets, _other(self.side)))
        return [
            self.model.with_entity(rows).queries(numbers, self.relations, side)
            for rows, side in asked
        ]

    def total(self, penalties: Sequence[Tensor]) -> Tensor:
        """Sum penalties ``[B]`` of anchors, relations and targets, by their shares."""
        if self.shares is None:
            return torch.stack(list(penalties)).sum(0)
        shared = [it * share for it, share in zip(penalties, self.shares, strict=True)]
        return torch.stack(shared).sum(0)


def _n3(uses: Uses) -> Tensor:
    """Return :func:`n3` of each use, ``[B]``."""
    _check_fits("n3", uses.model, _OF_FACTORS)
    return uses.of_factors(partial(_cubes, uses.model))


def _l2(uses: Uses) -> Tensor:
    """Return :func:`l2` of each use, ``[B]``."""
    return uses.of_factors(_squares)


def _dura(uses: Uses, product_weight: float) -> Tensor:
    """Return :func:`dura` of each use, ``[B]``."""
    _check_fits("dura", uses.model, _OF_PRODUCTS)
    anchors, targets = uses.entities()
    forth, back = uses.products()
    products = _squares(forth) + _squares(back)
    return _squares(anchors) + _squares(targets) + product_weight * products


def _uses(model: Model, triples: TriplesLike, side: Side, *, weighted: bool, sparse: bool) -> Uses:
    """Check ids, and read the rows of entities that they name."""
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
    targets = rows[1] if len(rows) > 1 else None
    uses = Uses.of(model, checked(side), rows[0], relations, targets)
    return uses if weighted else replace(uses, shares=_shares(ids, uses.relations))


def _shares(entities: list[Tensor], relations: Tensor) -> list[Tensor]:
    """Return the share of each anchor, relation and target, where ids count once among all."""
    of_anchors, *of_targets = _once(entities)
    return [of_anchors, *_once([relations]), *of_targets]


def _once(ids: list[Tensor]) -> list[Tensor]:
    """Return, for each of the ids ``[B]``, one over how often it stands in all of them."""
    _, places, counts = torch.cat(ids).unique(return_inverse=True, return_counts=True)
    shares = counts.float().reciprocal().index_select(0, places)
    return list(shares.split([len(it) for it in ids]))


def _check_fits(name: str, model: Model, fitting: Sequence[type[Model]]) -> None:
    """Check that a penalty is made for a model's score."""
    if not isinstance(model, tuple(fitting)):
        raise ValueError(
            f"{name} goes with {', '.join(it.__name__ for it in fitting)}; "
            f"got {type(model).__name__}"
        )


def _part(model: Model, rows: Tensor, side: Side) -> Tensor:
    """Return the score's part of rows of entities that stand at a side."""
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

    By torch's operators, a step spends three times as long on them, most of it in powers. There is
    no forward mode, and a second derivative at 0 is NaN, as that of a modulus is.
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
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.mean()

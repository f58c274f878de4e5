"""Models with inverse relations, which predict heads as tails of an inverse relation."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self

from torch import Tensor, nn

from kgfast.models.base import (
    Candidates,
    RankableModel,
    Side,
    candidates_at,
    candidates_of,
    check_model,
    check_option,
    queries_at,
    queries_of,
)
from kgfast.models.blocks import BlockScorer
from kgfast.models.relations import blocks_at, is_in_blocks
from kgfast.models.wrapper import Wrapper


class Reciprocal(Wrapper):
    """Model of relations and their inverses: heads are tails of an inverse relation.

    The head query of (h, r, t) is the tail query (t, inverse of r), as in Lacroix et al. (2018,
    arXiv 1806.07297). Inverse relations are no candidates if relations are ranked.

    Parameters
    ----------
    model : Model or BlockScorer
        Any model of :func:`kgfast.rank`, with a ``num_relations`` that counts the inverses. A
        module becomes the submodule ``model``.
    order : {"interleaved", "appended"}
        Place of the inverse of relation r: at 2r + 1, with r itself at 2r (PyKEEN), or at r + R
        (LibKGE, and all temporal models).

    Raises
    ------
    ValueError, TypeError
        For an odd number of relations, an unknown order, a model with its own inverses, and an
        object that is no model.

    Examples
    --------
    >>> import torch
    >>> from kgfast import DistMult, rank
    >>> model = Reciprocal(DistMult.init(5, 4, dim=3, seed=0))
    >>> model.num_relations, model.relation_ids(torch.tensor([0, 1]), "head").tolist()
    (2, [1, 3])
    """

    model: Any  # perhaps no module
    _shared = (*Wrapper._shared, "batch_size", "block", "device")

    def __init__(
        self,
        model: RankableModel | BlockScorer,
        order: Literal["interleaved", "appended"] = "interleaved",
    ) -> None:
        nn.Module.__init__(self)  # a model of another class needs only what ranking reads
        check_option("order", order, ("interleaved", "appended"))
        if not is_in_blocks(model):
            check_model(model, "dim")
        if getattr(model, "has_inverses", False):
            raise ValueError(f"{type(model).__name__} has inverse relations already")
        times = getattr(model, "num_times", None)
        if times is not None and order != "appended":
            raise ValueError("order must be 'appended' for a temporal model: 2r is a time of r")
        if model.num_relations % (2 * (times or 1)) or not model.num_relations:
            raise ValueError(
                f"model must have as many inverse relations as relations: {type(model).__name__} "
                f"has {model.num_relations} relations"
            )
        self._go_around(model)
        self.order, self.has_inverses, self.is_in_blocks = order, True, is_in_blocks(model)
        self.training = bool(getattr(model, "training", False))

    @property
    def num_relations(self) -> int:
        return int(self.model.num_relations) // 2

    def relation_ids(self, relations: Tensor, side: Side) -> Tensor:
        """Return the inner model's ids of relations; for heads, of the inverse relations.

        For tails, ids from ``num_relations`` on name inverse relations.
        """
        if self.order == "interleaved":
            if side == "head":
                return 2 * relations + 1
            inverse = (relations >= self.num_relations).to(relations.dtype)
            return 2 * (relations - self.num_relations * inverse) + inverse
        return relations + self.num_relations if side == "head" else relations

    def _around(self, model: Any) -> Self:
        return type(self)(model, self.order)

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        if side == "relation":
            return queries_at(self.model, anchors, relations, side, dims)
        self._check_side(side)
        return queries_at(self.model, anchors, self.relation_ids(relations, side), "tail", dims)

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return the tails on both sides; or relations without inverses."""
        if side != "relation":
            self._check_side(side)
            return candidates_at(self.model, "tail", dims)
        whole = candidates_at(self.model, "relation", dims)
        rows = slice(0, None, 2) if self.order == "interleaved" else slice(self.num_relations)
        bias, factor = whole.bias, whole.factor
        bias = bias[rows] if bias is not None and len(bias) == len(whole.table) else bias
        factor = None if factor is None else factor[rows]
        return replace(whole, table=whole.table[rows], bias=bias, factor=factor)

    def queries_of(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: Sequence[int]
    ) -> list[Tensor]:
        """Return the queries of several crops at once, for a step of training."""
        self._check_side(side)
        return queries_of(self.model, anchors, self.relation_ids(relations, side), "tail", dims)

    def candidates_of(self, side: Side, dims: Sequence[int]) -> list[Candidates]:
        """Return the candidates of several crops at once, for a step of training."""
        return candidates_of(self.model, "tail", dims)

    def in_blocks(self, side: Side, dims: int | None = None) -> BlockScorer | None:
        """Return the scorer of a side in blocks, if the inner model is scored so."""
        inner = blocks_at(self.model, "tail" if side == "head" else side, dims)
        if inner is None:
            return None
        fn, outer = inner.fn, copy(inner)

        def scores(anchors: Tensor, relations: Tensor, side: Side, ids: Tensor) -> Tensor:
            if side == "relation":
                return fn(anchors, relations, side, self.relation_ids(ids, "tail"))
            return fn(anchors, self.relation_ids(relations, side), "tail", ids)

        scores.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
        outer.fn, outer.num_relations = scores, self.num_relations
        outer.sides = (*outer.sides, "head")
        return outer

    def __repr__(self) -> str:
        return f"Reciprocal({type(self.model).__name__}, order={self.order!r})"


def holder_of(model: Any) -> Any:
    """Return the object that holds a model's tensors and modules.

    The holder is the model itself. For a Reciprocal around an object that is no module, into which
    torch does not see, the holder is that object.
    """
    if isinstance(model, Reciprocal) and not isinstance(model.model, nn.Module):
        return model.model
    return model

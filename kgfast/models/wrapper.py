"""Models around a model, with the inner model's tables."""

import copy
from typing import Any, Self

from torch import Tensor, nn

from kgfast.models.base import Model, Side, for_queries, is_nested, operator_width
from kgfast.tables import Table


def unwrapped(model: Model) -> Model:
    """Return the model inside of all wrappers."""
    while isinstance(model, Wrapper):
        model = model.model
    return model


class Wrapper(Model):
    """Base of models that change another model.

    Parameters
    ----------
    model : Model
        The inner model, which becomes the submodule ``model``; shared, not copied.
    """

    model: Model
    _shared: tuple[str, ...] = ("entity", "relation", "score", "dim", "gamma", "layout")

    def __init__(self, model: Model) -> None:
        nn.Module.__init__(self)
        if not isinstance(model, Model):
            raise TypeError(f"model must be a kgfast model; got {type(model).__name__}")
        self._go_around(model)

    def _go_around(self, model: Any) -> None:
        """Hold the inner model, and take over its facts."""
        self.model = model
        self.nested, self.num_times = is_nested(model), getattr(model, "num_times", None)
        self.has_inverses = getattr(model, "has_inverses", False)

    def __getattr__(self, name: str) -> Any:
        """Return the inner model's tables, score, width and, if present, margin and layout."""
        return getattr(self.model, name) if name in self._shared else super().__getattr__(name)

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        return self.model._queries(anchors, relations, side, dims)

    @property
    def num_entities(self) -> int:
        return int(self.model.num_entities)

    @property
    def num_relations(self) -> int:
        return self.model.num_relations

    def relation_ids(self, relations: Tensor, side: Side) -> Tensor:
        return self.model.relation_ids(relations, side)

    def for_queries(self, side: Side) -> Self:
        return self._around(for_queries(self.model, side))

    def with_entity(self, entity: Tensor | Table) -> Self:
        return self._around(self.model.with_entity(entity))

    def with_relation(self, relation: Tensor) -> Self:
        return self._around(self.model.with_relation(relation))

    def first_columns(self, dim: int) -> Self:
        return self._around(self.model.first_columns(dim))

    def crop_width(self, dim: int) -> int | None:
        return operator_width(self.model, dim)

    def _around(self, model: Model) -> Self:
        """Put the same wrapper around another model; the wrapper's own parameters are shared."""
        local = copy.copy(self)
        local._modules = local._modules | {"model": model}
        return local

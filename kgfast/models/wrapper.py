"""Models around a model, with the inner model's tables and state dicts of other programs."""

import copy
import math
from collections.abc import Mapping
from typing import Any, Self

from torch import Tensor, nn

from kgfast.models.base import Model, Side, is_nested, operator_width
from kgfast.tables import Table

# Names of the tables in other programs.
_ALIASES = {"entity_embedding": "entity", "relation_embedding": "relation"}
_OF_THE_MODEL = ("entity", "relation", "dim", "gamma", "layout")
_OPTIONS = ("gamma", "embedding_range")  # options that other programs store among the tensors


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

    def __init__(self, model: Model) -> None:
        nn.Module.__init__(self)
        if not isinstance(model, Model):
            raise TypeError(f"model must be a kgfast model; got {type(model).__name__}")
        self.model = model

    def __getattr__(self, name: str) -> Any:
        """Return the inner model's tables, width and, if present, margin and layout."""
        if name in _OF_THE_MODEL:
            return getattr(self.model, name)
        return super().__getattr__(name)

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        return self.model._queries(anchors, relations, side, dims)

    @property
    def nested(self) -> bool:
        return is_nested(self.model)

    @property
    def num_entities(self) -> int:
        return int(self.model.num_entities)

    @property
    def num_relations(self) -> int:
        return self.model.num_relations

    @property
    def has_inverses(self) -> bool:
        return self.model.has_inverses

    def relation_ids(self, relations: Tensor, side: Side) -> Tensor:
        return self.model.relation_ids(relations, side)

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

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict of this class, or of a program with other names for the tables.

        Parameters
        ----------
        state_dict : mapping of str to Tensor
            Other known names, with any prefix, are ``entity_embedding``, ``relation_embedding``,
            ``A1`` or ``W_A1`` (or the ``weight`` of a linear layer of that name), ``w1``, ``w2``
            and ``w3``. ``gamma`` and ``embedding_range``, which are options here, must be equal to
            the model's.
        strict, assign : bool
            As :meth:`torch.nn.Module.load_state_dict`.

        Raises
        ------
        ValueError
            If gamma or range differ from the model's.
        RuntimeError
            If a tensor has another shape than in the model; if tensors are missing or unknown and
            ``strict`` is True.
        """
        held = self.state_dict()
        by_leaf = {name.rpartition(".")[2]: name for name in held}
        renamed = {}
        for name, value in state_dict.items():
            is_weight = name.endswith(".weight")  # tells a linear layer, or a table
            leaf = name.removesuffix(".weight").rpartition(".")[2]
            if leaf in _OPTIONS:
                option = getattr(unwrapped(self), leaf)
                if not math.isclose(option, float(value), rel_tol=1e-6):
                    raise ValueError(
                        f"{name} is {float(value):g}, but the model's {leaf} is {option:g}"
                    )
                continue
            if name not in held:
                name = by_leaf.get(_ALIASES.get(leaf, leaf.removeprefix("W_")), name)
                value = value.t() if is_weight and leaf not in _ALIASES else value
            if value.numel() == 1 and name in held:  # other programs hold scalars as [1]
                value = value.reshape(held[name].shape)
            renamed[name] = value
        return super().load_state_dict(renamed, strict, assign)

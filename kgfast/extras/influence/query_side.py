"""Gradients of anchors, relations and encoder weights, one for each example.

In eval mode queries do not depend on each other, so ``torch.func`` makes the gradients of each
example. The gradient of a linear layer's weight is an outer product (input, output gradient), and
only the two factors are stored.

Memory: the activations of the encoder for ``_EXAMPLES`` queries, and the gradients.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from kgfast.extras.influence.examples import ExampleQueries
from kgfast.models import MED, RSCF, Model, Reciprocal, Side

_EXAMPLES = 256  # queries of an encoder pass
_TABLES = ("entity", "relation", "bias")


@dataclass
class QuerySide:
    """Gradients of B examples."""

    anchors: Tensor  # int64 [B], rows of the entity table
    relations: Tensor  # int64 [B], rows of the relation table
    of_anchors: Tensor  # [B, G]
    of_relations: Tensor  # [B, *]
    layers: list[tuple[Tensor, Tensor]]  # inputs [B, I] (last: 1 for a bias), output grads [B, O]
    others: list[Tensor]  # [B, *], all other weights

    def products(self, other: "QuerySide") -> Tensor:
        """Return inner products ``[B, C]`` without anchors, which are entity rows."""
        same = self.relations[:, None] == other.relations
        total = torch.where(same, self.of_relations @ other.of_relations.T, 0.0)
        for (into, out), (other_into, other_out) in zip(self.layers, other.layers, strict=True):
            total += (out @ other_out.T) * (into @ other_into.T)
        for own, theirs in zip(self.others, other.others, strict=True):
            total += own.flatten(1) @ theirs.flatten(1).T
        return total


class Asker(nn.Module):
    """A module that makes the queries of a model from gathered rows."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        inner = model.model if isinstance(model, Reciprocal) else model
        if not isinstance(inner, Model) or isinstance(inner, MED | RSCF):
            raise TypeError(
                f"influences of {type(inner).__name__} are not served: the gradients are not "
                "those of table rows and of an encoder's weights"
            )
        self._relation_ids, self._has_inverses = model.relation_ids, model.has_inverses
        self.model = inner
        self.linears = [module for module in inner.modules() if isinstance(module, nn.Linear)]
        in_layers = {id(weight) for linear in self.linears for weight in linear.parameters()}
        self.others = {
            f"model.{name}": weight.detach()
            for name, weight in inner.named_parameters()
            if name not in _TABLES and id(weight) not in in_layers
        }

    def forward(self, side: Side) -> Tensor:
        """Return the query of the only row of the tables."""
        first = torch.zeros(1, dtype=torch.int64, device=self.model.entity.device)
        return self.model.queries(first, first, "tail" if self._has_inverses else side)

    def gradients(self, queries: ExampleQueries, slopes: Tensor) -> QuerySide:
        """Return gradients of examples, from the gradients ``[B, F]`` of the queries."""
        relations = self._relation_ids(queries.relations, queries.side)
        rows = [
            table.detach().index_select(0, ids).to(slopes.dtype)
            for table, ids in (
                (self.model.entity, queries.anchors),
                (self.model.relation, relations),
            )
        ]

        def value(weights: Any, shifts: Any, anchor: Any, relation: Any, slope: Any) -> Any:
            inputs: list[Tensor] = []
            tables = {"model.entity": anchor[None], "model.relation": relation[None]}
            with ExitStack() as hooks:
                for linear, shift in zip(self.linears, shifts, strict=True):

                    def hook(_: Any, into: Any, out: Tensor, shift: Tensor = shift) -> Tensor:
                        inputs.append(into[0][0])
                        return out + shift  # the gradient of the shift is that of the output

                    hooks.callback(linear.register_forward_hook(hook).remove)
                query = functional_call(self, weights | tables, (side,))
            return (query[0] * slope).sum(), inputs

        side = queries.side
        shifts = [slopes.new_zeros(linear.out_features) for linear in self.linears]
        each: Any = vmap(
            grad(value, argnums=(0, 1, 2, 3), has_aux=True),
            in_dims=(None, None, 0, 0, 0),
            chunk_size=_EXAMPLES,
        )
        with torch.enable_grad():
            (others, outs, of_anchors, of_relations), inputs = each(
                self.others, shifts, *rows, slopes
            )
        layers = []
        for linear, into, out in zip(self.linears, inputs, outs, strict=True):
            ones = into.new_ones(len(into), int(linear.bias is not None))
            layers.append((torch.cat([into, ones], 1), out))
        return QuerySide(
            queries.anchors, relations, of_anchors, of_relations, layers, list(others.values())
        )

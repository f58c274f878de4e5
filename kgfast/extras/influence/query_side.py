"""Gradients of anchors, relations and encoder weights, one for each example.

In eval mode queries do not depend on each other, so one backward gives each gathered row a separate
gradient. The gradient of a linear layer's weight is an outer product (input, output gradient), and
only the two factors are stored. All other weights are small: ``torch.func`` makes their gradient
for each example.

Memory: the activations of the encoder for ``_EXAMPLES`` queries, and the gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
    others: Tensor  # [B, P], all other weights

    def products(self, other: "QuerySide") -> Tensor:
        """Return inner products ``[B, C]`` without anchors, which are entity rows."""
        same = self.relations[:, None] == other.relations
        total = torch.where(same, self.of_relations @ other.of_relations.T, 0.0)
        for (into, out), (other_into, other_out) in zip(self.layers, other.layers, strict=True):
            total += (out @ other_out.T) * (into @ other_into.T)
        return total + self.others @ other.others.T


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
        self.linears = [it for it in inner.modules() if isinstance(it, nn.Linear)]
        weights = {id(weight) for linear in self.linears for weight in linear.parameters()}
        self.others = {
            f"model.{name}": weight.detach()
            for name, weight in inner.named_parameters()
            if name not in _TABLES and id(weight) not in weights
        }

    def forward(self, side: Side) -> Tensor:
        """Return the queries of all rows of the tables."""
        count, model = len(self.model.entity), self.model
        ids = torch.arange(count, dtype=torch.int64, device=model.entity.device)
        return model.queries(ids, ids, "tail" if self._has_inverses else side)

    def gathered(self, queries: ExampleQueries) -> tuple[Tensor, Tensor, Tensor]:
        """Return relation ids, and the rows of anchors and relations in at least float32."""
        model = self.model
        relations = self._relation_ids(queries.relations, queries.side)
        rows = [
            table.detach().index_select(0, ids)
            for table, ids in ((model.entity, queries.anchors), (model.relation, relations))
        ]
        both = [row if row.dtype == torch.float64 else row.float() for row in rows]
        return relations, both[0], both[1]

    def gradients(self, queries: ExampleQueries, slopes: Tensor) -> QuerySide:
        """Return gradients of examples, from the gradients ``[B, F]`` of the queries."""
        relations, anchors, rows = self.gathered(queries)
        pieces = zip(*(it.split(_EXAMPLES) for it in (anchors, rows, slopes)), strict=True)
        parts = [self._of_part(queries.side, *piece) for piece in pieces]
        of_anchors, of_relations, layers, others = zip(*parts, strict=True)
        joined = [
            (torch.cat([into for into, _ in layer]), torch.cat([out for _, out in layer]))
            for layer in zip(*layers, strict=True)
        ]
        return QuerySide(
            queries.anchors,
            relations,
            torch.cat(of_anchors),
            torch.cat(of_relations),
            joined,
            torch.cat(others),
        )

    def _of_part(
        self, side: Side, anchors: Tensor, relations: Tensor, slopes: Tensor
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]], Tensor]:
        tables = {
            "model.entity": anchors.requires_grad_(),
            "model.relation": relations.requires_grad_(),
        }
        with torch.enable_grad(), self._seen() as seen:
            queries = functional_call(self, tables, (side,))
            outs = [out for layer in seen for _, out in layer]
            wanted = [anchors, relations, *outs]
            found = torch.autograd.grad(queries, wanted, slopes.to(queries.dtype))
        gradients = iter(found[2:])
        layers = []
        for linear, layer in zip(self.linears, seen, strict=True):
            into = torch.cat([rows for rows, _ in layer])
            if linear.bias is not None:
                into = torch.cat([into, into.new_ones(len(into), 1)], 1)
            layers.append((into, torch.cat([next(gradients) for _ in layer])))
        others = self._others(side, anchors.detach(), relations.detach(), slopes)
        return found[0], found[1], layers, others

    @contextmanager
    def _seen(self) -> Iterator[list[list[tuple[Tensor, Tensor]]]]:
        seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.linears]

        def hook_of(calls: list[tuple[Tensor, Tensor]]) -> Any:
            def hook(_: nn.Module, into: tuple[Tensor, ...], out: Tensor) -> Tensor:
                own = out.requires_grad_()
                calls.append((into[0].detach(), own))
                return own

            return hook

        pairs = zip(self.linears, seen, strict=True)
        handles = [linear.register_forward_hook(hook_of(calls)) for linear, calls in pairs]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()

    def _others(self, side: Side, anchors: Tensor, relations: Tensor, slopes: Tensor) -> Tensor:
        """Return gradients ``[B, P]`` of all weights outside linear layers."""
        if not self.others or not len(anchors):
            width = sum(weight.numel() for weight in self.others.values())
            return slopes.new_zeros(len(anchors), width)

        def value(
            weights: dict[str, Tensor], anchor: Tensor, relation: Tensor, slope: Tensor
        ) -> Tensor:
            tables = {"model.entity": anchor[None], "model.relation": relation[None]}
            query = functional_call(self, weights | tables, (side,))
            total: Tensor = (query[0] * slope).sum()
            return total

        with torch.enable_grad():
            of_each = vmap(grad(value), in_dims=(None, 0, 0, 0))(
                self.others, anchors, relations, slopes
            )
        return torch.cat([part.flatten(1) for part in of_each.values()], 1).to(slopes.dtype)

"""TransE (Bordes et al. 2013): relations translate entity embeddings."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from kgfast.kernels.backend import Composition
from kgfast.models.base import Model, Shapes, Side, check_width, query_rows
from kgfast.models.fresh import Fill, uniform
from kgfast.models.rotate import EPSILON, GAMMA
from kgfast.models.tables import Table


class TransE(Model):
    """TransE: ``score(h, r, t) = - ||h + r - t||`` (Bordes et al. 2013, eq. 1).

    Parameters
    ----------
    entity, relation : Tensor
        ``[N, D]`` and ``[R, D]``; float32, float16, bfloat16 or float64; used in place.
    gamma : float
        Margin, which losses add to scores; ranks do not depend on the margin.
    norm : {"l1", "l2"}
        Sum of magnitudes or Euclidean norm.

    Examples
    --------
    >>> model = TransE(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> model.queries(torch.tensor([0]), torch.tensor([0]), "tail")
    tensor([[1.]])
    """

    scores_relations = True

    def __init__(
        self,
        entity: Table,
        relation: Table,
        *,
        gamma: float = GAMMA,
        norm: Literal["l1", "l2"] = "l1",
    ) -> None:
        super().__init__(entity, relation)
        if norm not in ("l1", "l2"):
            raise ValueError(f"norm must be 'l1' or 'l2'; got {norm!r}")
        self.dim = self.entity.shape[1]
        check_width("relation", self.relation, [self.dim], "as entities")
        self.gamma, self.norm, self.score = gamma, norm, norm

    @classmethod
    def _fills(
        cls,
        shapes: Shapes,
        dim: int,
        generator: torch.Generator | None,
        options: Mapping[str, Any],
    ) -> tuple[Fill, Fill]:
        fill = uniform((options.get("gamma", GAMMA) + EPSILON) / dim, generator)
        return fill, fill

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        if side == "relation":
            return query_rows(self.entity, relations) - query_rows(self.entity, anchors)
        anchor, relation = query_rows(self.entity, anchors), query_rows(self.relation, relations)
        return anchor + relation if side == "tail" else anchor - relation

    def _composition(self, side: Side) -> Composition:
        return Composition("add", side == "head")

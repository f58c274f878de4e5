"""TransE (Bordes et al. 2013): relations translate entity embeddings."""

from typing import Literal

from torch import Tensor

from kgfast.models.base import GAMMA, Model, Side, check_option, check_relation, query_rows
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
    >>> import torch
    >>> model = TransE(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0]]))
    >>> model.queries(torch.tensor([0]), torch.tensor([0]), "tail")
    tensor([[1.]])
    """

    scores_relations = True
    _is_uniform = True

    def __init__(
        self,
        entity: Table,
        relation: Table,
        *,
        gamma: float = GAMMA,
        norm: Literal["l1", "l2"] = "l1",
    ) -> None:
        super().__init__(entity, relation)
        check_option("norm", norm, ("l1", "l2"))
        self.dim = self.entity.shape[1]
        check_relation(self.relation, self.dim, "as entities")
        self.gamma, self.norm, self.score = gamma, norm, norm

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        if side == "relation":
            return query_rows(self.entity, relations) - query_rows(self.entity, anchors)
        anchor, relation = query_rows(self.entity, anchors), query_rows(self.relation, relations)
        return anchor + relation if side == "tail" else anchor - relation

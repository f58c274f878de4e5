"""DistMult (Yang et al. 2015, arXiv 1412.6575): a diagonal bilinear form."""

from torch import Tensor

from kgfast.models.base import Model, Side, check_relation, query_rows
from kgfast.models.tables import Table


class DistMult(Model):
    """DistMult: ``score(h, r, t) = sum_d h_d r_d t_d`` (Yang et al. 2015, section 3.1).

    Parameters
    ----------
    entity, relation : Tensor
        ``[N, D]`` and ``[R, D]``; float32, float16, bfloat16 or float64; used in place.

    Examples
    --------
    >>> import torch
    >>> model = DistMult(torch.tensor([[2.0], [3.0]]), torch.tensor([[5.0]]))
    >>> model.queries(torch.tensor([1]), torch.tensor([0]), "tail")
    tensor([[15.]])
    """

    score = "dot"
    scores_relations = True

    def __init__(self, entity: Table, relation: Table) -> None:
        super().__init__(entity, relation)
        self.dim = self.entity.shape[1]
        check_relation(self.relation, self.dim, "as entities")

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        others = self.entity if side == "relation" else self.relation
        rows = query_rows(self.entity, anchors), query_rows(others, relations)
        return rows[0] * rows[1]

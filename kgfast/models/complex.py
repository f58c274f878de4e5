"""ComplEx (Trouillon et al. 2016, arXiv 1606.06357): a Hermitian diagonal bilinear form."""

from functools import reduce

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.backend import Composition
from kgfast.models.base import Model, Side, check_relation, query_rows
from kgfast.models.complex_rows import Layout, check_layout, product, split
from kgfast.models.tables import Table


class ComplEx(Model):
    """ComplEx: ``score(h, r, t) = Re(sum_k h_k r_k conj(t_k))`` (Trouillon et al. 2016, eq. 9).

    Parameters
    ----------
    entity, relation : Tensor
        ``[N, 2D]`` and ``[R, 2D]`` complex rows; float32, float16, bfloat16 or float64; used in
        place.
    layout : {"halves", "interleaved"}
        ``re | im`` (LibKGE, official code of RotatE) or ``re0 im0 re1 im1 ...`` (PyKEEN), the
        layout of complex numbers in memory.

    Examples
    --------
    >>> model = ComplEx(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]]))
    >>> model.queries(torch.tensor([0]), torch.tensor([0]), "tail")
    tensor([[-2.,  1.]])
    """

    score = "dot"
    scores_relations = True
    _planes = (2, 2)

    def __init__(self, entity: Table, relation: Table, *, layout: Layout = "halves") -> None:
        super().__init__(entity, relation)
        self.dim = check_layout("entity", self.entity, layout)
        check_relation(self.relation, 2 * self.dim, "as entities")
        self.layout = layout

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        rows = query_rows(self.entity, anchors)
        if side == "relation":  # Re(h r conj(t)) is the dot product of r and conj(h) t
            rows, factors = query_rows(self.entity, relations), rows
        else:
            factors = reduce(torch.add, self.relation_factors(relations, query_rows))
        if side != "relation" and ops.serves_composition(self.entity, self.relation):
            how = Composition("multiply_complex", side == "head", self.layout == "interleaved")
            products = ops.compose(rows, factors, how)
        else:
            other = split(factors, self.layout)
            products = product(rows, other, self.layout, conjugates=side != "tail")
        if dims is None or self.layout != "halves":
            return products
        inside = torch.arange(self.dim, dtype=torch.int64, device=products.device) < dims
        return torch.where(inside.repeat(2), products, 0.0)

    def crop_width(self, dim: int) -> int | None:
        """Return :meth:`Model.crop_width`; zeros in a query crop ``re | im`` rows exactly."""
        return None if self.layout == "halves" else 2 * dim

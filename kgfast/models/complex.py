"""ComplEx (Trouillon et al. 2016, arXiv 1606.06357): a Hermitian diagonal bilinear form."""

import torch
from torch import Tensor

from kgfast.models.base import Model, Side, check_width, query_rows
from kgfast.models.complex_rows import Complex, Layout, check_layout, join, layout_of, split
from kgfast.models.distmult import xavier_normal
from kgfast.models.fresh import ALL_ROWS, Fresh
from kgfast.models.tables import Table


class ComplEx(Model):
    """ComplEx: ``score(h, r, t) = Re(sum_k h_k r_k conj(t_k))`` (Trouillon et al. 2016, eq. 9).

    Parameters
    ----------
    entity, relation : Tensor
        ``[N, 2D]`` and ``[R, 2D]`` complex rows; float32, float16, bfloat16 or float64; or
        ``[N, D]`` and ``[R, D]`` complex numbers. Used in place; arrays too.
    layout : {"halves", "interleaved"}
        ``re | im`` (LibKGE, official code of RotatE) or ``re0 im0 re1 im1 ...`` (PyKEEN), which is
        how complex numbers lie in memory. Halves by default, interleaved of complex numbers.

    Examples
    --------
    >>> model = ComplEx(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]]))
    >>> model.queries(torch.tensor([0]), torch.tensor([0]), "tail")
    tensor([[-2.,  1.]])
    """

    score = "dot"
    scores_relations = True

    def __init__(self, entity: Table, relation: Table, *, layout: Layout | None = None) -> None:
        layout = layout_of(layout, entity, relation)
        super().__init__(entity, relation, takes_complex=True)
        self.dim = check_layout("entity", self.entity, layout)
        check_width("relation", self.relation, [2 * self.dim], "as entities")
        self.layout = layout

    @classmethod
    def init(
        cls,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        layout: Layout = "halves",
        seed: int | None = None,
        fresh: Fresh = ALL_ROWS,
    ) -> "ComplEx":
        """Make fresh trainable embeddings, Xavier-normal (Glorot & Bengio 2010).

        ``seed`` leaves torch's global generator alone; None uses it. ``fresh`` says which entities
        are kept.
        """
        shapes = (num_entities, 2 * dim), (num_relations, 2 * dim)
        entity, relation = xavier_normal(shapes, seed, fresh)
        return cls(entity, relation, layout=layout).requires_grad_()

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        anchor = split(query_rows(self.entity, anchors), self.layout)
        if side == "relation":  # Re(h r conj(t)) is the dot product of r and conj(h) t
            product = anchor.conj().times(split(query_rows(self.entity, relations), self.layout))
        else:
            relation = split(query_rows(self.relation, relations), self.layout)
            product = anchor.times(relation if side == "tail" else relation.conj())
        if dims is not None and self.layout == "halves":
            inside = torch.arange(self.dim, dtype=torch.int64, device=product.re.device) < dims
            product = Complex(product.re * inside, product.im * inside)
        return join(product, self.layout)

    def crop_width(self, dim: int) -> int | None:
        """Return :meth:`Model.crop_width`: zeros in the query crop ``re | im`` rows exactly."""
        return None if self.layout == "halves" else 2 * dim

"""RESCAL (Nickel et al. 2011): a matrix for each relation."""

import math
from typing import NoReturn

import torch
from torch import Tensor

from kgfast.kernels.cpu import threads
from kgfast.models.base import Model, Side, check_width, fresh_table, query_numbers, query_rows
from kgfast.models.distmult import xavier_normal
from kgfast.models.fresh import ALL_ROWS, Fresh
from kgfast.models.tables import Table


class RESCAL(Model):
    """RESCAL: ``score(h, r, t) = h^T R_r t`` (Nickel et al. 2011, eq. 1).

    There are no crops: a feature of a query is made of all those of the anchor.

    Parameters
    ----------
    entity : Tensor
        ``[N, D]``; float32, float16, bfloat16 or float64; used in place.
    relation : Tensor
        ``[R, D * D]``, the rows of each matrix one after the other.

    Examples
    --------
    >>> model = RESCAL(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0, 5.0, 0.0]]))
    >>> model.queries(torch.tensor([0]), torch.tensor([0]), "tail")
    tensor([[10.,  1.]])
    """

    score = "dot"
    has_wide_relations = True

    def __init__(self, entity: Table, relation: Table) -> None:
        super().__init__(entity, relation)
        self.dim = self.entity.shape[1]
        check_width("relation", self.relation, [self.dim**2], "a matrix of the entities' width")

    @classmethod
    def init(
        cls,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        seed: int | None = None,
        fresh: Fresh = ALL_ROWS,
    ) -> "RESCAL":
        """Fresh trainable embeddings, Xavier-normal (Glorot & Bengio 2010), each matrix as one.

        ``seed`` leaves torch's global generator alone; None uses it. ``fresh`` says which entities
        are kept.
        """
        (entity,) = xavier_normal([(num_entities, dim)], seed, fresh)
        generator = None if seed is None else torch.Generator().manual_seed(seed + 1)
        relation = fresh_table((num_relations, dim * dim))
        relation.normal_(0.0, math.sqrt(1 / dim), generator=generator)
        return cls(entity, relation).requires_grad_()

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        if dims is not None:
            self.crop_width(dims)
        order = relations.argsort(stable=True)
        distinct, counts = relations[order].unique_consecutive(return_counts=True)
        if torch.is_grad_enabled() and len(distinct) == len(self.relation):
            matrices = query_numbers(self.relation)  # of a step, which has gathered them
        else:
            matrices = query_rows(self.relation, distinct)
        rows = query_rows(self.entity, anchors[order])
        matrices = matrices.view(-1, self.dim, self.dim).to(rows.dtype)  # if one of them is frozen
        parts = [
            _products(part, matrix if side == "tail" else matrix.mT)
            for part, matrix in zip(rows.split(counts.tolist()), matrices, strict=True)
        ]
        return torch.cat([rows[:0], *parts])[order.argsort()]

    def crop_width(self, dim: int) -> NoReturn:
        """There are none."""
        raise ValueError("dims: RESCAL cannot be cropped")

    def first_columns(self, dim: int) -> NoReturn:
        """There are no crops."""
        self.crop_width(dim)


def _products(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return ``rows @ matrix``; for ranks of each row alone, on one thread."""
    if torch.is_grad_enabled():
        return rows @ matrix
    with threads.one_here():
        return torch.bmm(rows[:, None], matrix.expand(len(rows), -1, -1))[:, 0]

"""RESCAL (Nickel et al. 2011): a matrix for each relation."""

import math
from typing import Any, NoReturn

import torch
from torch import Tensor

from kgfast.kernels.cpu import threads
from kgfast.models.base import Model, Shapes, Side, check_relation, query_rows
from kgfast.models.evaluated import run_alone
from kgfast.models.tables import Table
from kgfast.ops.differentiable import refuse_second


class RESCAL(Model):
    """RESCAL: ``score(h, r, t) = h^T R_r t`` (Nickel et al. 2011, eq. 1).

    There are no crops: each feature of a query depends on all features of the anchor.

    Parameters
    ----------
    entity : Tensor
        ``[N, D]``; float32, float16, bfloat16 or float64; used in place.
    relation : Tensor
        ``[R, D * D]``, the rows of each matrix in order.

    Examples
    --------
    >>> model = RESCAL(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0, 5.0, 0.0]]))
    >>> model.queries(torch.tensor([0]), torch.tensor([0]), "tail")
    tensor([[10.,  1.]])
    """

    score = "dot"
    has_wide_relations = True
    has_large_operators = True

    def __init__(self, entity: Table, relation: Table) -> None:
        super().__init__(entity, relation)
        self.dim = self.entity.shape[1]
        check_relation(self.relation, self.dim**2, "a matrix of the entities' width")

    @classmethod
    def _shapes(cls, num_entities: int, num_relations: int, dim: int) -> Shapes:
        return (num_entities, dim), (num_relations, dim**2)

    @classmethod
    def _draw(
        cls, entity: Tensor, relation: Tensor, limit: float, generator: torch.Generator | None
    ) -> None:
        entity.normal_(0.0, math.sqrt(2.0 / sum(entity.shape)), generator=generator)
        if generator is not None:
            generator = torch.Generator().manual_seed(generator.initial_seed() + 1)
        # Xavier-normal for each matrix
        relation.normal_(0.0, math.sqrt(1.0 / entity.shape[1]), generator=generator)

    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        if dims is not None:
            self.crop_width(dims)
        order = relations.argsort(stable=True)
        distinct, counts = relations[order].unique_consecutive(return_counts=True)
        # a step has gathered the matrices
        has_all = torch.is_grad_enabled() and len(distinct) == len(self.relation)
        matrices = query_rows(self.relation, None if has_all else distinct)
        rows = query_rows(self.entity, anchors[order])
        # casts matrices and rows, also if one of both is frozen
        matrices = matrices.view(-1, self.dim, self.dim).to(rows.dtype)
        products: Any = _Products.apply if torch.is_grad_enabled() else _ranked
        result: Tensor = products(rows, matrices, counts.tolist(), side == "head")
        return result[order.argsort()]

    def crop_width(self, dim: int) -> NoReturn:
        """Raise a ValueError: there are no crops."""
        raise ValueError("dims: RESCAL cannot be cropped")

    first_columns = crop_width


def _ranked(rows: Tensor, matrices: Tensor, counts: list[int], turned: bool) -> Tensor:
    """Multiply each row separately with its relation's matrix, so that no other row matters."""
    parts = []
    with threads.one_here():
        for some, matrix in zip(rows.split(counts), matrices, strict=True):
            # MKL's sums of a row times a matrix depend on the row's place in memory.
            one = (matrix if turned else matrix.mT).expand(len(some), -1, -1)
            parts.append(torch.bmm(one, some[:, :, None])[:, :, 0])
    return torch.cat([rows[:0], *parts])


class _Products(torch.autograd.Function):
    """Products of a step, on one thread each: no number of threads changes a gradient."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrices: Tensor, counts: list[int], turned: bool
    ) -> Tensor:
        ctx.save_for_backward(rows, matrices)
        ctx.counts, ctx.turned = counts, turned
        return _by_relation(rows, matrices, counts, turned)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second()
        rows, matrices = ctx.saved_tensors
        of_rows = of_matrices = None
        if ctx.needs_input_grad[0]:
            of_rows = _by_relation(slopes, matrices, ctx.counts, not ctx.turned)
        if ctx.needs_input_grad[1]:
            of_matrices = torch.empty_like(matrices)
            pair = (slopes, rows) if ctx.turned else (rows, slopes)
            left, right = (factor.split(ctx.counts) for factor in pair)

            def work(number: int) -> None:
                torch.mm(left[number].T, right[number], out=of_matrices[number])

            run_alone(work, len(matrices), rows.device, parallel=True)
        return of_rows, of_matrices, None, None


def _by_relation(rows: Tensor, matrices: Tensor, counts: list[int], turned: bool) -> Tensor:
    result = torch.empty_like(rows)
    factors, products = rows.split(counts), result.split(counts)

    def work(number: int) -> None:
        matrix = matrices[number].T if turned else matrices[number]
        torch.mm(factors[number], matrix, out=products[number])

    run_alone(work, len(counts), rows.device, parallel=True)
    return result

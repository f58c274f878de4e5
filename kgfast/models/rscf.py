"""RSCF (Kim et al. 2025, ACL long.602): filters of entities from relations, and vice versa."""

import copy
from collections.abc import Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.models.base import Candidates, Model, Side, check_dim, distinct_relations, query_rows
from kgfast.models.evaluated import run_alone
from kgfast.models.filters import between, block_of, crops_with_filters, filters_of
from kgfast.models.rotate import RotatE
from kgfast.models.tables import fresh_table
from kgfast.models.transe import TransE
from kgfast.models.wrapper import Wrapper
from kgfast.ops.differentiable import no_autocast
from kgfast.ops.dispatch import offers

_GAIN = 0.5  # gain of the initial matrices
# Rows whose factor is made at once, without gradients: a fixed number, so that no row depends on
# other rows.
_CHUNK = {"cpu": 128}
_CHUNK_ELSEWHERE = 1 << 12


class RSCF(Wrapper):
    r"""RSCF around a model (Kim et al. 2025; formulas as in docs/how-to/med_rscf.md).

    With ``N(x) = x / max(||x||, 1e-12)`` and ``*`` elementwise::

        e_r  = (N(r A1) + 1) * e                       both ends of a triple
        r_ht = (N(h A2) + 1) * (N(t A3) + 1) * r       from h and t before they are filtered

    and the score is the model's score of ``(h_r, r_ht, t_r)``. A crop takes the rows and columns of
    the matrices for the crop's features, and norms over these. Each side and crop has a table of
    the candidates' filters in memory.

    Parameters
    ----------
    model : RotatE or TransE
        RotatE with raw relations or phases, the sum of moduli and halves.
    seed : int, optional
        Seed of the initial matrices: Xavier-uniform with gain 0.5. None uses torch's global
        generator. The matrices train if the model's entities train.

    Attributes
    ----------
    A1 : Tensor
        ``[R, G]`` for relation rows of R and entity rows of G reals.
    A2, A3 : Tensor
        ``[G, R]``.

    Raises
    ------
    ValueError, TypeError
        For a model that RSCF cannot filter; the message says why.

    Examples
    --------
    >>> model = RSCF(RotatE.init(5, 2, dim=4, seed=0), seed=1)
    >>> model.score, model.queries(torch.tensor([0]), torch.tensor([1]), "tail").shape
    ('rscf_rotate', torch.Size([1, 20]))
    """

    parallel_queries = True
    has_large_operators = True
    A1: nn.Parameter
    A2: nn.Parameter
    A3: nn.Parameter

    def __init__(self, model: Model, *, seed: int | None = None) -> None:
        super().__init__(model)
        self.nested = False  # norms over a crop give other filters
        if not isinstance(model, RotatE | TransE):
            raise ValueError(f"RSCF goes around RotatE and TransE; got {type(model).__name__}")
        if isinstance(model, RotatE) and (
            model.relation_format == "complex" or model.score != "rotate"
        ):
            raise ValueError(
                "RSCF needs a RotatE with relation_format raw or phase, norm modulus and layout "
                f"halves; got {model.relation_format}, {model.norm}, {model.layout}"
            )
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for name, shape in self._matrix_shapes().items():
            matrix = nn.init.xavier_uniform_(fresh_table(shape), _GAIN, generator)
            trains, device = model.entity.requires_grad, model.entity.device
            setattr(self, name, nn.Parameter(matrix.to(device, self._dtype), trains))
        self.score = f"rscf_{model.score}"

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """Return queries of filtered anchors, with a scale of the candidate and half the angle.

        The result is that of :meth:`Model.queries`, ``[B, F]`` in the layout of
        :mod:`kgfast.kernels.scores`. A crop's rows stay full-width, with zeros beyond the crop.
        """
        self._check_side(side)
        width = self._checked(dims)
        (queries,) = self._filtered(anchors, relations, side, [width])
        return self._widened(queries, width) if self._cuts else queries

    def queries_of(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: Sequence[int]
    ) -> list[Tensor]:
        """Return the queries of several crops, made at once, for :meth:`candidates_of`."""
        self._check_side(side)
        widths = sorted({self._checked(dim) for dim in dims})
        queries = self._filtered(anchors, relations, side, widths)
        return [queries[widths.index(dim)] for dim in dims]

    @torch.no_grad()
    def for_queries(self, side: Side) -> Self:
        """Return :meth:`Model.for_queries`, with matrices in float64, as products want them."""
        local = copy.copy(self)
        names = "A1", "A2" if side == "tail" else "A3"
        local._parameters = local._parameters | cast(
            Any, {name: getattr(self, name).mT.double().contiguous().mT for name in names}
        )
        return local

    def _filtered(
        self, anchors: Tensor, relations: Tensor, side: Side, widths: list[int]
    ) -> list[Tensor]:
        """Return the queries of crops, ``[B, F]``, as wide as their filters."""
        with no_autocast(self.entity.device):
            distinct: Tensor = relations
            place: Tensor | None = None
            # Without gradients, the shape of a product would depend on the relations; of several
            # crops a gather takes longer than the products.
            if torch.is_grad_enabled() and len(widths) == 1:
                distinct, place = distinct_relations(relations)
            scales = self._filters(query_rows(self.relation, distinct), "A1", widths)
            if place is not None:
                scales = [nn.functional.embedding(place, scales[0][0])[None]]
            anchor = query_rows(self.entity, anchors)
            unit = self.model.phase_unit if isinstance(self.model, RotatE) else 1.0
            turn = (unit if side == "tail" else -unit) * query_rows(self.relation, relations)
            of_anchors = self._filters(anchor, "A2" if side == "tail" else "A3", widths)
            queries: list[Tensor] = []
            for scale, of_anchor in zip(scales, of_anchors, strict=True):
                width = of_anchor.shape[2] // (turn.shape[1] // self.dim)
                rows, angle = (between(it, self.dim, 0, width) for it in (anchor, turn))
                made = torch.cat([scale * rows, scale, of_anchor * angle], -1)
                queries += made.to(self._dtype).unbind()
        return queries

    def _filters(self, rows: Tensor, name: str, widths: list[int]) -> list[Tensor]:
        """Return the filters of crops by a matrix, each ``[1, M, *]``; on a GPU ``[C, M, *]``."""
        matrix: Tensor = getattr(self, name)
        if ops.serves_filters(rows, matrix):
            return [ops.filters(rows, matrix, widths, self.dim)]
        filters = filters_of(rows, matrix.to(rows.dtype), widths, self.dim)
        if self._cuts:
            return [it[None] for it in filters]
        whole = [self._widened(it, width) for it, width in zip(filters, widths, strict=True)]
        return [torch.stack(whole)]

    @property
    def _cuts(self) -> bool:
        """Return whether a crop's operands are cut: kernels of a GPU make them of full width."""
        return not offers(self.entity.device, "filters")

    def _widened(self, rows: Tensor, width: int) -> Tensor:
        """Return cut rows with zeros beyond the crop."""
        if width == self.dim:
            return rows
        planes = rows.unflatten(1, (-1, width))
        return nn.functional.pad(planes, (0, self.dim - width)).flatten(1)

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return entities with a factor ``[N, dims]``, of tails ``N(t A3) + 1``."""
        rows, name, width = self._to_filter(side, dims)
        if rows is None:
            return Candidates(self.entity, None, self._factor(name, width))
        with no_autocast(rows.device):
            (factor,) = self._filters(rows, name, [width])
        return Candidates(self.entity, None, factor[0, :, :width])

    def candidates_of(self, side: Side, dims: Sequence[int]) -> list[Candidates]:
        """Return the candidates of several crops, made at once, for :meth:`queries_of`."""
        widths = sorted(set(map(self._checked, dims)))
        rows, name, _ = self._to_filter(side, None)
        if rows is None:
            ends = [width if self._cuts else self.dim for width in widths]
            cut = [between(self.entity, self.dim, 0, end) for end in ends]
            made = list(zip(cut, [self._factor(name, width) for width in widths], strict=True))
        else:
            matrix: Tensor = getattr(self, name).to(rows.dtype)
            with no_autocast(rows.device):
                if self._cuts:
                    made = crops_with_filters(rows, matrix, widths, self.dim)
                else:
                    (factors,) = self._filters(rows, name, widths)
                    made = [(self.entity, it) for it in factors.unbind()]
        crops = [Candidates(table, None, factor) for table, factor in made]
        return [crops[widths.index(dim)] for dim in dims]

    def _to_filter(self, side: Side, dims: int | None) -> tuple[Tensor | None, str, int]:
        """Return entities in the precision of filters, None without gradients; matrix and width."""
        self._check_side(side)
        name, width = "A3" if side == "tail" else "A2", self._checked(dims)
        if not torch.is_grad_enabled() or not (
            self.entity.requires_grad or getattr(self, name).requires_grad
        ):
            return None, name, width
        return self.entity if self._dtype == torch.float64 else self.entity.float(), name, width

    @torch.no_grad()
    def _factor(self, name: str, width: int) -> Tensor:
        """Return the factor of a crop without gradients, ``[N, width]``."""
        table, ends = self.entity, (0, width)
        matrix = block_of(getattr(self, name).double(), self.dim, ends, width)
        matrix = matrix.mT.contiguous().mT  # as `product` wants it, so that no chunk copies it
        factor = torch.empty(len(table), width, dtype=self._dtype, device=table.device)
        step = _CHUNK.get(table.device.type, _CHUNK_ELSEWHERE)

        def work(number: int) -> None:
            here = slice(number * step, (number + 1) * step)
            rows, count = between(table[here].double(), self.dim, *ends), len(factor[here])
            if count < step:
                rows = nn.functional.pad(rows, (0, 0, 0, step - count))
            with torch.no_grad():  # in another thread
                factor[here] = filters_of(rows, matrix, [width], width)[0][:count]

        run_alone(work, -(-len(table) // step), table.device, parallel=True)
        return factor

    def first_columns(self, dim: int) -> Self:
        """Return :meth:`Model.first_columns`, with matrices cut likewise."""
        local = super().first_columns(dim)
        cut = {
            name: getattr(local, name)[:rows, :columns]
            for name, (rows, columns) in local._matrix_shapes().items()
        }
        local._parameters = cast(Any, local._parameters | cut)
        return local

    def _checked(self, dims: int | None) -> int:
        """Return the width of a crop, after checking that crop and matrices fit the model."""
        for name, shape in self._matrix_shapes().items():
            actual = getattr(self, name).shape
            if actual != shape:
                raise ValueError(f"{name} must have shape {list(shape)}; got {list(actual)}")
        return self.dim if dims is None else check_dim(dims, self.dim)

    def _matrix_shapes(self) -> dict[str, tuple[int, int]]:
        g, r = self.entity.shape[1], self.relation.shape[1]
        return {"A1": (r, g), "A2": (g, r), "A3": (g, r)}

"""RSCF (Kim et al. 2025, ACL long.602): filters of entities from relations, and vice versa."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.models.base import (
    SIDES,
    Candidates,
    Model,
    Side,
    check_dim,
    distinct_relations,
    query_rows,
)
from kgfast.models.complex import ComplEx
from kgfast.models.distmult import DistMult
from kgfast.models.evaluated import in_chunks, product, query_chunk, run_alone
from kgfast.models.filters import SMALLEST_NORM, filters_of
from kgfast.models.fresh import fresh_table
from kgfast.models.rotate import RotatE
from kgfast.models.transe import TransE
from kgfast.models.wrapper import Wrapper
from kgfast.ops.differentiable import no_autocast

_SCORES = {"rotate": "rscf_rotate", "l1": "rscf_l1", "l2": "rscf_l2"}
_GAIN = 0.5  # gain of the initial matrices
# Rows whose factor is made at once, without gradients: a fixed number, so that no row depends on
# other rows.
_CHUNK = {"cpu": 64}
_CHUNK_ELSEWHERE = 1 << 12


class RSCF(Wrapper):
    r"""RSCF around a model (Kim et al. 2025; formulas as in docs/how-to/med_rscf.md).

    With ``N(x) = x / max(||x||, 1e-12)`` and ``*`` elementwise::

        e_r  = (N(r A1) + 1) * e                       both ends of a triple
        r_ht = (N(h A2) + 1) * (N(t A3) + 1) * r       from h and t before they are filtered

    and the score is the model's score of ``(h_r, r_ht, t_r)``. Each candidate needs one row of
    ``N(t A3) + 1`` (or ``N(h A2) + 1``). This table is made once per side and crop, and counts as a
    table of the model in memory. A crop takes the rows and columns of the matrices for the crop's
    features, and norms over these.

    Parameters
    ----------
    model : RotatE, TransE, DistMult or ComplEx
        RotatE with raw relations or phases, the sum of moduli and halves.
    relation_transform : bool
        Filter relations too. DistMult and ComplEx need False.
    seed : int, optional
        Seed of the initial matrices: Xavier-uniform with gain 0.5. None uses torch's global
        generator. The matrices train if the model's entities train.

    Attributes
    ----------
    A1 : Tensor
        ``[R, G]`` for relation rows of R and entity rows of G reals.
    A2, A3 : Tensor
        ``[G, R]``, with ``relation_transform``.

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

    A1: nn.Parameter
    A2: nn.Parameter
    A3: nn.Parameter

    def __init__(
        self,
        model: Model,
        relation_transform: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(model)
        _check_model(model, relation_transform)
        self.relation_transform = relation_transform
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for name, shape in self._matrix_shapes().items():
            matrix = nn.init.xavier_uniform_(fresh_table(shape), _GAIN, generator)
            trains, device = model.entity.requires_grad, model.entity.device
            setattr(self, name, nn.Parameter(matrix.to(device, self._dtype), trains))
        self.score = _SCORES.get(model.score, model.score)

    @property
    def nested(self) -> bool:
        """Return False: norms over a crop give other filters."""
        return False

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """Return queries of filtered anchors, with a scale of the candidate and half the angle.

        The result is that of :meth:`Model.queries`, ``[B, F]`` in the layout of
        :mod:`kgfast.kernels.scores`. A crop's rows stay full-width, with zeros beyond the crop.
        """
        if side not in SIDES:
            raise ValueError(f"side must be 'head' or 'tail'; got {side!r}")
        filters = _Filters(self, [self._checked(dims)])

        def make(anchors: Tensor, relations: Tensor) -> Tensor:
            return self._filtered(filters, anchors, relations, side)[0]

        with no_autocast(self.entity.device):
            if torch.is_grad_enabled():
                return make(anchors, relations)
            return in_chunks(
                make, anchors, relations, query_chunk(self.entity.device), parallel=True
            )

    def queries_of(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: Sequence[int]
    ) -> list[Tensor]:
        """Return the queries of several crops; all at once if they train."""
        if not torch.is_grad_enabled():
            return super().queries_of(anchors, relations, side, dims)
        widths = sorted({self._checked(dim) for dim in dims})
        with no_autocast(self.entity.device):
            made = self._filtered(_Filters(self, widths), anchors, relations, side)
        queries = dict(zip(widths, made.unbind(), strict=True))
        return [queries[dim] for dim in dims]

    def _filtered(
        self, filters: "_Filters", anchors: Tensor, relations: Tensor, side: Side
    ) -> Tensor:
        """Return the queries of the crops of the filters, ``[C, B, F]``."""
        distinct: Tensor = relations
        place: Tensor | None = None
        # Without gradients, the shape of a product would depend on the relations; of several crops
        # a gather takes longer than the products.
        if torch.is_grad_enabled() and len(filters.widths) == 1:
            distinct, place = distinct_relations(relations)
        scale = filters(query_rows(self.relation, distinct), "A1")  # [C, B, G]
        if place is not None:
            scale = nn.functional.embedding(place, scale[0])[None]
        anchor = query_rows(self.entity, anchors)
        filtered = scale * anchor
        if self.relation_transform:
            unit = _unit(self.model) if side == "tail" else -_unit(self.model)
            turn = unit * query_rows(self.relation, relations)
            of_anchors = filters(anchor, _factor_matrix("head" if side == "tail" else "tail"))
            parts = [filtered, scale, of_anchors * turn]
        else:
            local = torch.arange(len(anchors), dtype=torch.int64, device=anchors.device)
            models = [self.model.with_entity(rows) for rows in filtered]
            queries = [model._queries(local, relations, side, None) for model in models]
            parts = [torch.stack(queries), scale]
        if self.score == self.model.score:  # a bilinear score takes both filters into the query
            return (parts[0] * scale).to(self._dtype)
        return torch.cat(parts, -1).to(self._dtype)

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return the entity table and, if relations are filtered, the factor ``[N, dims]``.

        The factor is ``N(t A3) + 1``, for the head side ``N(h A2) + 1``.
        """
        if not self.relation_transform:
            return self.model.candidates(side)
        dim, table = self._checked(dims), self.entity
        filters, name = _Filters(self, [dim]), _factor_matrix(side)
        with no_autocast(table.device):
            if self._factor_trains:
                return Candidates(table, None, self._factors(side, [dim])[0][:, :dim])
            factor = torch.empty(len(table), dim, dtype=self._dtype, device=table.device)
            step = _CHUNK.get(table.device.type, _CHUNK_ELSEWHERE)

            def work(number: int) -> None:
                here = slice(number * step, (number + 1) * step)
                rows = table[here].double()
                whole = nn.functional.pad(rows, (0, 0, 0, step - len(rows)))
                factor[here] = filters.inside(whole, name)[0][: len(rows)]

            run_alone(work, -(-len(table) // step), table.device, parallel=True)
        return Candidates(table, None, factor)

    def candidates_of(self, side: Side, dims: Sequence[int]) -> list[Candidates]:
        """Return :meth:`Model.candidates_of`; all factors come from one pass over the rows."""
        if not self.relation_transform or not self._factor_trains:
            return super().candidates_of(side, dims)
        widths = sorted({self._checked(dim) for dim in dims})
        with no_autocast(self.entity.device):
            factors = dict(zip(widths, self._factors(side, widths), strict=True))
        return [Candidates(self.entity, None, factors[dim]) for dim in dims]

    def _factors(self, side: Side, widths: list[int]) -> list[Tensor]:
        """Return the factors of several crops with gradients; kernels make them full-width."""
        table, matrix = self.entity, getattr(self, _factor_matrix(side))
        rows = table if table.dtype == torch.float64 else table.float()
        if ops.serves_filters(rows, matrix):
            return list(ops.filters(rows, matrix, widths, self.dim).unbind())
        return filters_of(rows, matrix.to(rows.dtype), widths, self.dim)

    @property
    def _factor_trains(self) -> bool:
        trains = self.entity.requires_grad or self.A2.requires_grad
        return torch.is_grad_enabled() and trains

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
        return {"A1": (r, g)} | ({"A2": (g, r), "A3": (g, r)} if self.relation_transform else {})


class _Filters:
    """Filters ``N(e A) + 1`` of rows ``[M, *]`` for nested crops.

    A crop's features are the first features of the next wider crop. So the product of a crop is a
    term of the wider crop's sum; only norms differ.
    """

    def __init__(self, rscf: RSCF, widths: list[int]) -> None:
        self._rscf, self.widths = rscf, widths
        # By name: the columns of the widest crop, and what each crop adds to a product.
        self._matrices: dict[str, list[Tensor]] = {}

    def __call__(self, rows: Tensor, name: str) -> Tensor:
        """Return the filters of all crops, ``[C, M, *]``, 0 beyond a crop."""
        matrix: Tensor = getattr(self._rscf, name)
        dim = self._rscf.dim
        if ops.serves_filters(rows, matrix):
            return ops.filters(rows, matrix, self.widths, dim)
        crops = self.inside(rows, name)
        for i, width in enumerate(self.widths):
            if width < dim:
                planes = crops[i].unflatten(1, (-1, width))
                crops[i] = nn.functional.pad(planes, (0, dim - width)).flatten(1)
        return torch.stack(crops) if len(crops) > 1 else crops[0][None]

    def inside(self, rows: Tensor, name: str) -> list[Tensor]:
        """Return the filters of each crop in the columns of the crop."""
        if name not in self._matrices:
            matrix = getattr(self._rscf, name).to(rows.dtype)
            matrix = _features(matrix, 1, self._rscf.dim, 0, self.widths[-1])
            self._matrices[name] = self._added(matrix, 0)
        total: Tensor | None = None
        crops: list[Tensor] = []
        terms = map(product, self._added(rows, 1), self._matrices[name])
        for width, term in zip(self.widths, terms, strict=True):
            total = term if total is None else total + term
            crop = _features(total, 1, self.widths[-1], 0, width)
            norm = torch.linalg.vector_norm(crop, dim=-1, keepdim=True).clamp_min(SMALLEST_NORM)
            crops.append(crop / norm + 1.0)
        return crops

    def _added(self, values: Tensor, axis: int) -> list[Tensor]:
        """Return the features that each crop adds to the crop before."""
        ends = pairwise([0, *self.widths])
        return [_features(values, axis, self._rscf.dim, *end) for end in ends]


def _features(values: Tensor, axis: int, dim: int, first: int, last: int) -> Tensor:
    """Return features ``first .. last - 1`` of each plane of ``dim`` features along an axis."""
    if last - first == dim:
        return values
    planes: Tensor = values.unflatten(axis, (-1, dim)).narrow(axis + 1, first, last - first)
    return planes.flatten(axis, axis + 1)


def _factor_matrix(side: Side) -> str:
    """Name the matrix of the entities of a side: of tails A3, of heads A2."""
    return "A3" if side == "tail" else "A2"


def _unit(model: Model) -> float:
    """Return radians (RotatE) or lengths (TransE) of one unit of a relation's entry."""
    return model.phase_unit if isinstance(model, RotatE) else 1.0


def _check_model(model: Model, relation_transform: bool) -> None:
    name = type(model).__name__
    if isinstance(model, (DistMult, ComplEx)):
        if relation_transform:
            raise ValueError(
                f"relation_transform must be False around {name}: relations would depend on the "
                "candidate inside a product, and the score would not be a dot product of a query "
                "with a table"
            )
        if getattr(model, "layout", "halves") != "halves":
            raise ValueError(f"RSCF needs a {name} with layout halves; got {model.layout}")
    elif isinstance(model, RotatE):
        options: Sequence[tuple[str, Any, Sequence[Any]]] = (
            ("norm", model.norm, ("modulus",)),
            ("layout", model.layout, ("halves",)),
            ("relation_format", model.relation_format, ("raw", "phase")),
        )
        for option, value, allowed in options:
            if value not in allowed:
                raise ValueError(
                    f"RSCF needs a RotatE with {option} {' or '.join(allowed)}; got {value}"
                )
    elif not isinstance(model, TransE):
        raise ValueError(f"RSCF goes around RotatE, TransE, DistMult and ComplEx; got {name}")

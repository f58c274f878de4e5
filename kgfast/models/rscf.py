"""RSCF (Kim et al. 2025, ACL long.602): filters of entities from relations, and vice versa."""

import itertools
from collections.abc import Sequence
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
    fresh_table,
    query_rows,
)
from kgfast.models.complex import ComplEx
from kgfast.models.distmult import DistMult
from kgfast.models.evaluated import in_chunks, product, query_chunk, run_alone
from kgfast.models.filters import SMALLEST_NORM, filters_of
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

    With ``N(x) = x / max(||x||_p, 1e-12)`` and ``*`` elementwise::

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
    p : float
        Order of the norm.
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
        p: float = 2,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(model)
        _check_model(model, relation_transform)
        if not isinstance(p, (int, float)) or not p >= 1:
            raise ValueError(f"p must be a number of at least 1; got {p!r}")
        self.relation_transform, self.p = relation_transform, p
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for name, shape in self._shapes().items():
            matrix = nn.init.xavier_uniform_(fresh_table(shape), _GAIN, generator)
            trains, device = model.entity.requires_grad, model.entity.device
            dtype = torch.float64 if model.entity.dtype == torch.float64 else torch.float32
            setattr(self, name, nn.Parameter(matrix.to(device, dtype), trains))
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
        with no_autocast(self.entity.device):
            if self._has_kernel:
                return self._trained_queries(anchors, relations, side, [self._checked(dims)])[0]
            filters = _Filters(self, side, self._checked(dims))
            if torch.is_grad_enabled():
                return filters.queries(anchors, relations)
            size = query_chunk(self.entity.device)
            return in_chunks(filters.queries, anchors, relations, size, parallel=True)

    def queries_of(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: Sequence[int]
    ) -> list[Tensor]:
        """Return the queries of several crops; all at once if kernels make filters."""
        if not self._has_kernel:
            return [self.queries(anchors, relations, side, dim) for dim in dims]
        widths = [self._checked(dim) for dim in dims]
        rising = sorted(set(widths))
        with no_autocast(self.entity.device):
            made = self._trained_queries(anchors, relations, side, rising)
        queries = dict(zip(rising, made.unbind(), strict=True))
        return [queries[width] for width in widths]

    @property
    def _has_kernel(self) -> bool:
        if not self.relation_transform or self.p != 2:
            return False
        return ops.serves_filters(self.entity, self.relation, self.A1, self.A2, self.A3)

    def _trained_queries(
        self, anchors: Tensor, relations: Tensor, side: Side, widths: Sequence[int]
    ) -> Tensor:
        """Return the queries of ascending crops, ``[C, B, F]``."""
        relation, anchor = query_rows(self.relation, relations), query_rows(self.entity, anchors)
        matrix = getattr(self, _factor_matrix(_other(side)))
        scale = ops.filters(relation, self.A1, widths, self.dim)
        own = ops.filters(anchor, matrix, widths, self.dim)
        unit = _unit(self.model) if side == "tail" else -_unit(self.model)
        return torch.cat([scale * anchor, scale, own * (unit * relation)], -1)

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return the entity table and, if relations are filtered, the factor ``[N, dims]``."""
        if not self.relation_transform:
            return self.model.candidates(side)
        with no_autocast(self.entity.device):
            factor = _Filters(self, side, self._checked(dims)).factor()
        return Candidates(self.entity, None, factor)

    def candidates_of(self, side: Side, dims: Sequence[int]) -> list[Candidates]:
        """Return :meth:`Model.candidates_of`; all factors come from one pass over the rows."""
        if not self.relation_transform or not self._factor_trains or self.p != 2:
            return super().candidates_of(side, dims)
        widths = sorted({self._checked(dim) for dim in dims})
        with no_autocast(self.entity.device):
            factors = dict(zip(widths, _factors(self, side, widths), strict=True))
        return [Candidates(self.entity, None, factors[dim]) for dim in dims]

    @property
    def _factor_trains(self) -> bool:
        trains = self.entity.requires_grad or self.A2.requires_grad
        return torch.is_grad_enabled() and trains

    def crop_width(self, dim: int) -> int | None:
        """Return :meth:`Model.crop_width` of the inner model."""
        return self.model.crop_width(dim)

    def first_columns(self, dim: int) -> Self:
        """Return :meth:`Model.first_columns`, with matrices cut likewise."""
        local = self._around(self.model.first_columns(dim))
        g, r = local.entity.shape[1], local.relation.shape[1]
        cut = {
            name: parameter[:g, :r]
            for name, parameter in local._parameters.items()
            if parameter is not None
        }
        cut["A1"] = local.A1[:r, :g]
        local._parameters = cast(Any, local._parameters | cut)
        return local

    def _checked(self, dims: int | None) -> int:
        """Return the width of a crop, after checking that crop and matrices fit the model."""
        for name, shape in self._shapes().items():
            own = getattr(self, name).shape
            if own != shape:
                raise ValueError(f"{name} must have shape {list(shape)}; got {list(own)}")
        return self.dim if dims is None else check_dim(dims, self.dim)

    def _shapes(self) -> dict[str, tuple[int, int]]:
        g, r = self.entity.shape[1], self.relation.shape[1]
        return {"A1": (r, g)} | ({"A2": (g, r), "A3": (g, r)} if self.relation_transform else {})


class _Filters:
    """Filters of one side and crop."""

    def __init__(self, rscf: RSCF, side: Side, dim: int) -> None:
        self._rscf, self._model, self._side, self._dim = rscf, rscf.model, side, dim
        model = self._model
        device = model.entity.device
        self._planes = model.entity.shape[1] // model.dim
        columns = torch.arange(dim, dtype=torch.int64, device=device)
        starts = torch.arange(self._planes, dtype=torch.int64, device=device) * model.dim
        self._columns = (starts[:, None] + columns).flatten()  # columns of the crop, in entity rows
        relation_planes = model.relation.shape[1] // model.dim
        starts = torch.arange(relation_planes, dtype=torch.int64, device=device) * model.dim
        self._relation_columns = (starts[:, None] + columns).flatten()
        self._is_whole = dim == model.dim
        self._matrices: dict[tuple[str, torch.dtype], Tensor] = {}

    def queries(self, anchors: Tensor, relations: Tensor) -> Tensor:
        rscf, model = self._rscf, self._model
        distinct: Tensor = relations
        place: Tensor | None = None
        if torch.is_grad_enabled():  # else the shape of a product would depend on the relations
            distinct, place = distinct_relations(relations)
        rows = query_rows(model.relation, distinct)
        scale = _at(place, self._scales(rows))  # [B, G]
        anchor = query_rows(model.entity, anchors)
        filtered = scale * anchor
        query = filtered
        if not rscf.relation_transform:
            local = torch.arange(len(anchors), dtype=torch.int64, device=anchors.device)
            query = model.with_entity(filtered)._queries(local, relations, self._side, None)
        if rscf.score == model.score:  # a bilinear score takes the second filter into the query
            return (query * scale).to(self.dtype)
        parts = [query, scale]
        if rscf.relation_transform:
            own = self._normalised(anchor, _factor_matrix(_other(self._side))) + 1.0
            relation = _at(place, self._cropped(rows))
            sign = 1.0 if self._side == "tail" else -1.0
            parts.append(self._padded(sign * _unit(model) * relation * own))
        return torch.cat(parts, 1).to(self.dtype)

    def factor(self) -> Tensor:
        """Return ``N(t A3) + 1`` (head side: ``N(h A2) + 1``) of all rows, ``[N, dim]``."""
        table, name = self._model.entity, _factor_matrix(self._side)
        if self._rscf._factor_trains:
            if self._rscf.p == 2:
                made = _factors(self._rscf, self._side, [self._dim])[0]
                return made if self._is_whole else made[:, : self._dim]
            return self._normalised(_trained(table), name) + 1.0
        result = torch.empty(len(table), self._dim, dtype=self.dtype, device=table.device)
        step = _CHUNK.get(table.device.type, _CHUNK_ELSEWHERE)

        def work(number: int) -> None:
            here = slice(number * step, (number + 1) * step)
            rows = table[here].double()
            whole = nn.functional.pad(rows, (0, 0, 0, step - len(rows)))
            result[here] = (self._normalised(whole, name) + 1.0)[: len(rows)]

        run_alone(work, -(-len(table) // step), table.device, parallel=True)
        return result

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self._model.entity.dtype == torch.float64 else torch.float32

    def _scales(self, relations: Tensor) -> Tensor:
        """Return ``N(r A1) + 1`` in the features of the crop, and 0 elsewhere: ``[R, G]``."""
        change = product(self._cropped(relations), self._matrix("A1", relations.dtype))
        scale = _normalised(change, self._rscf.p) + 1.0
        if self._is_whole:
            return scale
        whole = scale.new_zeros(len(scale), self._model.entity.shape[1])
        return whole.index_copy(1, self._columns, scale)

    def _normalised(self, rows: Tensor, name: str) -> Tensor:
        """Return ``N(e A)`` in the features of the crop, ``[*, dim]``."""
        rows = rows if self._is_whole else rows.index_select(1, self._columns)
        return _normalised(product(rows, self._matrix(name, rows.dtype)), self._rscf.p)

    def _matrix(self, name: str, dtype: torch.dtype) -> Tensor:
        if (name, dtype) not in self._matrices:
            matrix: Tensor = getattr(self._rscf, name)
            if not self._is_whole:
                rows, columns = self._columns, self._relation_columns
                rows, columns = (columns, rows) if name == "A1" else (rows, columns)
                matrix = matrix.index_select(0, rows).index_select(1, columns)
            self._matrices[name, dtype] = matrix.to(dtype)
        return self._matrices[name, dtype]

    def _cropped(self, relations: Tensor) -> Tensor:
        if self._is_whole:
            return relations
        return relations.index_select(1, self._relation_columns)

    def _padded(self, rows: Tensor) -> Tensor:
        """Pad rows of a crop ``[B, dim]`` with zeros."""
        return nn.functional.pad(rows, (0, self._model.dim - self._dim))


def _factors(rscf: RSCF, side: Side, widths: Sequence[int]) -> list[Tensor]:
    """Return ``N(t A3) + 1`` (head side: ``N(h A2) + 1``) with gradients, for several crops.

    Kernels make all factors as wide as the model.
    """
    rows, matrix = _trained(rscf.entity), getattr(rscf, _factor_matrix(side))
    planes = range(rows.shape[1] // rscf.dim)
    spans = [
        [slice(plane * rscf.dim + below, plane * rscf.dim + width) for plane in planes]
        for below, width in itertools.pairwise([0, *widths])
    ]
    matrix = matrix.to(rows.dtype)
    if ops.serves_filters(rows, matrix):
        return list(ops.filters(rows, matrix, widths, rscf.dim).unbind())
    columns = rscf.relation.shape[1] // rscf.dim
    return filters_of(rows, matrix, spans, [columns * width for width in widths])


def _factor_matrix(side: Side) -> str:
    """Name the matrix of the entities of a side: of tails A3, of heads A2."""
    return "A3" if side == "tail" else "A2"


def _other(side: Side) -> Side:
    return "head" if side == "tail" else "tail"


def _trained(table: Tensor) -> Tensor:
    return table if table.dtype == torch.float64 else table.float()


def _at(place: Tensor | None, rows: Tensor) -> Tensor:
    return rows if place is None else nn.functional.embedding(place, rows)


def _normalised(rows: Tensor, p: float) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, p, dim=-1, keepdim=True)
    return rows / norms.clamp_min(SMALLEST_NORM)


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

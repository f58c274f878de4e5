"""Models, which make queries, and tables of candidates.

A score compares one query row with one candidate row; a model makes both rows. Any object with the
attributes of :class:`RankableModel` can be ranked; subclassing :class:`Model` is a convenience.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, cast

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.models.tables import Table, fresh_table, held_table, is_computed
from kgfast.tables import Rows, as_rows, is_table
from kgfast.tables import Table as TableOfRows
from kgfast.tables.files import Room

Side = Literal["head", "relation", "tail"]  # the predicted side
SIDES: tuple[Side, Side] = ("head", "tail")  # sides of entities: the default of calls
SIDES_AND_RELATIONS: tuple[Side, Side, Side] = ("head", "relation", "tail")

EPSILON = 2.0
GAMMA = 12.0  # margin by default
Shapes = tuple[tuple[int, int], tuple[int, int]]

# Features made at once. On the CPU the number is small, so that temporaries stay in the cache and
# below the size at which torch starts threads. Barriers of threads cost more than the work, and far
# more on a busy machine.
_QUERY_CHUNK, _QUERY_CHUNK_ELSEWHERE = 1 << 13, 1 << 20


@dataclass(frozen=True)
class Candidates:
    """Candidates of one side.

    Attributes
    ----------
    table : Tensor or Table
        ``[N, G]``, read in place; a :class:`kgfast.tables.Table` is read in blocks.
    bias : Tensor, optional
        ``[N]`` or ``[1]``, added to scores last.
    factor : Tensor, optional
        ``[N, D]``, for scores that take a factor.
    """

    table: Tensor
    bias: Tensor | None = None
    factor: Tensor | None = None

    def operands(self) -> dict[str, Any]:
        """Return the keyword arguments that every operator of :mod:`kgfast.ops` takes."""
        return {"candidates": self.table, "bias": self.bias, "factor": self.factor}


class RankableModel(Protocol):
    """Model that ``rank()``, ``topk()`` and losses take: any object with these attributes.

    :class:`Model` has more. :class:`kgfast.BlockScorer` makes a model of a function that scores.
    """

    @property
    def score(self) -> str:
        """Name the score of a query and a candidate, such as ``dot`` or ``l1``."""

    @property
    def num_entities(self) -> int:
        """Count the rows of the entity table."""

    @property
    def num_relations(self) -> int:
        """Count the relations that queries may name."""

    def queries(self, anchors: Tensor, relations: Tensor, side: Side, /) -> Tensor:
        """Return the queries ``[B, F]`` of int64 anchors and relations ``[B]``."""

    def candidates(self, side: Side, /) -> Candidates | Tensor:
        """Return the candidates of a side: :class:`Candidates`, or a table ``[N, G]``."""


class Model(nn.Module, ABC):
    """Base of the models. A model holds the given tensors without copying.

    A tensor that requires a gradient and is no parameter, such as an encoder's output, becomes a
    buffer that a state dict leaves out (docs/how-to/encoders.md). Other tensors become parameters.
    Subclasses set :attr:`score` and implement ``_queries``.

    Parameters
    ----------
    entity : Tensor, array or Table
        ``[N, G]`` floating point. A :class:`kgfast.tables.Table` is served by rankings and
        predictions alone, which read the rows that they need.
    relation : Tensor or array
        ``[R, *]`` floating point, on the same device.

    Attributes
    ----------
    score : str
        ``dot``, ``l1``, ``l2``, ``rotate``, ``rotate_interleaved``, or a score of RSCF.
    dim : int
        Features of a full-width row: complex dimensions for complex models.
    scores_relations : bool
        True if :meth:`queries` and :meth:`candidates` serve the side ``"relation"``. Else relations
        are ranked by the scores of their triples (:mod:`kgfast.models.relations`).
    has_wide_relations : bool
        True if relations are so wide that a step of training reads only the relations in use.
    has_large_operators : bool
        True if a step of training runs large operators of PyTorch, which use PyTorch's threads.
    has_inverses : bool
        True if a head query is the tail query of an inverse relation.
    nested : bool
        True if a crop's operands are the first features: one sweep serves all crops.
    dims : list of int, optional
        Widths of the sub-models that training and evaluation serve together; None without any.
    num_times : int, optional
        Number of times of a temporal model, whose relations are pairs ``relation * num_times +
        time``; None for any other.
    table_names : tuple of str
        The attributes that are tables: entities first.
    """

    score: str
    dim: int
    scores_relations: bool = False
    has_wide_relations: bool = False
    has_large_operators: bool = False
    has_inverses: bool = False
    nested: bool = True
    dims: list[int] | None = None
    in_blocks: Any = None  # no function scores blocks of candidates
    is_in_blocks: bool = False
    num_times: int | None = None
    table_names: tuple[str, ...] = ("entity", "relation")
    _planes: tuple[int, int] = (1, 1)  # planes of `dim` columns in rows of both tables
    _is_uniform: bool = False  # fresh tables are uniform in +-(gamma + 2) / dim
    entity: Tensor
    relation: Tensor

    def __init__(self, entity: Table, relation: Table) -> None:
        super().__init__()
        if is_table(relation):
            raise TypeError("relation must be a tensor or an array: only entity may be a table")
        self._hold("entity", held_table("entity", entity))
        self._hold("relation", held_table("relation", relation))
        devices = self.entity.device, self.relation.device
        if devices[0] != devices[1]:
            raise ValueError(f"entity is on {devices[0]} but relation on {devices[1]}")

    @classmethod
    def init(
        cls,
        num_entities: int,
        num_relations: int,
        dim: int,
        *,
        seed: int | None = None,
        room: Room = fresh_table,
        **options: Any,
    ) -> Self:
        """Make a model of fresh trainable embeddings, with options of the class.

        Tables are Xavier-normal (Glorot & Bengio 2010); those of RotatE and TransE are uniform in
        +-(gamma + 2) / dim, like RotatE's code. The network of ConvE starts like torch's layers.
        A ``seed`` leaves torch's global generator alone. ``room`` makes the entity table, float32
        on the CPU, of a shape.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        of_entities, of_relations = cls._shapes(num_entities, num_relations, dim)
        entity, relation = room(of_entities), fresh_table(of_relations)
        gamma = options.get("gamma", GAMMA)
        cls._draw(entity, relation, (gamma + EPSILON) / dim, generator)
        with torch.random.fork_rng(devices=(), enabled=seed is not None):
            if seed is not None:
                torch.default_generator.manual_seed(seed + 1)
            return cls(entity, relation, **options).requires_grad_()

    @classmethod
    def _shapes(cls, num_entities: int, num_relations: int, dim: int) -> Shapes:
        of_entities, of_relations = cls._planes
        return (num_entities, of_entities * dim), (num_relations, of_relations * dim)

    @classmethod
    def _draw(
        cls, entity: Tensor, relation: Tensor, limit: float, generator: torch.Generator | None
    ) -> None:
        """Draw fresh tables; ``limit`` is that of uniform tables."""
        for table in (entity, relation):
            if cls._is_uniform:
                table.uniform_(-limit, limit, generator=generator)
            else:
                table.normal_(0.0, math.sqrt(2.0 / sum(table.shape)), generator=generator)

    def _hold(self, name: str, table: Tensor | TableOfRows) -> None:
        """Hold a table where torch's modules look for tensors."""
        for held in (self.__dict__, self._parameters, self._buffers):
            held.pop(name, None)
        if not isinstance(table, Tensor):
            self.__dict__[name] = as_rows(table)
        elif is_computed(table):
            self._buffers[name] = table
            self._non_persistent_buffers_set.add(name)
        else:
            self._parameters[name] = cast(nn.Parameter, table)

    def _with(self, **tables: Tensor | TableOfRows) -> Self:
        """Copy the model with other tables; the copy shares everything else."""
        local = copy.copy(self)
        for name in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
            local.__dict__[name] = local.__dict__[name].copy()
        for name, table in tables.items():
            local._hold(name, table)
        return local

    @property
    def num_entities(self) -> int:
        """Count the rows of the entity table."""
        return self.entity.shape[0]

    @property
    def num_relations(self) -> int:
        """Count the rows of the relation table."""
        return self.relation.shape[0]

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return the candidates of a side, or of a crop of ``dims`` features.

        The side is ``"head"``, ``"tail"``, or ``"relation"`` where :attr:`scores_relations`.
        """
        if side not in SIDES:
            self._check_side(side)
        return Candidates(self.relation if side == "relation" else self.entity)

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """Make queries; the score of a query with candidate ``n`` is the score of the triple.

        Parameters
        ----------
        anchors, relations : Tensor
            ``[B]`` int64: heads and relations for side ``tail``, tails and relations for ``head``,
            heads and tails for ``relation``.
        side : {"head", "tail"}, or "relation" where :attr:`scores_relations`
        dims : int, optional
            Crop width, for models whose queries depend on the crop; rows stay full-width.

        Returns
        -------
        Tensor
            ``[B, F]`` float32, or float64 for a float64 table. Products are made in float64 and
            rounded once; with gradients, products are made in float32.
        """
        if side not in SIDES:
            self._check_side(side)
        entity = self.entity
        dtype = torch.float64 if entity.dtype == torch.float64 else torch.float32
        chunk = _QUERY_CHUNK if entity.device.type == "cpu" else _QUERY_CHUNK_ELSEWHERE
        step = max(1, chunk // max(1, self.dim))
        is_whole = torch.is_grad_enabled() or hasattr(type(self), "parallel_queries")
        if is_whole or anchors.shape[0] <= step:
            return self._queries(anchors, relations, side, dims).to(dtype)
        parts = zip(anchors.split(step), relations.split(step), strict=True)
        return torch.cat([self._queries(*rows, side, dims).to(dtype) for rows in parts])

    @property
    def _dtype(self) -> torch.dtype:
        """Return the dtype of queries: half-precision tables are read as float32."""
        return torch.float64 if self.entity.dtype == torch.float64 else torch.float32

    def _check_side(self, side: Side) -> None:
        if side not in SIDES and not (side == "relation" and self.scores_relations):
            raise ValueError(f"side must be 'head' or 'tail'; got {side!r}")

    @abstractmethod
    def _queries(self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None) -> Tensor:
        """Make the queries of a few rows, in the precision of :func:`query_rows`."""

    def relation_ids(self, relations: Tensor, side: Side) -> Tensor:
        """Return rows of the relation table for queries of a side; inverses have their own rows."""
        return relations

    def relation_factors(
        self, ids: Tensor, read: Callable[[Tensor, Tensor], Tensor] = torch.embedding
    ) -> list[Tensor]:
        """Return the rows ``[B, *]`` of relations that penalties take, by a reader of rows."""
        return [read(self.relation, ids)]

    def for_queries(self, side: Side) -> Self:
        """Return a model that makes the same queries, and has at hand what each chunk needs."""
        return self

    def with_entity(self, entity: Tensor | TableOfRows) -> Self:
        """Return the model on another entity table ``[M, G]``; everything else is shared.

        Ids then count the rows of that table, to which gradients flow.
        """
        return self._with(entity=entity)

    def with_relation(self, relation: Tensor) -> Self:
        """Return the model on another relation table ``[M, *]``, like :meth:`with_entity`."""
        return self._with(relation=relation)

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return the state like any module; raise a TypeError if entities are a table in files."""
        self._check_in_memory("state_dict()")
        return super().state_dict(*args, **options)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Serve ``to()``, ``half()`` and the like."""
        self._check_in_memory("to()")
        return cast(Self, super()._apply(fn, recurse))  # type: ignore[no-untyped-call]

    def _check_in_memory(self, method: str) -> None:
        table = self.__dict__.get("entity")
        if isinstance(table, Rows):
            raise TypeError(
                f"{method}: the entities are {table!r}, read in place: make the model of a tensor, "
                "such as table.block(0, len(table))"
            )

    def first_columns(self, dim: int) -> Self:
        """Return the model of the first ``dim`` features' columns of every row, read in place.

        Complex rows are cut first and then split into real and imaginary parts (MED's ``split``).
        """
        check_dim(dim, self.dim)
        self._check_in_memory("first_columns()")
        tables = {name: getattr(self, name) for name in self.table_names}
        planes = {name: table.shape[1] // self.dim for name, table in tables.items()}
        local = self._with(**{name: tables[name][:, : dim * planes[name]] for name in tables})
        local.dim = dim
        return local

    def crop_width(self, dim: int) -> int | None:
        """Return the operator's width of a crop of ``dim`` features; None if queries are cut."""
        return dim

    def logged_values(self) -> dict[str, float]:
        """Return values that a training log shows beside the loss."""
        return {}

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        return (
            f"num_entities={self.num_entities}, num_relations={self.num_relations}, dim={self.dim}"
        )


def check_model(model: object, *needed: str) -> None:
    """Check that a model has the names that every consumer reads, and the ``needed`` names."""
    names = ("score", "num_entities", "num_relations", "queries", "candidates", *needed)
    kind = type(model)  # properties are not computed
    missing = [name for name in names if not (hasattr(kind, name) or hasattr(model, name))]
    if missing:
        raise TypeError(f"model must have {', '.join(missing)}; {kind.__name__} does not")


def is_nested(model: Any) -> bool:
    """Return :attr:`Model.nested`, for any model."""
    return bool(getattr(model, "nested", True))


def candidates_at(
    model: RankableModel, side: Side, dim: int | None, count: int | None = None
) -> Candidates:
    """Return the candidates of a crop: those of the whole model, unless the crop has its own.

    A model may return a bare table. Raises TypeError if the model returns something else, and
    ValueError if there is not one row per entity, or for side ``"relation"`` per relation, or
    ``count`` rows of ``with_entity()``.
    """
    whose = "model" if count is None else f"{type(model).__name__}.with_entity(rows)"
    crop = () if dim is None or is_nested(model) else (dim,)
    candidates: Any = model.candidates(side, *crop)
    candidates = Candidates(candidates) if isinstance(candidates, Tensor) else candidates
    table = getattr(candidates, "table", None)
    if not (isinstance(table, Tensor) and hasattr(candidates, "operands")):
        what = repr(table) if is_table(table) else type(candidates).__name__
        raise TypeError(
            f"{whose}.candidates({side!r}) must be kgfast.Candidates or a table [N, G]; got {what} "
            "(only rank(), topk() and top_facts() read tables in files)"
        )
    many = "num_relations" if side == "relation" else "num_entities"
    count = getattr(model, many) if count is None else count
    if table.ndim != 2 or table.shape[0] != count:
        raise ValueError(
            f"{whose}.candidates({side!r}) must have one row per id: {many} is {count}, the table "
            f"has shape {list(table.shape)}"
        )
    return cast(Candidates, candidates)


def for_queries(model: Any, side: Side) -> Any:
    """Return :meth:`Model.for_queries`, for any model."""
    return model.for_queries(side) if isinstance(model, Model) else model


def queries_at(
    model: RankableModel, anchors: Tensor, relations: Tensor, side: Side, dim: int | None
) -> Tensor:
    """Return the queries of a crop, for any model; only crops with other queries pass ``dims``.

    A model outside this package gets copies of the ids, which the model may change. A ValueError
    says that there is not one row per anchor.
    """
    if not type(model).__module__.startswith("kgfast."):
        anchors, relations = anchors.clone(), relations.clone()
    make: Any = model.queries
    if dim is None or (is_nested(model) and operator_width(model, dim) is not None):
        queries = make(anchors, relations, side)
    else:
        queries = make(anchors, relations, side, dims=dim)
    if isinstance(queries, Tensor) and (queries.ndim != 2 or queries.shape[0] != anchors.shape[0]):
        raise ValueError(
            f"model.queries must have shape [{len(anchors)}, F], one row per anchor; got "
            f"{list(queries.shape)}"
        )
    return cast(Tensor, queries)


def queries_of(
    model: Any, anchors: Tensor, relations: Tensor, side: Side, dims: Sequence[int]
) -> list[Tensor]:
    """Return the queries of several crops, for any model; at once by RSCF."""
    if hasattr(model, "queries_of"):
        return cast(list[Tensor], model.queries_of(anchors, relations, side, dims))
    return [queries_at(model, anchors, relations, side, dim) for dim in dims]


def candidates_of(model: Any, side: Side, dims: Sequence[int]) -> list[Candidates]:
    """Return the candidates of several crops, for any model; at once by RSCF."""
    if hasattr(model, "candidates_of"):
        return cast(list[Candidates], model.candidates_of(side, dims))
    return [candidates_at(model, side, dim) for dim in dims]


def operator_width(model: Any, dim: int) -> int | None:
    """Return :meth:`Model.crop_width` of a checked crop, for any model."""
    width: int | None = getattr(model, "crop_width", lambda dim: dim)(check_dim(dim, model.dim))
    return width


def query_rows(table: Tensor | Rows, ids: Tensor | None) -> Tensor:
    """Read rows of a table, or all, in the precision of making queries, ``[B, *]``.

    The precision is float64. With gradients it is the table's own, at least float32: a step of
    training needs no more, and takes a third of the time. The gradient has a fixed order on every
    device.
    """
    rows: Any = table
    if ids is not None:
        rows = torch.embedding(table, ids) if isinstance(table, Tensor) else table.rows(ids)
    has_gradient = rows.requires_grad and rows.dtype != torch.float64
    return cast(Tensor, rows.float() if has_gradient else rows.double())


def distinct_relations(relations: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the distinct relations, and each one's place among them; or all, and None."""
    if relations.shape[0] == 1 or ops.waits_for(relations.device):
        return relations, None  # computing all is faster on a GPU than waiting for a count
    in_order = not torch.is_grad_enabled()  # ranking visits queries in the order of relations
    unique = torch.unique_consecutive if in_order else torch.unique
    distinct, position = unique(relations, return_inverse=True)
    return distinct, position


def check_dim(dim: int, model_dim: int, argument: str = "dims") -> int:
    """Check a crop width against the model's."""
    ops.check_int(argument, dim, 1, model_dim)
    return dim


def check_relation(relation: Tensor, width: int, why: str) -> None:
    """Check the number of columns of a table of relations."""
    if relation.shape[1] != width:
        raise ValueError(f"relation must have {width} columns ({why}); got {relation.shape[1]}")


def check_option(name: str, value: str, allowed: Sequence[str]) -> None:
    """Check that an option exists."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")

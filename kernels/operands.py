"""Operands of every computation: queries, and the candidates to score."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .scores import Score

PRECISIONS = ("float32", "bf16")
"""Roundings of operands of products; sums are float32, of the reference float64."""

_BIAS_CHUNK = 1 << 20  # numbers that are widened to float64 at once


@dataclass(frozen=True, eq=False)
class Panels:
    """Rows of a whole table, packed for a sweep; all numbers are finite. No bias, no factor.

    ``tensors`` are contiguous, on the CPU. For ``"float32"`` they are ``panels [P, num_features,
    planes, lanes]`` and ``norms [P]``, upper bounds on the norms in each panel. For few queries
    there are also ``bytes`` (csrc/host/byte_rows.h) with ``scale [1]``, or neither. For
    ``"int16"`` they are ``panels [P, bytes]`` (csrc/host/int8.h).
    """

    # format of the features: "float32", or "int16", which is two bytes
    number_format: str
    score: str  # score that reads the panels
    isa: str  # instruction set that reads the panels
    num_rows: int
    num_features: int
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Prepared:
    """Candidates with facts about their table; each fact is computed at its first use.

    One object serves all batches of a call, or a step of training, and never longer: a table may
    change. Tensors with torch's negative bit are replaced, since kernels read raw memory.
    """

    table: Tensor  # [N, G], any floating dtype and strides, read in place
    score: Score
    bias: Tensor | None = None  # [N] or [1], added to scores last
    factor: Tensor | None = None  # [N, D], or as wide as the widest crop: b of the rscf_* scores
    ids: Tensor | None = None  # int64 [M]: only these rows are candidates
    panels: Panels | None = None  # all rows, packed before: reading panels changes no result
    # facts that backends make of the candidates at first use, by the name of a backend
    kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not torch.compiler.is_compiling():
            for name in ("table", "bias", "factor"):
                value = getattr(self, name)
                if isinstance(value, Tensor) and value.is_neg():
                    object.__setattr__(self, name, value.resolve_neg())

    @cached_property
    def num_rows(self) -> int:
        """Count the rows of the table."""
        return len(self.table)

    @cached_property
    def num_features(self) -> int:
        """Count the features of the full width."""
        return self.table.shape[1] // self.score.planes

    @property
    def num_candidates(self) -> int:
        """Count the rows that are candidates."""
        return len(self.table if self.ids is None else self.ids)

    @cached_property
    def whole_bias(self) -> Tensor | None:
        """Return the bias as ``[N]``, with stride 0 for a single number."""
        return None if self.bias is None else self.bias.expand(len(self.table))

    @cached_property
    def float_bias(self) -> Tensor | None:
        """Return the bias in float32, contiguous ``[N]``."""
        return None if self.bias is None else self.bias.float().expand(len(self.table)).contiguous()

    @cached_property
    def bias_magnitude(self) -> Tensor | None:
        """Return the largest finite magnitude of the bias, a float64 scalar."""
        if self.bias is None or not len(self.bias):
            return None
        pieces = self.bias.split(_BIAS_CHUNK)
        sizes = [piece.double().abs().nan_to_num(0.0, posinf=0.0).max() for piece in pieces]
        return torch.stack(sizes).max()

    @cached_property
    def sorted_ids(self) -> Tensor | None:
        """Return the ids of the candidates, ascending."""
        return None if self.ids is None else self.ids.sort().values

    @cached_property
    def factor_reach(self) -> Tensor | None:
        """Return the largest magnitude in the factor, a float64 scalar."""
        return None if self.factor is None else largest_magnitude(self.factor)

    def only(self, ids: Tensor) -> "Prepared":
        """Make some rows the only candidates; facts about the table stay."""
        candidates = replace(self, ids=ids)
        for name in ("whole_bias", "float_bias", "bias_magnitude", "factor_reach"):
            candidates.__dict__[name] = getattr(self, name)
        return candidates

    def rows(self, some: slice | Tensor) -> "Prepared":
        """Return some of the rows as new candidates."""
        bias = self.bias
        if bias is not None and len(bias) == len(self.table):
            bias = bias[some]
        factor = None if self.factor is None else self.factor[some]
        return Prepared(self.table[some], self.score, bias, factor)


def largest_magnitude(values: Tensor) -> Tensor:
    """Return the largest magnitude, a float64 scalar, without a temporary."""
    low, high = torch.aminmax(values)
    return torch.maximum(-low, high).double()


@dataclass(frozen=True)
class Operands:
    """Queries, candidates and crops, checked once by ``kgfast.ops``."""

    queries: Tensor  # [B, F] float32 or float64
    candidates: Prepared
    # increasing crop widths in features: results get a leading axis
    dims: tuple[int, ...] | None = None
    # "bf16": losses over all candidates round queries, table and the gradient of scores to bfloat16
    # in products.
    precision: str = "float32"

    # facts of the candidates and the queries
    table: Tensor = field(init=False)
    score: Score = field(init=False)
    bias: Tensor | None = field(init=False)
    factor: Tensor | None = field(init=False)
    has_factor: bool = field(init=False)
    num_queries: int = field(init=False)
    num_features: int = field(init=False)  # features of the full width
    query_planes: int = field(init=False)  # stored reals per feature of a query
    crops: list[int] = field(init=False)  # increasing widths, or the full width

    def __post_init__(self) -> None:
        queries = self.queries
        if not torch.compiler.is_compiling() and isinstance(queries, Tensor) and queries.is_neg():
            object.__setattr__(self, "queries", queries.resolve_neg())
        of = self.candidates
        score, has_factor = of.score, of.factor is not None
        planes = 2 * score.planes + has_factor if score.is_rscf else score.planes
        width = of.table.shape[1] // score.planes
        facts = {
            "table": of.table,
            "score": score,
            "bias": of.bias,
            "factor": of.factor,
            "has_factor": has_factor,
            "num_queries": queries.shape[0],
            "num_features": width,
            "query_planes": planes,
            "crops": [width] if self.dims is None else [*self.dims],
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def of_queries(self, rows: slice | Tensor) -> "Operands":
        """Return operands of some of the queries."""
        if isinstance(rows, slice) and _is_all(rows, self.num_queries):
            return self
        return replace(self, queries=self.queries[rows])

    def of_rows(self, rows: slice) -> "Operands":
        """Return operands of some of the rows of the table."""
        if self.candidates.ids is None and _is_all(rows, len(self.table)):
            return self
        return replace(self, candidates=self.candidates.rows(rows))

    def without_bias(self) -> "Operands":
        """Drop the bias, to take a root of lengths."""
        if self.bias is None:
            return self
        return replace(self, candidates=replace(self.candidates, bias=None))


def _is_all(rows: slice, count: int) -> bool:
    return not rows.start and (rows.stop is None or rows.stop >= count)


class Known(NamedTuple):
    """Known answers of each query, CSR: in any order, duplicates count once."""

    indptr: Tensor  # int64 [B + 1]
    indices: Tensor  # int64 [nnz]


class Lists(NamedTuple):
    """Candidates of each query, CSR: each id once per row, in any order."""

    indptr: Tensor  # int64 [B + 1]
    indices: Tensor  # int64 [nnz]

    def row(self, query: int) -> Tensor:
        """Return the candidates of one query."""
        return self.indices[int(self.indptr[query]) : int(self.indptr[query + 1])]


class Counts(NamedTuple):
    """Integers from which ranks are made, int64 ``[B]`` or ``[C, B]`` each."""

    greater: Tensor
    equal: Tensor
    greater_excluded: Tensor
    equal_excluded: Tensor

    @classmethod
    def of(cls, counts: Tensor, operands: Operands) -> "Counts":
        """Split counts ``[C, 4, B]`` into tensors that share no memory."""
        kinds = counts[0] if operands.dims is None else counts.transpose(0, 1)
        return cls(*map(torch.clone, kinds))


class Above(NamedTuple):
    """Candidates of each query with scores that reach the query's threshold, as CSR."""

    indptr: Tensor  # int64 [B + 1]
    ids: Tensor  # int64 [nnz], ascending in each row
    scores: Tensor  # [nnz], canonical scores rounded to the dtype of the queries


class Need(NamedTuple):
    """Gradients of scores that are needed; a backend does not make the bias's gradient."""

    queries: bool
    table: bool
    factor: bool = False


class NamedRows(NamedTuple):
    """Rows in the gradients of an index: the named rows, and exceptions."""

    # int64 [*]: more ids, with zero rows if the index does not name them
    besides: Tensor | None = None
    # only ids in this range; their rows have the bits of the whole gradient
    within: slice | None = None


class Gradients(NamedTuple):
    """Gradients of scores, each in the operand's dtype; None if not needed.

    With ``ids`` (int64 ``[U]``, ascending, distinct) the gradients of table and factor have only
    these rows. If ``repeats``, ids may repeat: the first of equal ids has the gradient, and
    repetitions have zeros.
    """

    queries: Tensor | None = None
    table: Tensor | None = None
    factor: Tensor | None = None
    ids: Tensor | None = None
    repeats: bool = False

    def of_rows(self, rows: NamedRows) -> "Gradients":
        """Return the gradients of the needed rows."""
        ids, (besides, within) = self.ids, rows
        if ids is None or (besides is None and within is None):
            return self
        added = 0 if besides is None else len(besides)
        if besides is not None:
            ids = torch.cat([ids, besides])
        ids, order = ids.sort(stable=True)  # a gradient stands before the zeros of its id
        keep = torch.ones_like(ids, dtype=torch.bool)
        if not self.repeats:
            keep[1:] = ids[1:] != ids[:-1]
        if within is not None:
            keep &= (ids >= within.start) & (ids < within.stop)
        if within is not None or not self.repeats:  # a mask makes the host wait
            ids, order = ids[keep], order[keep]
        table, factor = (
            None if gradient is None else functional.pad(gradient, (0, 0, 0, added))[order]
            for gradient in (self.table, self.factor)
        )
        return self._replace(table=table, factor=factor, ids=ids)

    def spread(self, operands: Operands, need: Need) -> "Gradients":
        """Return gradients of the whole table and factor, zero in other rows."""

        def whole(like: Tensor | None, rows: Tensor | None) -> Tensor | None:
            if like is None or rows is None or self.ids is None:
                return None
            zeros = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
            add = zeros.index_add_ if self.repeats else zeros.index_copy_
            return add(0, self.ids, rows)  # zeros of repeats: the order does not matter

        return Gradients(
            self.queries,
            whole(operands.table, self.table) if need.table else None,
            whole(operands.factor, self.factor) if need.factor else None,
        )

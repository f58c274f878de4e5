"""Checks of operands that every operator makes before a kernel runs.

``check_*`` raise at once; on a device the host waits for the values. With deferred
:class:`~kgfast.kernels.checks.Checks`, returned values are safe to index with, and the error is
raised when the checks are read. ``safe_*`` raise at once or, within :func:`kgfast.unchecked`,
return values that are safe to index with.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.checks import (
    Checks,
    OutOfRangeError,
    checks_values,
    inside_of,
    rising_of,
)
from kgfast.kernels.operands import PRECISIONS, Known, Operands, Prepared, largest_magnitude
from kgfast.kernels.reference.trig import LARGEST_PHASE
from kgfast.kernels.scores import Moves, Score, get_score
from kgfast.ops.differentiable import full_precision

TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_QUERY_DTYPES = (torch.float32, torch.float64)


def check_tensor(name: str, value: Tensor) -> None:
    """Check that a value is a dense tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(value).__name__}")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be dense; got {value.layout}")


def check_number(name: str, value: Any) -> None:
    """Check that a value is a number of any type, or a tensor without axes."""
    is_number = isinstance(value, (int, float)) or hasattr(value, "__float__")
    if not is_number or getattr(value, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")


def check_bounded(name: str, value: float, low: float = -math.inf) -> None:
    """Check that a value is a finite number, of at least ``low``."""
    check_number(name, value)
    is_finite = (
        abs(value) <= sys.float_info.max  # an int may be larger than any float
        if isinstance(value, int)
        else -math.inf < value < math.inf
    )
    if not (is_finite and value >= low):
        least = "" if low == -math.inf else f" and at least {low}"
        raise ValueError(f"{name} must be finite{least}; got {value}")


def check_precision(precision: str) -> None:
    """Check the name of a precision of products."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")


def check_scale(scale: Tensor, queries: Tensor, score: str) -> None:
    """Check that queries of dot products can be multiplied by a scale."""
    check_tensor("scale", scale)
    if scale.ndim:
        raise ValueError(f"scale must be one number, of no axes; got shape {list(scale.shape)}")
    if scale.dtype not in TABLE_DTYPES:
        raise TypeError(f"scale must be of floating point; got {scale.dtype}")
    if score != "dot":
        raise ValueError(f"scale is for dot products; got score {score!r}")
    check_device("scale", scale, queries, "queries")


def checked_operands(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    *,
    table_name: str = "candidates",
    precision: str = "float32",
    scale: Tensor | None = None,
) -> Operands:
    """Make operands after checks of names, shapes, dtypes and devices.

    Queries in half precision, as under autocast, become float32, which is exact.
    """
    queries, candidates = full_precision(queries), Prepared(table, get_score(score), bias, factor)
    check_candidates(candidates, dims, table_name)
    check_queries(queries, candidates)
    return Operands(queries, candidates, None if dims is None else tuple(dims), precision, scale)


def check_candidates(
    candidates: Prepared, dims: Sequence[int] | None, table_name: str = "candidates"
) -> None:
    """Check shapes, dtypes and devices of candidates."""
    table, score = candidates.table, candidates.score
    _check_rows(table_name, table, TABLE_DTYPES)
    width = table.shape[1]
    if width < score.planes or width % score.planes:
        raise ValueError(
            f"{table_name}: {score.name} needs rows of pairs re, im; got {width} columns"
        )
    if dims is not None:
        _check_dims(dims, score.num_features(width))
    if candidates.factor is not None:
        _check_factor(candidates.factor, table, score, dims)
    if candidates.bias is not None:
        _check_bias(candidates.bias, table)
    if candidates.ids is not None:
        check_index("candidate_ids", candidates.ids, (None,), table)


def check_queries(queries: Tensor, candidates: Prepared) -> None:
    """Check shapes, dtypes and devices of queries, given checked candidates."""
    _check_rows("queries", queries, _QUERY_DTYPES)
    table, score, has_factor = candidates.table, candidates.score, candidates.factor is not None
    planes = 2 * score.planes + has_factor if score.is_rscf else score.planes
    expected = table.shape[1] // score.planes * planes
    if queries.shape[1] != expected:
        why = "as candidates do"
        if score.is_rscf:
            parts = "query, scale and angle" if has_factor else "query and scale, without a factor"
            why = f"{parts}, for candidates of {table.shape[1]}"
        raise ValueError(f"queries must have {expected} columns, {why}; got {queries.shape[1]}")
    if queries.device != table.device:
        check_device("queries", queries, table)


def _check_rows(name: str, rows: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(rows, Tensor) or rows.layout != torch.strided:
        check_tensor(name, rows)
    if rows.ndim != 2:
        raise ValueError(f"{name} must have two axes; got shape {list(rows.shape)}")
    if rows.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be {names}; got {rows.dtype}")


def _check_factor(
    factor: Tensor, candidates: Tensor, facts: Score, dims: Sequence[int] | None
) -> None:
    if not facts.is_rscf:
        raise ValueError(f"factor: score {facts.name} takes none")
    check_tensor("factor", factor)
    if factor.dtype not in TABLE_DTYPES:
        raise TypeError("factor must be a floating-point tensor")
    count, whole = len(candidates), facts.num_features(candidates.shape[1])
    least = max(dims, default=whole) if dims else whole
    if factor.ndim != 2 or len(factor) != count or not least <= factor.shape[1] <= whole:
        width = f"{whole}" if least == whole else f"{least} .. {whole}"
        raise ValueError(f"factor must have shape [{count}, {width}]; got {list(factor.shape)}")
    check_device("factor", factor, candidates)


def _check_query_width(queries: Tensor, width: int, facts: Score, has_factor: bool) -> None:
    expected = facts.query_width(width, has_factor)
    if queries.shape[1] == expected:
        return
    why = "as candidates do"
    if facts.is_rscf:
        planes = "query, scale and angle" if has_factor else "query and scale, without a factor"
        why = f"{planes}, for candidates of {width}"
    raise ValueError(f"queries must have {expected} columns, {why}; got {queries.shape[1]}")


def check_moves(operands: Operands, checks: Checks | None = None) -> None:
    """Check, now or later, that no angle ``a b`` is out of the range of the canonical sine."""
    if operands.factor is None or (checks is None and not checks_values()):
        return
    largest = _largest_angle(operands)
    if largest is None:
        return
    if checks is not None and checks.deferred:
        # a NaN is left to the check of finiteness, which names the row
        return checks.keep(~(largest > LARGEST_PHASE), lambda: check_moves(operands))
    if not bool(largest > LARGEST_PHASE):
        return
    moves, reach = _moves(operands), operands.candidates.factor_reach
    assert reach is not None
    row = int((moves.abs().amax(1).double() * reach > LARGEST_PHASE).nonzero()[0])
    angle = float(largest_magnitude(moves[row]) * reach)
    raise OutOfRangeError(
        f"queries[{row}] and factor: angles up to {angle:.3g} radians; at most 2^20 are served"
    )


def _largest_angle(operands: Operands) -> Tensor | None:
    """Return the largest magnitude of an angle, a float64 scalar; None if there is no angle."""
    factor = operands.factor
    if factor is None or operands.score.moves is not Moves.PHASE:
        return None
    if not (operands.num_queries and len(factor)):
        return None
    reach = operands.candidates.factor_reach
    assert reach is not None
    return largest_magnitude(_moves(operands)) * reach


def _moves(operands: Operands) -> Tensor:
    queries = operands.queries
    return queries[:, -(queries.shape[1] // operands.query_planes) :]


def check_device(name: str, tensor: Tensor, candidates: Tensor, whose: str = "candidates") -> None:
    """Check that a tensor is on the device of candidates, which errors call ``whose``."""
    if tensor.device != candidates.device:
        raise ValueError(
            f"{name} must be on {candidates.device}, as {whose} are; got {tensor.device}"
        )


def _check_bias(bias: Tensor, candidates: Tensor) -> None:
    check_tensor("bias", bias)
    if bias.dtype not in TABLE_DTYPES:
        raise TypeError("bias must be a floating-point tensor")
    if bias.shape not in ((len(candidates),), (1,)):
        raise ValueError(f"bias must have shape [{len(candidates)}] or [1]; got {list(bias.shape)}")
    check_device("bias", bias, candidates)


def _check_dims(dims: Sequence[int], num_features: int) -> None:
    if not hasattr(dims, "__len__"):
        raise TypeError(f"dims must be a sequence of ints; got {type(dims).__name__}")
    if len(dims) == 0:
        raise ValueError("dims must name at least one crop width")
    for position, dim in enumerate(dims):
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dims[{position}] must be an int; got {dim!r}")
        if not 1 <= dim <= num_features:
            raise ValueError(f"dims[{position}] must be in 1 .. {num_features}; got {dim}")


def check_index(
    name: str,
    index: Tensor,
    shape: tuple[int | None],
    candidates: Tensor,
    whose: str = "candidates",
) -> None:
    """Check the type, shape and device of an index into rows that errors call ``whose``."""
    check_tensor(name, index)
    if index.dtype != torch.int64:
        raise TypeError(f"{name} must be int64; got {index.dtype}")
    if index.ndim != 1 or (shape[0] is not None and index.shape[0] != shape[0]):
        expected = "one axis" if shape[0] is None else f"shape [{shape[0]}]"
        raise ValueError(f"{name} must have {expected}; got shape {list(index.shape)}")
    check_device(name, index, candidates, whose)


def checked_known(
    indptr: Tensor | None, indices: Tensor | None, operands: Operands
) -> Known | None:
    """Make the known answers of queries after checks of shapes, dtypes and devices."""
    if indptr is None and indices is None:
        return None
    if indptr is None or indices is None:
        raise ValueError("exclude_indptr and exclude_indices must be given together")
    check_index("exclude_indptr", indptr, (operands.num_queries + 1,), operands.table)
    check_index("exclude_indices", indices, (None,), operands.table)
    return Known(indptr, indices)


def check_ids(name: str, ids: Tensor, count: int, checks: Checks | None = None) -> Tensor:
    """Check that every id is a row of a table of ``count``; clamp ids if checks are deferred."""
    if checks is not None and checks.deferred and count:
        inside = inside_of(ids, count)
        checks.keep((inside == ids).all(), lambda: check_ids(name, ids, count))
        return inside
    if not ids.numel():
        return ids
    low, high = torch.aminmax(ids)
    if int(low) < 0 or int(high) >= count:
        place = ((ids < 0) | (ids >= count)).nonzero()[0].tolist()
        allowed = f"0 .. {count - 1}" if count else "empty: the table has no rows"
        raise ValueError(
            f"{name}[{', '.join(map(str, place))}] must be in {allowed}; got {int(ids[*place])}"
        )
    return ids


def safe_ids(name: str, ids: Tensor, count: int) -> Tensor:
    """Return ids that are rows of a table of ``count``: checked, or clamped."""
    if checks_values() or not count:
        return check_ids(name, ids, count)
    return inside_of(ids, count)


def check_indptr(
    indptr: Tensor, nnz: int, kind: str = "exclude", checks: Checks | None = None
) -> Tensor:
    """Check that the row pointers ``<kind>_indptr`` rise from 0 to the number of entries.

    If checks are deferred, the result are pointers that rise.
    """
    if checks is not None and checks.deferred:
        rises, rising = rising_of(indptr, nnz)
        checks.keep(rises, lambda: check_indptr(indptr, nnz, kind))
        return rising
    if not (int(indptr[0]) == 0 and int(indptr[-1]) == nnz and bool((indptr.diff() >= 0).all())):
        raise ValueError(
            f"{kind}_indptr must rise from 0 to len({kind}_indices) = {nnz}; "
            f"got {int(indptr[0])} .. {int(indptr[-1])}"
        )
    return indptr


def check_unique(name: str, ids: Tensor) -> None:
    """Check that no id occurs twice."""
    if bool((ids[1:] > ids[:-1]).all()):  # ascending ids need no sort
        return
    ordered = ids.sort().values
    repeated = (ordered[1:] == ordered[:-1]).nonzero()
    if len(repeated):
        value = int(ordered[int(repeated[0])])
        row = int((ids == value).nonzero()[1])
        raise ValueError(f"{name}[{row}] must not repeat an earlier id; got {value} again")


def check_apart(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Check that two tensors share no byte, as far as their ends tell."""
    if not (tensor.numel() and other.numel()):
        return
    (first, end), (other_first, other_end) = _extent(tensor), _extent(other)
    if first < other_end and other_first < end:
        raise ValueError(f"{name} must not share memory with {other_name}")


def _extent(tensor: Tensor) -> tuple[int, int]:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)  # strides are not negative
    first = tensor.data_ptr()
    return first, first + (last + 1) * tensor.element_size()

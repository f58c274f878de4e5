"""Checks of names, shapes, dtypes and devices that every operator makes before a kernel runs."""

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.ops.differentiable import full_precision
from kgfast.text import shown

TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_QUERY_DTYPES = (torch.float32, torch.float64)


def check_tensor(name: str, value: Tensor, dtypes: Sequence[torch.dtype] = ()) -> None:
    """Check that a value is a dense tensor, of one of the dtypes if any are named."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(value).__name__}")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be dense; got {value.layout}")
    if dtypes and value.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be {names}; got {value.dtype}")


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | None]) -> None:
    """Check the shape of a tensor; an axis of None may have any size."""
    fits = tensor.ndim == len(shape)
    for wanted_size, size in zip(shape, tensor.shape, strict=False):
        fits = fits and wanted_size in (None, size)
    if not fits:
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}]; got {list(tensor.shape)}")


def check_device(name: str, tensor: Tensor, like: Tensor, whose: str = "candidates") -> None:
    """Check that a tensor is on the device of ``like``; errors call the latter ``whose``."""
    if tensor.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, as {whose} are; got {tensor.device}")


def check_index(
    name: str,
    index: Tensor,
    shape: Sequence[int | None],
    like: Tensor,
    whose: str = "candidates",
) -> None:
    """Check the type, shape and device of an index into rows that errors call ``whose``."""
    if getattr(index, "dtype", None) is not torch.int64 or index.layout != torch.strided:
        check_tensor(name, index, (torch.int64,))
    check_shape(name, index, shape)
    if index.device != like.device:
        check_device(name, index, like, whose)


def check_int(name: str, value: object, low: int | None = None, high: int | None = None) -> None:
    """Check that a value is an int, of at least ``low`` and at most ``high``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int; got {shown(value)}")
    if low is not None and (value < low or (high is not None and value > high)):
        allowed = f"at least {low}" if high is None else f"in {low} .. {high}"
        raise ValueError(f"{name} must be {allowed}; got {shown(value)}")


def check_number(name: str, value: Any) -> None:
    """Check that a value is a number of any type, or a tensor without axes."""
    is_number = isinstance(value, (int, float)) or hasattr(value, "__float__")
    if not is_number or getattr(value, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a number; got {type(value).__name__}")


def check_bounded(name: str, value: float, low: float = -math.inf) -> None:
    """Check that a value is a finite number, of at least ``low``."""
    check_number(name, value)
    number = value if isinstance(value, int) else float(value)  # an int may be above all floats
    if not (abs(number) <= sys.float_info.max and number >= low):
        least = "" if low == -math.inf else f" and at least {low}"
        raise ValueError(f"{name} must be finite{least}; got {value}")


def checked_thresholds(threshold: Tensor | float, count: int) -> Tensor:
    """Return the thresholds of above(), float64 ``[count]`` on the CPU, after checks."""
    value: Any = threshold
    if isinstance(value, bool) or not isinstance(value, Tensor | Real):
        raise TypeError(
            f"threshold must be a number, or a tensor of one for each query; got {shown(value)}"
        )
    if not isinstance(value, Tensor):
        value = torch.tensor(float(value), dtype=torch.float64, device="cpu")
    if not value.is_floating_point():
        raise TypeError(f"threshold must be floating point; got {value.dtype}")
    if value.ndim and value.shape != (count,):
        raise ValueError(
            f"threshold must be one number, or have shape [{count}]; got {list(value.shape)}"
        )
    with ieee_arithmetic():
        thresholds: Tensor = value.detach().to("cpu", torch.float64).expand(count).clone()
    bad = thresholds.isnan().nonzero()
    if len(bad):
        raise ValueError(f"threshold[{int(bad[0])}] must be a number or an infinity; got nan")
    return thresholds


def check_share(name: str, value: float) -> None:
    """Check that a value is a number in ``[0, 1)``."""
    check_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1); got {value}")


def checked_operands(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    ids: Tensor | None = None,
    *,
    table_name: str = "candidates",
    precision: str = "float32",
) -> Operands:
    """Make operands after checks of names, shapes, dtypes and devices.

    Queries in half precision, as under autocast, become float32, which is exact.
    """
    queries = full_precision(queries)
    candidates = Prepared(table, get_score(score), bias, factor, ids)
    check_candidates(candidates, dims, table_name)
    check_queries(queries, candidates)
    return Operands(queries, candidates, None if dims is None else tuple(dims), precision)


def check_candidates(
    candidates: Prepared, dims: Sequence[int] | None, table_name: str = "candidates"
) -> None:
    """Check shapes, dtypes and devices of candidates."""
    table, score = candidates.table, candidates.score
    _check_rows(table_name, table, TABLE_DTYPES)
    count, width = table.shape
    if width < score.planes or width % score.planes:
        raise ValueError(
            f"{table_name}: {score.name} needs rows of pairs re, im; got {width} columns"
        )
    if dims is not None:
        _check_dims(dims, score.num_features(width))
    for name, values in (("factor", candidates.factor), ("bias", candidates.bias)):
        if values is not None:
            check_tensor(name, values, TABLE_DTYPES)
            if values.device != table.device:
                check_device(name, values, table)
    if candidates.factor is not None:
        _check_factor(candidates, score.num_features(width), dims)
    if candidates.bias is not None and candidates.bias.shape not in ((count,), (1,)):
        shape = list(candidates.bias.shape)
        raise ValueError(f"bias must have shape [{count}] or [1]; got {shape}")
    if candidates.ids is not None:
        check_index("candidate_ids", candidates.ids, (None,), table)


def check_queries(queries: Tensor, candidates: Prepared) -> None:
    """Check shapes, dtypes and devices of queries, given checked candidates."""
    _check_rows("queries", queries, _QUERY_DTYPES)
    table, score, has_factor = candidates.table, candidates.score, candidates.factor is not None
    planes = 2 * score.planes + has_factor if score.is_rscf else score.planes
    expected = table.shape[1] // score.planes * planes
    if queries.shape[1] != expected:
        why = "as rows of candidates do"
        if score.is_rscf:
            parts = "query, scale and angle" if has_factor else "query and scale, without a factor"
            why = f"{parts}, for candidates of {table.shape[1]}"
        raise ValueError(f"queries must have {expected} columns, {why}; got {queries.shape[1]}")
    if queries.device != table.device:
        check_device("queries", queries, table)


def _check_rows(name: str, rows: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    check_tensor(name, rows, dtypes)
    if rows.ndim != 2:
        raise ValueError(f"{name} must have two axes; got shape {list(rows.shape)}")


def _check_factor(candidates: Prepared, whole: int, dims: Sequence[int] | None) -> None:
    factor, score, count = candidates.factor, candidates.score, candidates.num_rows
    assert factor is not None
    if not score.is_rscf:
        raise ValueError(f"factor: score {score.name} takes none")
    least = max(dims, default=whole) if dims else whole
    if factor.ndim != 2 or len(factor) != count or not least <= factor.shape[1] <= whole:
        width = f"{whole}" if least == whole else f"{least} .. {whole}"
        raise ValueError(f"factor must have shape [{count}, {width}]; got {list(factor.shape)}")


def _check_dims(dims: Sequence[int], num_features: int) -> None:
    if not hasattr(dims, "__len__"):
        raise TypeError(f"dims must be a sequence of ints; got {type(dims).__name__}")
    if len(dims) == 0:
        raise ValueError("dims must name at least one crop width")
    for position, dim in enumerate(dims):
        check_int(f"dims[{position}]", dim, 1, num_features)
        if position and dim <= dims[position - 1]:
            raise ValueError(f"dims must increase; dims[{position}] is {dim}")


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

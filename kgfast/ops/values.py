"""Checks of values: ids, row pointers and numbers that are not finite, by one rule for all.

``check_*`` raise at once; on a device the host waits for the values. With deferred
:class:`~kgfast.kernels.checks.Checks`, returned values are safe to index with, and the error is
raised when the checks are read. ``safe_*`` raise at once or, within :func:`kgfast.unchecked`,
return values that are safe to index with.

A NaN or an infinity in a row of queries, candidates or factors that takes part is an error that
names the row. The rule is the same for a bias, except -inf, where a bias is a mask:

===================== =========================================================================
rank counts, top-k    refused as any other (``candidate_ids`` leaves candidates out)
pairwise, indexed     the score is -inf
losses over all       the candidate is left out: no share of the loss, no gradient. Its label must
                      be 0: a target, a positive and smoothing are errors
===================== =========================================================================

Finite numbers whose scores overflow give the results of torch. The scores are checked first, at no
cost: if a number of a row is not finite, no score of the row is finite.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kgfast.kernels.checks import (
    Checks,
    NonFiniteError,
    OutOfRangeError,
    checks_values,
    inside_of,
    rising_of,
    without_values,
)
from kgfast.kernels.operands import Operands, largest_magnitude
from kgfast.kernels.reference.canonical import crop
from kgfast.kernels.reference.trig import LARGEST_PHASE
from kgfast.kernels.scores import Moves

_CHUNK = 1 << 22  # numbers that are checked together


@contextmanager
def unchecked() -> Iterator[None]:
    """Skip the checks of values in a ``with`` block: the host waits for no device.

    Numbers may then be NaN or infinite, ids out of range (they are clamped: nothing is read out of
    bounds), positives missing, and results undefined. Shapes, dtypes and devices are still checked.
    A step with shared negatives and fixed shapes then never waits, so that a CUDA graph can capture
    the step (docs/reference/losses.md). The block applies to its own thread and context; a backward
    may run later. ``rank()`` and ``topk()`` refuse the block. On the CPU optimizers of rows still
    check ids, because they write.

    Examples
    --------
    >>> import torch
    >>> from kgfast import ops
    >>> rows, table = torch.zeros(1, 2), torch.tensor([[0.0, 1.0], [3.0, 4.0]])
    >>> with unchecked():
    ...     ops.indexed_scores(rows, table, torch.tensor([[1, 7]]), "l2").tolist()
    [[-5.0, -5.0]]
    """
    with without_values():
        yield


def refuse_unchecked(name: str) -> None:
    """Raise a RuntimeError within :func:`unchecked`."""
    if not checks_values():
        raise RuntimeError(
            f"{name} must check the values of its arguments: call {name} outside of "
            "kgfast.unchecked()"
        )


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


def check_moves(operands: Operands, checks: Checks | None = None) -> None:
    """Check, now or later, that no angle ``a b`` is out of the range of the canonical sine."""
    factor, queries = operands.factor, operands.queries
    if factor is None or operands.score.moves is not Moves.PHASE:
        return
    skips = not checks_values() if checks is None else checks.allows_nan
    if skips or not (operands.num_queries and len(factor)):
        return
    moves = queries[:, -(queries.shape[1] // operands.query_planes) :]
    reach = operands.candidates.factor_reach
    assert reach is not None
    is_beyond = largest_magnitude(moves) * reach > LARGEST_PHASE
    if checks is not None and checks.deferred:
        # a NaN is left to the check of finiteness, which names the row
        checks.keep(~is_beyond, lambda: check_moves(operands))
    elif bool(is_beyond):
        row = int((moves.abs().amax(1).double() * reach > LARGEST_PHASE).nonzero()[0])
        angle = float(largest_magnitude(moves[row]) * reach)
        raise OutOfRangeError(
            f"queries[{row}] and factor: angles up to {angle:.3g} radians; at most 2^20 are served"
        )


def check_scores(
    scores: Tensor,
    operands: Operands,
    index: Tensor | None = None,
    table_name: str = "candidates",
) -> None:
    """Raise a NonFiniteError that names the row behind a score that is not finite.

    ``scores`` may be sums of scores; ``index`` names the rows of the table that take part, all by
    default.
    """
    if checks_values() and not bool(scores.sum().isfinite()):
        name_not_finite(operands, index, table_name)


def name_not_finite(
    operands: Operands, index: Tensor | None = None, table_name: str = "candidates"
) -> None:
    """Raise for the first number among the operands that is not finite, if any."""
    score, bias, factor = operands.score, operands.bias, operands.factor
    width = None if operands.dims is None else max(operands.dims)
    planes = operands.query_planes
    ids = None if index is None else index.unique()
    check_rows("queries", operands.queries, None, lambda rows: crop(rows, score, width, planes))
    check_rows(table_name, operands.table, ids, lambda rows: crop(rows, score, width))
    if factor is not None:
        check_rows("factor", factor, ids, lambda rows: rows[:, :width])
    if bias is not None:
        each = ids if len(bias) > 1 else None
        check_rows("bias", bias[:, None], each, lambda rows: rows.clamp(min=0.0))


def check_rows(
    name: str,
    values: Tensor,
    ids: Tensor | None = None,
    numbers_of: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> None:
    """Raise for the first row, among the rows of ids, with a part that is not finite."""
    row = first_bad_row(values, ids, numbers_of)
    if row is not None:
        raise NonFiniteError(
            f"{name}: row {row} holds a NaN or an infinity; every number that takes part must be "
            "finite"
        )


def first_bad_row(
    values: Tensor,
    ids: Tensor | None = None,
    numbers_of: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> int | None:
    """Return the first row, among the rows of ids, with a part that is not finite."""
    step = max(1, _CHUNK // max(1, values.shape[1]))
    for first in range(0, len(values) if ids is None else len(ids), step):
        rows = slice(first, first + step) if ids is None else ids[first : first + step]
        bad = (~numbers_of(values[rows]).isfinite().all(1)).nonzero()
        if len(bad):
            place = first + int(bad[0])
            return place if ids is None else int(ids[place])
    return None

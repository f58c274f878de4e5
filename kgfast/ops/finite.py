"""Numbers that are not finite: one rule for every operator and backend.

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

import torch
from torch import Tensor

from kgfast.kernels.checks import NonFiniteError, checks_values
from kgfast.kernels.operands import Operands
from kgfast.kernels.reference.canonical import crop

_CHUNK = 1 << 22  # numbers that are checked together


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
    if operands.scale is not None and not bool(operands.scale.isfinite()):
        raise NonFiniteError(f"scale must be finite; got {operands.scale.item()}")
    if bias is not None:
        each = ids if len(bias) > 1 else None
        check_rows("bias", bias[:, None], each, lambda rows: rows.clamp(min=0.0))


def check_rows(
    name: str,
    values: Tensor,
    ids: Tensor | None = None,
    part: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> None:
    """Raise for the first row, among the rows of ids, with a part that is not finite."""
    for first, count in _chunks(len(values) if ids is None else len(ids), values.shape[1]):
        rows = slice(first, first + count) if ids is None else ids[first : first + count]
        bad = (~part(values[rows]).isfinite().all(1)).nonzero()
        if len(bad):
            place = first + int(bad[0])
            raise NonFiniteError(
                f"{name}: row {place if ids is None else int(ids[place])} holds a NaN or an "
                f"infinity; every number that takes part must be finite"
            )


def _chunks(count: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK // max(1, width))
    for first in range(0, count, step):
        yield first, step


def check_mask(
    bias: Tensor | None, count: int, positives: Tensor, name: str, smoothing: tuple[str, float]
) -> None:
    """Check that labels are 0 where a bias of -inf leaves a candidate out.

    ``count`` is N. ``positives``, int64 ``[P]`` and called ``name`` in errors, are the candidates
    with their own labels. ``smoothing``, a name and a value, gives every candidate a label.
    """
    if bias is None or not checks_values():
        return
    masked = (bias == -torch.inf).expand(count)
    if not bool(masked.any()):
        return
    if smoothing[1]:
        row = int(masked.nonzero()[0])
        raise ValueError(
            f"{smoothing[0]} must be 0 where a bias is -inf (row {row}), which leaves a candidate "
            f"out: a label would make the loss infinite; got {smoothing[1]}"
        )
    hit = masked[positives].nonzero()
    if len(hit):
        place = int(hit[0])
        raise ValueError(
            f"{name}[{place}] = {int(positives[place])} has a bias of -inf, which leaves that "
            f"candidate out: the loss would be infinite"
        )

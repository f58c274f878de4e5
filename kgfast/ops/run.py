"""Engine of every consumer, on operands: the entry for ``rank()``, ``topk()`` and other rooms.

Callers check names, shapes, dtypes and devices (:mod:`kgfast.ops.checks`); this module checks
values. Operators of ``torch.library`` call the same functions.
"""

import warnings
from collections.abc import Sequence
from functools import cache, partial
from typing import cast

import torch
from torch import Tensor

from kgfast.kernels.above import above as find_above
from kgfast.kernels.above import lowest_scores
from kgfast.kernels.checks import Checks, check_finite, checks_values
from kgfast.kernels.labels import Bce, CrossEntropy, LossChecks, LossNeed, LossRows, LossTotal
from kgfast.kernels.losses import Losses
from kgfast.kernels.operands import Above, Counts, Known, Lists, Operands, Prepared
from kgfast.kernels.passes import TORCH_PASSES, Passes
from kgfast.kernels.reference.rank import target_scores as canonical_target_scores
from kgfast.kernels.scores import get_score
from kgfast.ops.differentiable import chosen_backend, no_autocast
from kgfast.ops.dispatch import backend_for, get_backend
from kgfast.ops.values import (
    check_ids,
    check_indptr,
    check_moves,
    check_scores,
    check_unique,
)

__all__ = [
    "CrossEntropy",
    "Operands",
    "Passes",
    "Prepared",
    "above",
    "checks_for",
    "loss_value",
    "operands_of",
    "passes_of",
    "prepare",
    "rank_counts",
    "target_scores",
    "topk",
]


def checks_for(device: torch.device, *, allows_nan: bool = False) -> Checks:
    """Make the checks of one call: deferred, unless the backend waits for the device anyway."""
    deferred = get_backend(backend_for(device)).defers_checks
    return Checks(deferred=deferred, allows_nan=allows_nan)


def prepare(candidates: Prepared, checks: Checks) -> Prepared:
    """Check ids and bias of candidates; returned ids are safe to index with."""
    if candidates.bias is not None and not checks.allows_nan:
        bias = candidates.bias
        checks.require(lambda: bias.isfinite().all(), lambda: check_finite("bias", bias))
    ids = candidates.ids
    if ids is None:
        return candidates
    safe = check_ids("candidate_ids", ids, candidates.num_rows, checks)
    checks.require(
        lambda: (ids.sort().values.diff() != 0).all(), lambda: check_unique("candidate_ids", ids)
    )
    return Prepared(candidates.table, candidates.score, candidates.bias, candidates.factor, safe)


def operands_of(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    precision: str = "float32",
) -> Operands:
    """Make operands from the flat arguments of an operator."""
    prepared = Prepared(table, get_score(score), bias, factor)
    return Operands(queries, prepared, None if dims is None else tuple(dims), precision)


def passes_of(queries: Tensor) -> Passes:
    """Return the passes of the losses, of the backend that serves ``queries``."""
    # A backend that fuses losses has no passes.
    return getattr(get_backend(chosen_backend(queries)), "passes", TORCH_PASSES)


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    lists: Lists | None = None,
    target_scores: Tensor | None = None,
) -> Counts:
    """Count like :func:`kgfast.ops.rank_counts`, among prepared candidates.

    ``lists`` has the checked candidates of each query. Without lists, ``target_scores`` may have
    canonical scores, float64 ``[C, B]``, of targets in another table, which are -1.
    """
    if target_scores is None:
        targets = check_ids("targets", targets, operands.candidates.num_rows, checks)
    targets = targets.contiguous()
    known = _checked_known(operands, known, checks)
    check_moves(operands, checks)
    backend = get_backend(backend_for(operands.table.device))
    with no_autocast(operands.queries.device):
        return backend.rank_counts(operands, targets, known, checks, target_scores, lists)


def target_scores(operands: Operands, targets: Tensor, checks: Checks) -> Tensor:
    """Return canonical scores of the targets, which are rows, at every crop, ``[C, B]``."""
    check_ids("targets", targets, operands.candidates.num_rows)
    with no_autocast(operands.queries.device):
        return canonical_target_scores(operands, targets, checks)


def topk(
    operands: Operands, k: int, known: Known | None, checks: Checks, lists: Lists | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best answers like :func:`kgfast.ops.topk` with ``pad``.

    ``lists`` has the checked candidates of each query.
    """
    known = None if known is None else _checked_known(operands, known, checks)
    check_moves(operands, checks)
    backend = get_backend(backend_for(operands.table.device))
    with no_autocast(operands.queries.device):
        return backend.topk(operands, k, known, checks, lists)


def above(
    operands: Operands,
    thresholds: Tensor,
    known: Known | None,
    checks: Checks,
    most: int,
) -> Above | int:
    """Return all candidates of one crop with scores, as :func:`topk` has them, of at least these.

    ``thresholds`` are float64 ``[B]``. The result is only the number of candidates if that is above
    ``most``, or if ``most`` is negative.
    """
    check_moves(operands, checks)
    known = None if known is None else _checked_known(operands, known, checks)
    backend = get_backend(backend_for(operands.table.device))
    with no_autocast(operands.queries.device):
        lowest = lowest_scores(thresholds, operands.queries.dtype)
        return find_above(backend, operands, lowest, known, checks, most)


def rising(known: Known, checks: Checks) -> Known:
    """Return known answers with row pointers that are checked, now or later."""
    indptr = check_indptr(known.indptr, len(known.indices), checks=checks)
    return Known(indptr, known.indices)


def _checked_known(operands: Operands, known: Known, checks: Checks) -> Known:
    """Return known answers with ids that are checked, now or later; row pointers rise."""
    count = operands.candidates.num_rows
    indices = check_ids("exclude_indices", known.indices, count, checks)
    return Known(known.indptr.contiguous(), indices.contiguous())


def losses_of(operands: Operands, backend: str | None = None) -> Losses:
    """Return the losses of a backend; say it once if their products have another precision."""
    chosen = get_backend(backend or chosen_backend(operands.queries))
    if operands.precision not in chosen.precisions:
        _warn_of_float32(operands.precision)
    return cast(Losses, chosen.losses)


@cache
def _warn_of_float32(precision: str) -> None:
    warnings.warn(
        f"precision: {precision} is for GPUs; on the CPU losses multiply in float32", stacklevel=2
    )


def loss_value(
    operands: Operands,
    loss: Bce | CrossEntropy,
    *,
    backend: str | None = None,
    keep: bool = False,
) -> LossRows:
    """Return row losses over all candidates, as :func:`kgfast.ops.bce` and ``cross_entropy``.

    ``keep`` is that of :meth:`kgfast.kernels.losses.Losses.value`.
    """
    with no_autocast(operands.queries.device):
        losses, checks = losses_of(operands, backend), _loss_checks(operands, loss)
        return losses.value(operands, loss, checks, keep=keep)


def loss_total(
    operands: Operands, loss: Bce | CrossEntropy, divisor: float, backend: str, need: LossNeed
) -> LossTotal:
    """Return the sum of :func:`loss_value`, divided, and the gradients."""
    with no_autocast(operands.queries.device):
        losses, checks = losses_of(operands, backend), _loss_checks(operands, loss)
        return losses.value_and_gradients(operands, loss, divisor, need, checks)


def _loss_checks(operands: Operands, loss: Bce | CrossEntropy) -> LossChecks | None:
    """Return the checks of a loss; None if values are not checked."""
    if operands.candidates.num_rows and not checks_values():
        return None
    check_labels = partial(_check_label_values, operands, loss)
    return LossChecks(check_labels, lambda linear: check_scores(linear, operands))


def _check_label_values(operands: Operands, loss: Bce | CrossEntropy) -> None:
    """Check labels: every row has a positive, ids are in range, masked candidates have label 0."""
    if isinstance(loss, CrossEntropy):
        name, ids, smoothing = "targets", loss.targets, ("label_smoothing", loss.smoothing)
    else:
        name, ids, smoothing = "positive_indices", loss.indices, ("label_c", loss.c)
        check_indptr(loss.indptr, len(ids), "positive")
        empty = (loss.indptr.diff() == 0).nonzero()
        if len(empty):
            row = int(empty[0])
            raise ValueError(f"positive_indptr: row {row} has no positives; every query needs one")
    count = operands.candidates.num_rows
    check_ids(name, ids, count)
    if operands.bias is not None:
        masked = (operands.bias == -torch.inf).expand(count)
        rows = masked.nonzero()[:, 0] if smoothing[1] else ids[masked[ids]]
        if len(rows):
            raise ValueError(
                f"bias: row {int(rows[0])} is -inf, which leaves that candidate out: {name} and "
                f"{smoothing[0]} must give the label 0, or the loss would be infinite"
            )

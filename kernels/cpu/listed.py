"""Candidates that each query lists, on the CPU: gathered in place, canonical if open.

A float32 pass with a proven bound decides most pairs (host/listed.cpp). Canonical scores decide the
rest, and all pairs of rscf scores and of float64 operands. Memory: some bytes per pair for 2,048
pairs, or for one query's list for the best k, on each thread.
"""

from torch import Tensor

from ..checks import Checks
from ..operands import Counts, Known, Lists, Operands
from . import extension
from .crops import Crops
from .views import arguments_of, raise_nonfinite


def list_counts(
    operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
) -> Counts:
    """Count; the contract of :meth:`kgfast.kernels.backend.Backend.list_counts`."""
    crops = Crops.of(operands)
    shape = (len(crops.distinct), 4, len(targets))
    counts = targets.new_empty(shape)
    arguments = arguments_of(operands, operands.candidates.whole_bias)
    targets, lists, known = targets.contiguous(), Lists(*_contiguous(lists)), _contiguous(known)
    for dim, of_crop in zip(crops.distinct, counts, strict=True):
        raise_nonfinite(
            extension.list_counts(
                *arguments,
                dim,
                lists=lists,
                known=known,
                nan_worst=checks.allows_nan,
                targets=targets,
                counts=of_crop,
            )
        )
    return Counts(*crops.arrange(counts))


def list_topk(
    operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract of :meth:`kgfast.kernels.backend.Backend.list_topk`."""
    queries, crops = operands.queries, operands.crops
    scores = queries.new_empty((len(crops), len(queries), k))
    ids = lists.indices.new_empty(scores.shape)
    arguments = arguments_of(operands, operands.candidates.whole_bias)
    lists = Lists(*_contiguous(lists))
    known = None if known is None else _contiguous(known)
    for dim, best, best_ids in zip(crops, scores, ids, strict=True):
        raise_nonfinite(
            extension.list_topk(
                *arguments,
                dim,
                lists=lists,
                known=known,
                nan_worst=checks.allows_nan,
                k=k,
                scores=best,
                ids=best_ids,
            )
        )
    return (scores[0], ids[0]) if operands.dims is None else (scores, ids)


def _contiguous(rows: Known | Lists) -> Known:
    return Known(rows.indptr.contiguous(), rows.indices.contiguous())

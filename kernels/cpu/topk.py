"""Best k candidates on the CPU: the sweep of ranks, with limits that fall during the sweep.

A pair survives unless the float32 sweep proves that k others are better; canonical scores order the
survivors (host/survivors.cpp). One query, or few, read rows in place (host/sweeps.h). Few queries
of an index read bytes before float32, or high bytes before low ones (host/byte_rows.h,
host/int8.h). Cost model: the sweep (engine/sweep.h), and k canonical scores per query. Memory:
panels and packed queries as for ranks, at most 24 MiB of survivors over all threads, or 32 k bytes
for each of up to eight queries of one thread, where that is more.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Known, Lists, Operands
from . import extension
from .views import arguments_of, raise_nonfinite


def topk(
    operands: Operands, k: int, known: Known | None, checks: Checks, lists: Lists | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract of :meth:`kgfast.kernels.backend.Backend.topk`."""
    queries, crops = operands.queries, operands.crops
    shape = [operands.num_queries, k] if operands.dims is None else [len(crops), len(queries), k]
    scores, ids = queries.new_empty(shape), queries.new_empty(shape, dtype=torch.int64)
    arguments = arguments_of(operands, operands.candidates.whole_bias)
    each = [(scores, ids)] if operands.dims is None else zip(scores, ids, strict=True)
    for dim, (best, best_ids) in zip(crops, each, strict=True):
        raise_nonfinite(
            extension.topk(
                *arguments,
                dim,
                k=k,
                lists=lists,
                known=known,
                nan_worst=checks.allows_nan,
                scores=best,
                ids=best_ids,
            )
        )
    return scores, ids

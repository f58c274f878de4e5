"""Candidates with scores that reach a threshold, on the CPU: the top-k sweep, fixed limits.

A pair stays open unless the sweep proves that the score is below the threshold. Canonical scores
decide open pairs (host/above.h). Cost model: the sweep (engine/sweep.h), and a canonical score per
result. Memory: panels and packed queries as for ranks, 24 MiB of pairs over all threads, and the
results in pieces, which are freed after the copy.
"""

import torch
from torch import Tensor

from ..above import counts_above
from ..checks import Checks
from ..operands import Above, Known, Operands
from . import extension
from .rank import rank_counts
from .views import address, machine, pointers_of, raise_nonfinite


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | int:
    """Find all candidates; the contract is :meth:`kgfast.kernels.backend.Backend.above`."""
    queries = operands.queries
    pointers = pointers_of(operands, operands.candidates.whole_bias)
    where, lowest = None, lowest.contiguous()
    if known is not None:
        known = Known(known.indptr.contiguous(), known.indices.contiguous())
        where = address(known.indptr), address(known.indices)
    asked = pointers, operands.crops[0], address(lowest), where, most
    bad_rows, count, found = extension.above(machine(), *asked)
    raise_nonfinite(bad_rows)
    if count > most:
        return int(counts_above(rank_counts, operands, lowest, known, checks).sum())
    indptr = lowest.new_empty(len(queries) + 1, dtype=torch.int64)
    ids, scores = indptr.new_empty(count), queries.new_empty(count)
    extension.write_above(machine(), found, (address(indptr), address(ids), address(scores)))
    return Above(indptr, ids, scores)

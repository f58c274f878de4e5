"""Candidates with scores that reach a threshold, on the CPU: the top-k sweep, fixed limits.

A pair stays open unless the sweep proves that the score is below the threshold. Canonical scores
decide open pairs (host/above.h). Cost model: the sweep (engine/sweep.h), and a canonical score per
result. Memory: panels and packed queries as for ranks, 24 MiB of pairs over all threads, and the
results in pieces, which are freed after the copy.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Above, Known, Operands
from . import extension
from .views import arguments_of, raise_nonfinite


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | None:
    """Find all candidates; the contract is that of ``Backend.above``."""
    queries = operands.queries
    arguments = arguments_of(operands, operands.candidates.whole_bias)
    lowest = lowest.contiguous()
    bad_rows, result = extension.above(
        *arguments, operands.crops[0], lowest=lowest, known=known, most=most
    )
    raise_nonfinite(bad_rows)
    if result.count > most:
        return None
    indptr = lowest.new_empty(len(queries) + 1, dtype=torch.int64)
    ids, scores = indptr.new_empty(result.count), queries.new_empty(result.count)
    result.write(arguments[0], indptr, ids, scores)
    return Above(indptr, ids, scores)

"""Ranks on the CPU: sweeps with proven error bounds, then canonical scores for open pairs.

A float32 sweep serves all operands; the int8 tier goes first if the machine has it (tiers.py). Cost
model: engine/sweep.h (per element of the widest crop), engine/int8_sweep.h, engine/canonical.h (per
undecided pair). Memory: at most 24 MiB of panels over all threads and 12 MiB of packed queries;
each tier packs queries again and has at most 1 MiB of panels per thread.

Candidates that each query lists, and the rows for a few queries without an index, are read in place
(host/sweeps.h): a float32 pass with a proven bound decides most pairs; canonical scores decide the
rest, and all pairs of rscf scores and of float64 operands.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Counts, Known, Lists, Operands
from . import extension, tiers
from .views import arguments_of, raise_nonfinite


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
    lists: Lists | None = None,
) -> Counts:
    """Count like :meth:`kgfast.kernels.backend.Backend.rank_counts`."""
    candidates, pairs = operands.candidates, targets.new_empty(len(tiers.PAIRS))
    counts = targets.new_empty((len(operands.crops), 4, len(targets)), dtype=torch.int64)
    raise_nonfinite(
        extension.rank_counts(
            *arguments_of(operands, candidates.whole_bias),
            widths=operands.crops,
            targets=targets,
            target_scores=None if target_scores is None else target_scores.contiguous(),
            sorted_ids=candidates.sorted_ids,
            lists=lists,
            known=known,
            nan_worst=checks.allows_nan,
            counts=counts,
            pairs=pairs,
        )
    )
    tiers.note_pairs(pairs)
    return Counts.of(counts, operands)

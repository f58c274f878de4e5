"""Ranks on the CPU: sweeps with proven error bounds, then canonical scores for open pairs.

A float32 sweep serves all operands; the int8 tier goes first if the machine has it (tiers.py). Cost
model: engine/sweep.h (per element of the widest crop), engine/int8_sweep.h, engine/canonical.h (per
undecided pair). Memory: at most 24 MiB of panels over all threads and 12
MiB of packed queries; each tier packs queries again and has at most 1 MiB of panels per thread.
"""

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Counts, Known, Operands
from . import extension, tiers
from .crops import Crops
from .views import arguments_of, raise_nonfinite


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
) -> Counts:
    """Count; the contract is that of :meth:`kgfast.kernels.backend.Backend.rank_counts`."""
    crops, candidates = Crops.of(operands), operands.candidates
    counts = targets.new_empty((len(crops.distinct), 4, len(targets)), dtype=torch.int64)
    known = Known(known.indptr.contiguous(), known.indices.contiguous())
    scores = None if target_scores is None else target_scores[crops.slots]  # indexing makes a copy
    pairs = tiers.no_pairs()
    raise_nonfinite(
        extension.rank_counts(
            *arguments_of(operands, candidates.whole_bias),
            widths=crops.distinct,
            targets=targets.contiguous(),
            target_scores=scores,
            sorted_ids=candidates.sorted_ids,
            known=known,
            nan_worst=checks.allows_nan,
            counts=counts,
            pairs=pairs,
        )
    )
    tiers.note_pairs(pairs)
    return Counts(*crops.arrange(counts))

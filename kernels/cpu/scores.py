"""Scores on the CPU: of all pairs, or of the pairs of an index, gathered inside the kernel.

Cost model: engine/pairwise_sweep.h, for dot engine/product_scores.h; with an index, and for rscf
scores, engine/indexed_rows.h. Memory beyond operands and results: at most 12 MiB of packed queries
and 24 MiB of panels. ``dot`` takes 0.2 MiB per thread instead, and 1 MiB more if rows are not plain
float32. An index takes three rows per thread.
"""

import torch
from torch import Tensor

from ..operands import Operands
from . import extension
from .views import arguments_of


def scores(operands: Operands, index: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return scores like :meth:`kgfast.kernels.backend.Backend.scores`."""
    crops, num_rows = operands.crops, len(operands.table)
    if out is None:
        pairs = (operands.num_queries, num_rows) if index is None else index.shape
        shape = (len(crops), *pairs)
        out = operands.table.new_empty(shape, dtype=torch.float32)
    else:
        out = out[None]
    extension.scores(
        *arguments_of(operands, operands.candidates.float_bias),
        widths=crops,
        index=index,
        per_query=num_rows if index is None else index.shape[1],
        out=out,
    )
    return out[0] if operands.dims is None else out

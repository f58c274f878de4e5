"""Operators: checks, dispatch by device, fake kernels, autograd.

An operator checks its arguments before any kernel runs, and picks a backend by the device of the
tensors (or by :func:`use_backend`). ``torch.library`` makes it work under ``torch.compile``.
"""

from kgfast.ops.checks import TABLE_DTYPES, check_device, check_index, check_int, check_tensor
from kgfast.ops.compose import compose, cos_sin, filters, serves_composition, serves_filters
from kgfast.ops.differentiable import no_autocast, result_dtype
from kgfast.ops.dispatch import BACKENDS, backend_for, cores_for_kernels, use_backend, waits_for
from kgfast.ops.losses import bce, cross_entropy
from kgfast.ops.rank import rank_counts
from kgfast.ops.row_gradients import RowGradients
from kgfast.ops.row_updates import serves_rows, update_rows
from kgfast.ops.scores import indexed_scores, pairwise_scores
from kgfast.ops.topk import topk
from kgfast.ops.values import check_ids, check_unique, unchecked

__all__ = [
    "BACKENDS",
    "TABLE_DTYPES",
    "RowGradients",
    "backend_for",
    "bce",
    "check_device",
    "check_ids",
    "check_index",
    "check_int",
    "check_tensor",
    "check_unique",
    "compose",
    "cores_for_kernels",
    "cos_sin",
    "cross_entropy",
    "filters",
    "indexed_scores",
    "no_autocast",
    "pairwise_scores",
    "rank_counts",
    "result_dtype",
    "serves_composition",
    "serves_filters",
    "serves_rows",
    "topk",
    "unchecked",
    "update_rows",
    "use_backend",
    "waits_for",
]

"""Steps of optimizers on rows of a table, in place.

These are no torch.library operators: nothing differentiates or compiles a step of an optimizer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.backend import AdagradStep, AdamStep, kernel_of
from kgfast.kernels.checks import checks_values
from kgfast.ops.checks import check_index, check_shape, check_tensor
from kgfast.ops.differentiable import chosen_backend
from kgfast.ops.dispatch import get_backend, offers
from kgfast.ops.values import check_ids, check_unique


def serves_rows(table: Tensor) -> bool:
    """Return whether a kernel updates this table: contiguous float32 on a fitting backend."""
    fits = table.dtype == torch.float32 and table.ndim > 0 and table.is_contiguous()
    return fits and not table.is_neg() and offers(table.device, "row_updates")


def row_adam(
    tables: Sequence[Tensor],
    ids: Tensor,
    gradients: Tensor,
    *,
    lr: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    step: int | Tensor,
    repeats: bool = False,
) -> None:
    """Update rows of a table and of its moments (Kingma & Ba 2015, algorithm 1).

    :class:`kgfast.RowAdam` is the optimizer, which also checks numbers. ``tables`` are the table,
    first and second moments, ``[N, *]`` each, that :func:`serves_rows` accepts. ``ids`` are int64
    ``[U]``, distinct, in ``0 .. N-1``, and ``gradients`` float32 ``[U, *]``, any strides; errors
    name both, and leave tables unchanged. On a GPU ``repeats`` allows ascending ids that may
    repeat, as in :class:`kgfast.RowGradients`, and within :func:`kgfast.unchecked` ids are not
    checked: those out of range change nothing. ``step`` counts from 1; a tensor without axes on the
    tables' device saves the wait for the value.
    """
    kernels = _checked(3, tables, ids, gradients, repeats=repeats)
    if gradients.numel():
        numbers = AdamStep(lr, betas, eps, weight_decay, step)
        kernels.adam(tables, ids.contiguous(), gradients.resolve_neg(), numbers)
        torch.autograd.graph.increment_version(tables)


def row_adagrad(
    tables: Sequence[Tensor],
    ids: Tensor | None,
    gradients: Tensor,
    *,
    lr: float,
    eps: float,
    weight_decay: float,
    repeats: bool = False,
) -> None:
    """Update rows of a table and of the sums of squared gradients (Duchi et al. 2011).

    Bits are equal to torch's fused Adagrad on the CPU. ``ids`` of None take all rows; all else is
    as in :func:`row_adam`.
    """
    kernels = _checked(2, tables, ids, gradients, repeats=repeats)
    if gradients.numel():
        ids = None if ids is None else ids.contiguous()
        numbers = AdagradStep(lr, eps, weight_decay)
        kernels.adagrad(tables, ids, gradients.resolve_neg(), numbers)
        torch.autograd.graph.increment_version(tables)


def _checked(
    count: int, tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, *, repeats: bool
) -> Any:
    if len(tables) != count:
        raise ValueError(f"tables must be {count}; got {len(tables)}")
    table = tables[0]
    for position, other in enumerate(tables):
        check_tensor(f"tables[{position}]", other)
        if other.shape != table.shape or not serves_rows(other):
            raise ValueError(
                f"tables[{position}] must be contiguous float32, all of one shape, on a device "
                f"whose backend has kernels for them; got {other.dtype} {list(other.shape)} with "
                f"strides {list(other.stride())} on {other.device}"
            )
    check_tensor("gradients", gradients, (torch.float32,))
    check_shape("gradients", gradients, (len(table if ids is None else ids), *table.shape[1:]))
    backend = get_backend(chosen_backend(table))
    if ids is not None:
        check_index("ids", ids, (None,), table, "the tables")
        if checks_values() or not backend.defers_checks:
            check_ids("ids", ids, len(table))
            if not (repeats and backend.defers_checks):
                check_unique("ids", ids)
            elif bool((ids[1:] < ids[:-1]).any()):
                row = 1 + int((ids[1:] < ids[:-1]).nonzero()[0])
                raise ValueError(f"ids[{row}] must be at least ids[{row - 1}]; got {int(ids[row])}")
    return kernel_of(backend, "row_updates")

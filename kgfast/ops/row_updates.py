"""Steps of optimizers on rows of a table, in place.

These are no torch.library operators: nothing differentiates or compiles a step of an optimizer.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.backend import AdagradStep, AdamStep
from kgfast.kernels.checks import checks_values
from kgfast.ops.checks import check_device, check_index, check_shape, check_tensor
from kgfast.ops.dispatch import find_backend, get_backend, offers
from kgfast.ops.values import check_ids, check_unique


def serves_rows(table: Tensor) -> bool:
    """Return whether a kernel updates this table: contiguous float32 on a fitting backend."""
    return _fits(table) and offers(table.device, "row_updates")


def _fits(table: Tensor) -> bool:
    fits = table.dtype == torch.float32 and table.ndim > 0 and table.is_contiguous()
    return fits and not table.is_neg()


def update_rows(
    tables: Sequence[Tensor],
    ids: Tensor | None,
    gradients: Tensor,
    step: AdamStep | AdagradStep,
    *,
    repeats: bool = False,
) -> None:
    """Update rows of a table and of its state, by Adam or by Adagrad.

    ``tables`` are the table and its moments, or its sums of squared gradients, ``[N, *]`` each,
    that :func:`serves_rows` accepts. ``ids`` are int64 ``[U]``, distinct, in ``0 .. N-1``; None
    takes all rows. ``gradients`` are float32 ``[U, *]``, any strides. Errors name both, and leave
    tables unchanged. On a GPU ``repeats`` allows ascending ids that may repeat, as in
    :class:`kgfast.RowGradients`, and within :func:`kgfast.unchecked` ids are not checked: those
    out of range change nothing.
    """
    count = 3 if isinstance(step, AdamStep) else 2
    if len(tables) != count:
        raise ValueError(f"tables must be {count}; got {len(tables)}")
    table = tables[0]
    for position, other in enumerate(tables):
        check_tensor(f"tables[{position}]", other)
    backend = get_backend(find_backend(table.device)[0])
    kernels: Any = getattr(backend, "row_updates", None)
    for position, other in enumerate(tables):
        is_alike = other.shape == table.shape and other.device == table.device
        if kernels is None or not is_alike or not _fits(other):
            raise ValueError(
                f"tables[{position}] must be contiguous float32, all of one shape, on a device "
                f"whose backend has kernels for them; got {other.dtype} {list(other.shape)} with "
                f"strides {list(other.stride())} on {other.device}"
            )
    check_tensor("gradients", gradients, (torch.float32,))
    check_device("gradients", gradients, table, "the tables")
    check_shape("gradients", gradients, (len(table if ids is None else ids), *table.shape[1:]))
    if ids is not None:
        check_index("ids", ids, (None,), table, "the tables")
        ids = ids.contiguous()
        if checks_values() or not backend.defers_checks:
            check_ids("ids", ids, len(table))
            if not (repeats and backend.defers_checks):
                check_unique("ids", ids)
            elif len(falls := (ids[1:] < ids[:-1]).nonzero()):
                row = 1 + int(falls[0])
                raise ValueError(f"ids[{row}] must be at least ids[{row - 1}]; got {int(ids[row])}")
    if gradients.numel():
        update = kernels.adam if isinstance(step, AdamStep) else kernels.adagrad
        update(tables, ids, gradients.resolve_neg(), step)
        torch.autograd.graph.increment_version(tables)

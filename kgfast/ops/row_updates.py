"""Steps of optimizers on rows of a table, in place.

These are no torch.library operators: nothing differentiates or compiles a step of an optimizer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.backend import AdagradStep, AdamStep, RowUpdates, kernel_of
from kgfast.kernels.checks import checks_values
from kgfast.ops.checks import (
    check_bounded,
    check_device,
    check_index,
    check_shape,
    check_share,
    check_tensor,
)
from kgfast.ops.differentiable import chosen_backend
from kgfast.ops.dispatch import get_backend, offers
from kgfast.ops.values import check_ids, check_unique

_ADAM = ("the table", "first moments", "second moments")
_ADAGRAD = ("the table", "sums of squares")


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

    Parameters
    ----------
    tables : sequence of Tensor
        ``[N, *]`` each, accepted by :func:`serves_rows`: the table, first and second moments. No
        two of these and the gradients may share memory, which is not checked.
    ids : Tensor
        int64 ``[U]``, distinct, in ``0 .. N-1``.
    gradients : Tensor
        float32 ``[U, *]``, any strides.
    lr, betas, eps, weight_decay
        See :class:`torch.optim.Adam`.
    step : int or Tensor
        Number of the step, from 1, for the bias correction. A tensor without axes on the tables'
        device saves the wait for the value.
    repeats : bool
        On a GPU: allow ascending ids that may repeat, as in :class:`kgfast.RowGradients`. The first
        of equal ids has the gradient of the row; repetitions are ignored.

    Raises
    ------
    ValueError, TypeError
        For tables, ids, gradients or numbers that do not fit, and ids that repeat or lie out of
        range; the message names the argument and the first offending position. Tables are then
        unchanged.

    Notes
    -----
    Within :func:`kgfast.unchecked` a GPU does not check ids. Ids out of range change nothing, and a
    repeated id updates the row once, by one of the gradients. The CPU always checks, and takes no
    repeats.

    Examples
    --------
    >>> tables = torch.zeros(3, 2, 1).unbind()
    >>> given = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 1}
    >>> row_adam(tables, torch.tensor([1]), torch.tensor([[4.0]]), lr=0.5, **given)
    >>> tables[0].tolist()
    [[0.0], [-0.5]]
    """
    kernels = _checked(_ADAM, tables, ids, gradients, repeats=repeats)
    _check_numbers(lr=lr, eps=eps, weight_decay=weight_decay)
    for position, beta in enumerate(betas):
        check_share(f"betas[{position}]", beta)
    if not (isinstance(step, Tensor) and _defers_checks(tables[0])) and int(step) < 1:
        raise ValueError(f"step must be at least 1; got {step}")
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

    Bits are equal to torch's fused Adagrad on the CPU.

    Parameters
    ----------
    tables : sequence of Tensor
        ``[N, *]`` each, accepted by :func:`serves_rows`: the table and the sums.
    ids : Tensor, optional
        int64 ``[U]``, distinct, in ``0 .. N-1``; None takes all rows.
    gradients : Tensor
        float32 ``[U, *]``, any strides.
    lr, eps, weight_decay
        See :class:`torch.optim.Adagrad`.
    repeats
        See :func:`row_adam`.

    Raises
    ------
    ValueError, TypeError
        As :func:`row_adam`.

    Examples
    --------
    >>> tables = torch.zeros(2, 1, 2).unbind()
    >>> given = {"lr": 0.5, "eps": 0.0, "weight_decay": 0.0}
    >>> row_adagrad(tables, None, torch.tensor([[4.0, -1.0]]), **given)
    >>> tables[0].tolist(), tables[1].tolist()
    ([[-0.5, 0.5]], [[16.0, 1.0]])
    """
    kernels = _checked(_ADAGRAD, tables, ids, gradients, repeats=repeats)
    _check_numbers(lr=lr, eps=eps, weight_decay=weight_decay)
    if gradients.numel():
        ids = None if ids is None else ids.contiguous()
        numbers = AdagradStep(lr, eps, weight_decay)
        kernels.adagrad(tables, ids, gradients.resolve_neg(), numbers)
        torch.autograd.graph.increment_version(tables)


def _checked(
    names: Sequence[str],
    tables: Sequence[Tensor],
    ids: Tensor | None,
    gradients: Tensor,
    *,
    repeats: bool,
) -> RowUpdates:
    if len(tables) != len(names):
        raise ValueError(f"tables must be {len(names)}, {', '.join(names)}; got {len(tables)}")
    table = tables[0]
    for position, other in enumerate(tables):
        check_tensor(f"tables[{position}]", other)
        if other.shape != table.shape or not serves_rows(other):
            raise ValueError(
                f"tables[{position}] must be contiguous float32, all of one shape, on a device "
                f"whose backend has kernels for them; got {other.dtype} {list(other.shape)} with "
                f"strides {list(other.stride())} on {other.device}"
            )
    if ids is not None:
        check_index("ids", ids, (None,), table, "the tables")
    check_tensor("gradients", gradients, (torch.float32,))
    check_shape("gradients", gradients, (len(table if ids is None else ids), *table.shape[1:]))
    check_device("gradients", gradients, table, "the tables")
    is_deferred = _defers_checks(table)
    if ids is not None and (checks_values() or not is_deferred):
        check_ids("ids", ids, len(table))
        if not (repeats and is_deferred):
            check_unique("ids", ids)
        elif bool((ids[1:] < ids[:-1]).any()):
            row = 1 + int((ids[1:] < ids[:-1]).nonzero()[0])
            raise ValueError(f"ids[{row}] must be at least ids[{row - 1}]; got {int(ids[row])}")
    kernels: RowUpdates = kernel_of(get_backend(chosen_backend(table)), "row_updates")
    return kernels


def _defers_checks(table: Tensor) -> bool:
    return get_backend(chosen_backend(table)).defers_checks


def _check_numbers(**numbers: float) -> None:
    for name, value in numbers.items():
        check_bounded(name, value, 0)

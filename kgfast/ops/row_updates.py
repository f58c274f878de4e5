"""Steps of optimizers on rows of a table, in place.

These are no torch.library operators: nothing differentiates or compiles a step of an optimizer.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.backend import AdagradStep, AdamStep, RowUpdates, kernel_of
from kgfast.kernels.checks import checks_values
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_apart, check_ids, check_index, check_tensor, check_unique
from kgfast.ops.dispatch import get_backend

_ADAM = ("the table", "first moments", "second moments")
_ADAGRAD = ("the table", "sums of squares")


def serves_rows(table: Tensor) -> bool:
    """Return whether a kernel updates this table: contiguous float32 on a fitting backend."""
    fits = table.dtype == torch.float32 and table.ndim > 0 and table.is_contiguous()
    fits = fits and not table.is_neg()
    return fits and common.offers(table.device, "row_updates")


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
        two of these and the gradients may share memory.
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
        For tables, ids, gradients or numbers that do not fit, ids that repeat or lie out of range,
        and tensors that share memory; the message names the argument and the first offending
        position. Tables are then unchanged.

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
    update = _checked(_ADAM, tables, ids, gradients, repeats=repeats)
    if not hasattr(betas, "__len__") or len(betas) != 2:
        raise ValueError(f"betas must be two numbers; got {betas!r}")
    _check_numbers(lr=lr, eps=eps, weight_decay=weight_decay)
    _check_numbers(1.0, **{"betas[0]": betas[0], "betas[1]": betas[1]})
    _check_step(step, tables[0])
    if gradients.numel():
        given = AdamStep(lr, betas, eps, weight_decay, step)
        update.adam(tables, ids.contiguous(), gradients.resolve_neg(), given)
        _note_writes(tables)


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
        ``[N, *]`` each, accepted by :func:`serves_rows`: the table and the sums. No two of these
        and the gradients may share memory.
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
    update = _checked(_ADAGRAD, tables, ids, gradients, repeats=repeats)
    _check_numbers(lr=lr, eps=eps, weight_decay=weight_decay)
    if gradients.numel():
        ids = None if ids is None else ids.contiguous()
        update.adagrad(tables, ids, gradients.resolve_neg(), AdagradStep(lr, eps, weight_decay))
        _note_writes(tables)


def _checked(
    names: Sequence[str],
    tables: Sequence[Tensor],
    ids: Tensor | None,
    gradients: Tensor,
    *,
    repeats: bool,
) -> RowUpdates:
    _check_tables(names, tables)
    table = tables[0]
    if ids is not None:
        check_index("ids", ids, (None,), table, whose="the tables")
    count = len(table) if ids is None else len(ids)
    _check_gradients(gradients, (count, *table.shape[1:]), tables)
    backend = get_backend(common.chosen_backend(table))
    if ids is not None and (checks_values() or not backend.defers_checks):
        check_ids("ids", ids, len(table))
        if not (repeats and backend.defers_checks):
            check_unique("ids", ids)
        elif bool((ids[1:] < ids[:-1]).any()):
            row = 1 + int((ids[1:] < ids[:-1]).nonzero()[0])
            raise ValueError(f"ids[{row}] must be at least ids[{row - 1}]; got {int(ids[row])}")
    updates: RowUpdates = kernel_of(backend, "row_updates")
    return updates


def _check_tables(names: Sequence[str], tables: Sequence[Tensor]) -> None:
    if not hasattr(tables, "__len__"):
        raise TypeError(f"tables must be a sequence of tensors; got {type(tables).__name__}")
    if len(tables) != len(names):
        raise ValueError(f"tables must be {len(names)}, {', '.join(names)}; got {len(tables)}")
    for position, table in enumerate(tables):
        check_tensor(f"tables[{position}]", table)
        if table.shape != tables[0].shape or not serves_rows(table):
            raise ValueError(
                f"tables[{position}] must be contiguous float32, all of one shape, on a device "
                f"whose backend has kernels for them; got {table.dtype} {list(table.shape)} with "
                f"strides {list(table.stride())} on {table.device}"
            )
        for earlier in range(position):
            check_apart(f"tables[{position}]", table, f"tables[{earlier}]", tables[earlier])


def _check_gradients(gradients: Tensor, shape: tuple[int, ...], tables: Sequence[Tensor]) -> None:
    if not isinstance(gradients, Tensor):
        raise TypeError(f"gradients must be a tensor; got {type(gradients).__name__}")
    if gradients.dtype != torch.float32:
        raise TypeError(f"gradients must be float32; got {gradients.dtype}")
    if gradients.shape != shape:
        raise ValueError(
            f"gradients must have shape {list(shape)}, a row per id; got {list(gradients.shape)}"
        )
    if gradients.layout != torch.strided or gradients.device != tables[0].device:
        raise ValueError(
            f"gradients must be dense on {tables[0].device}, as the tables; got "
            f"{gradients.layout} on {gradients.device}"
        )
    for position, table in enumerate(tables):
        check_apart("gradients", gradients, f"tables[{position}]", table)


def _check_numbers(below: float = math.inf, /, **numbers: Any) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number; got {value!r}")
        if not 0 <= value < below:
            raise ValueError(f"{name} must be in [0, {below}); got {value}")


def _check_step(step: int | Tensor, table: Tensor) -> None:
    if isinstance(step, Tensor) and step.ndim == 0 and step.device == table.device:
        if get_backend(common.chosen_backend(table)).defers_checks:
            return  # the host does not wait for the value
        step = int(step)
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeError(f"step must be an int or a 0-d tensor on {table.device}; got {step!r}")
    if step < 1:
        raise ValueError(f"step must be at least 1; got {step}")


def _note_writes(tables: Sequence[Tensor]) -> None:
    torch.autograd.graph.increment_version(tables)

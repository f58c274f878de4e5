"""Adam on rows of a table, in place.

Not a torch.library operator: nothing differentiates or compiles a step of an optimizer.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.backend import AdamStep
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_apart, check_ids, check_index, check_tensor, check_unique
from kgfast.ops.dispatch import get_backend

_TABLES = ("the table", "first moments", "second moments")


def serves_row_adam(table: Tensor) -> bool:
    """Return whether :func:`row_adam` takes a table: contiguous float32 on the CPU's extension."""
    fits = table.dtype == torch.float32 and table.ndim == 2 and table.is_contiguous()
    fits = fits and not table.is_neg()
    return fits and common.offers(table.device, "row_adam")


def row_adam(
    tables: Sequence[Tensor],
    ids: Tensor,
    gradients: Tensor,
    *,
    lr: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    """Update rows of a table and of its moments (Kingma & Ba 2015, algorithm 1).

    Parameters
    ----------
    tables : sequence of Tensor
        ``[N, G]`` each, as :func:`serves_row_adam` says: the table, first and second moments. None
        shares memory with another or with the gradients.
    ids : Tensor
        int64 ``[U]``, distinct, in ``0 .. N-1``.
    gradients : Tensor
        float32 ``[U, G]``, any strides.
    lr, betas, eps, weight_decay
        As of :class:`torch.optim.Adam`.
    step : int
        Of the run, from 1: for the bias correction.

    Raises
    ------
    ValueError, TypeError
        For tables, ids, gradients or numbers that do not fit, ids that repeat or lie out of range,
        and tensors that share memory; the message names the argument and the first offending
        place. Nothing is changed then.

    Examples
    --------
    >>> tables = torch.zeros(3, 2, 1).unbind()
    >>> given = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 1}
    >>> row_adam(tables, torch.tensor([1]), torch.tensor([[4.0]]), lr=0.5, **given)
    >>> tables[0].tolist()
    [[0.0], [-0.5]]
    """
    _check_tables(tables)
    table = tables[0]
    check_index("ids", ids, (None,), table, whose="the tables")
    _check_gradients(gradients, (len(ids), table.shape[1]), tables)
    _check_numbers(lr, betas, eps, weight_decay, step)
    check_ids("ids", ids, len(table))
    check_unique("ids", ids)
    if gradients.numel():
        update = get_backend(common.chosen_backend(table)).row_adam
        assert update is not None
        gradients = gradients.resolve_neg()
        update(tables, ids.contiguous(), gradients, AdamStep(lr, betas, eps, weight_decay, step))
        # Written through pointers: autograd, and an index, know of writes by torch alone.
        torch.autograd.graph.increment_version(tables)


def _check_tables(tables: Sequence[Tensor]) -> None:
    """Check that tables are three of one shape, each with memory of its own."""
    if not hasattr(tables, "__len__"):
        raise TypeError(f"tables must be a sequence of tensors; got {type(tables).__name__}")
    if len(tables) != len(_TABLES):
        raise ValueError(f"tables must be {len(_TABLES)}, {', '.join(_TABLES)}; got {len(tables)}")
    for position, table in enumerate(tables):
        check_tensor(f"tables[{position}]", table)
        if table.shape != tables[0].shape or not serves_row_adam(table):
            raise ValueError(
                f"tables[{position}] must be contiguous float32 [N, G] on the CPU, all of one "
                f"shape, with the extension built; got {table.dtype} {list(table.shape)} with "
                f"strides {list(table.stride())} on {table.device}"
            )
        for earlier in range(position):
            check_apart(f"tables[{position}]", table, f"tables[{earlier}]", tables[earlier])


def _check_gradients(gradients: Tensor, shape: tuple[int, int], tables: Sequence[Tensor]) -> None:
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


def _check_numbers(
    lr: float, betas: Sequence[float], eps: float, weight_decay: float, step: int
) -> None:
    if not hasattr(betas, "__len__") or len(betas) != 2:
        raise ValueError(f"betas must be two numbers; got {betas!r}")
    named = {"lr": lr, "betas[0]": betas[0], "betas[1]": betas[1]}
    for name, value in (named | {"eps": eps, "weight_decay": weight_decay}).items():
        below = 1.0 if name.startswith("betas") else math.inf
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number; got {value!r}")
        if not 0 <= value < below:
            raise ValueError(f"{name} must be in [0, {below}); got {value}")
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeError(f"step must be an int; got {step!r}")
    if step < 1:
        raise ValueError(f"step must be at least 1; got {step}")

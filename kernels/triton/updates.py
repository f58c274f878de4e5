"""Steps of optimizers on rows of a table, and sums of rows, on a GPU; the host never waits.

Ids out of range change nothing: kernels mask them.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..backend import AdagradStep, AdamStep
from .device.arguments import TileShape
from .device.updates import GradientRows, update_adagrad, update_adam
from .device.updates import sum_rows as sum_kernel
from .host import launch as launcher

TILE_NUMBERS = 1024  # numbers of a program
# rows of one id that a program reads at a time, and numbers of each
SUMMED_ROWS, SUMMED_NUMBERS = 8, 256


def adam(tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, step: AdamStep) -> None:
    """Update a table and two moments."""
    shares = tuple(1.0 - beta for beta in step.betas)
    logs = tuple(math.log(beta) if beta else -math.inf for beta in step.betas)
    numbers = _source_of(step.lr), step.eps, step.weight_decay, _source_of(step.number)
    _launch(update_adam, tables, ids, gradients, (*numbers, shares, logs))


def adagrad(
    tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, step: AdagradStep
) -> None:
    """Update a table and the sums of squares."""
    numbers = _source_of(step.lr), step.eps, step.weight_decay
    _launch(update_adagrad, tables, ids, gradients, numbers)


def sum_rows(ids: Tensor, order: Tensor, rows: Tensor) -> Tensor:
    """Return a sum for the first of equal ids, and zeros for the rest, ``[T, G]``.

    ``ids``, int64 ``[T]``, ascend; ``order``, int64 ``[T]``, has the row of each. Rows are summed
    in that order, in float32, or float64 for float64 rows.
    """
    rows = rows.contiguous()
    total = torch.empty_like(rows)
    width = rows.shape[1:].numel()
    columns = min(SUMMED_NUMBERS, 1 << (max(width, 1) - 1).bit_length())
    with launcher.serving(rows.device):
        launcher.launch(
            sum_kernel,
            (len(ids), -(-width // columns)),
            {
                "p_ids": ids,
                "p_order": order,
                "p_rows": rows,
                "p_total": total,
                "count": len(ids),
                "width": width,
                "TILE": TileShape(SUMMED_ROWS, columns),
            },
            num_warps=2,
        )
    return total


def _source_of(number: float | Tensor) -> tuple[float, Tensor | None]:
    return (0.0, number) if isinstance(number, Tensor) else (float(number), None)


def _launch(
    kernel: Any,
    tables: Sequence[Tensor],
    ids: Tensor | None,
    gradients: Tensor,
    numbers: tuple[Any, ...],
) -> None:
    gradients = gradients.contiguous().view(len(gradients), -1)
    count, width = gradients.shape
    columns = min(TILE_NUMBERS, 1 << (width - 1).bit_length())
    tile = TileShape(TILE_NUMBERS // columns, columns)
    with launcher.serving(gradients.device):
        launcher.launch(
            kernel,
            (-(-count // tile.rows), -(-width // tile.lanes)),
            {
                "tables": tuple(tables),
                "gradients": GradientRows(gradients, ids, width),
                "numbers": numbers,
                "count": count,
                "num_rows": len(tables[0]),
                "TILE": tile,
            },
            num_warps=4,
        )

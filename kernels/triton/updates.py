"""Steps of optimizers on rows of a table, on a GPU; the host never waits.

Ids out of range change nothing: kernels mask them.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..backend import AdagradStep, AdamStep
from .device.arguments import TileShape
from .device.updates import AdamNumbers, GradientRows, update_adagrad, update_adam
from .host import launch as launcher

TILE_NUMBERS = 1024  # of a program


def adam(tables: Sequence[Tensor], ids: Tensor, gradients: Tensor, step: AdamStep) -> None:
    """Update a table and two moments."""
    numbers = AdamNumbers(
        step.lr,
        tuple(1.0 - beta for beta in step.betas),
        tuple(math.log(beta) if beta else -math.inf for beta in step.betas),
        step.eps,
        step.weight_decay,
    )
    number = torch.as_tensor(step.number, dtype=torch.float32, device=gradients.device)
    _launch(update_adam, tables, ids, gradients, {"numbers": numbers, "p_step": number})


def adagrad(
    tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, step: AdagradStep
) -> None:
    """Update a table and its sums of squares."""
    _launch(update_adagrad, tables, ids, gradients, {"numbers": tuple(step)})


def _launch(
    kernel: Any,
    tables: Sequence[Tensor],
    ids: Tensor | None,
    gradients: Tensor,
    given: dict[str, Any],
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
                **given,
                "count": count,
                "num_rows": len(tables[0]),
                "TILE": tile,
            },
            num_warps=4,
        )

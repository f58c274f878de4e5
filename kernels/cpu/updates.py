"""Steps of optimizers on rows of a table, on the CPU: read, update and write in one pass.

Cost model: host/row_adam.h, host/adagrad.h. Bits do not depend on threads. Bits of Adam do not
depend on the instruction set, and bits of Adagrad are equal to torch's fused Adagrad.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from ..backend import AdagradStep, AdamStep
from . import extension, threads
from .views import address, machine


def adam(tables: Sequence[Tensor], ids: Tensor, gradients: Tensor, step: AdamStep) -> None:
    """Update a table and two moments."""
    gradients = gradients.contiguous()
    first, second = (1 - beta ** int(step.number) for beta in step.betas)
    extension.row_adam(
        threads.count(),
        [address(table) for table in tables],
        (address(ids), address(gradients), len(gradients), gradients[0].numel()),
        list(step.betas),
        [step.lr / first, 1 / math.sqrt(second), step.eps, step.weight_decay],
    )


def adagrad(
    tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, step: AdagradStep
) -> None:
    """Update a table and the sums of squares."""
    gradients = gradients.contiguous()
    width = gradients.numel() if ids is None else gradients[0].numel()
    extension.adagrad(
        machine(),
        [address(table) for table in tables],
        (address(ids), address(gradients), gradients.numel(), width),
        [step.lr, step.eps, step.weight_decay],
    )

"""Steps of optimizers on rows of a table, on the CPU: read, update and write in one pass.

Cost model: host/training.h. Bits do not depend on threads. Bits of Adam do not
depend on the instruction set, and bits of Adagrad are equal to torch's fused Adagrad.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from ..backend import AdagradStep, AdamStep
from . import extension, threads
from .views import machine


def adam(tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, step: AdamStep) -> None:
    """Update a table and two moments."""
    gradients = gradients.contiguous()
    number, (beta1, beta2) = int(step.number), step.betas
    table, first_moment, second_moment = tables
    extension.row_adam(
        threads.count(),
        table,
        first_moment,
        second_moment,
        ids,
        gradients,
        count=len(gradients),
        width=gradients[0].numel(),
        first_share=1 - beta1,
        second_share=1 - beta2,
        step_size=float(step.lr) / (1 - beta1**number),
        root_scale=1 / math.sqrt(1 - beta2**number),
        eps=step.eps,
        weight_decay=step.weight_decay,
    )


def adagrad(
    tables: Sequence[Tensor], ids: Tensor | None, gradients: Tensor, step: AdagradStep
) -> None:
    """Update a table and the sums of squares."""
    gradients = gradients.contiguous()
    width = gradients.numel() if ids is None else gradients[0].numel()
    table, sums = tables
    extension.adagrad(
        machine(),
        table,
        sums,
        ids,
        gradients,
        count=gradients.numel(),
        width=width,
        rate=float(step.lr),
        eps=step.eps,
        weight_decay=step.weight_decay,
    )

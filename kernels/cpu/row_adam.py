"""Adam on rows of a table, on the CPU: gathered, updated and put back in one pass.

Cost model: host/row_adam.h. Bits depend neither on threads nor on the instruction set.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from ..backend import AdamStep
from . import extension, threads
from .views import address


def row_adam(tables: Sequence[Tensor], ids: Tensor, gradients: Tensor, step: AdamStep) -> None:
    """Update; the contract of :func:`kgfast.ops.row_adam`."""
    gradients = gradients.contiguous()
    first, second = (1 - beta**step.number for beta in step.betas)
    extension.row_adam(
        threads.count(),
        [address(table) for table in tables],
        (address(ids), address(gradients), *gradients.shape),
        list(step.betas),
        [step.lr / first, 1 / math.sqrt(second), step.eps, step.weight_decay],
    )

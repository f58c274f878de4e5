"""Adam on rows of a table, on the CPU: gathered, updated and put back in one pass.

Cost model: host/row_adam.h. Bits depend neither on threads nor on the instruction set.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from . import extension, threads
from .views import address


def row_adam(
    tables: Sequence[Tensor],
    ids: Tensor,
    gradients: Tensor,
    lr: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    """The contract of :func:`kgfast.ops.row_adam`; see there."""
    gradients = gradients.contiguous()
    first, second = (1 - beta**step for beta in betas)
    extension.row_adam(
        [address(table) for table in tables],
        address(ids),
        address(gradients),
        gradients.shape[0],
        gradients.shape[1],
        list(betas),
        lr / first,
        1 / math.sqrt(second),
        eps,
        weight_decay,
        threads.count(),
    )

"""Adam on rows of a table, in place.

Not a torch.library operator: nothing differentiates or compiles a step of an optimizer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_ids


def serves_row_adam(table: Tensor) -> bool:
    """Whether :func:`row_adam` takes this table: contiguous float32 where the extension serves."""
    fits = table.dtype == torch.float32 and table.ndim == 2 and table.is_contiguous()
    return fits and table.device.type == "cpu" and common.chosen_backend(table) == "cpu"


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
        ``[N, G]`` each, as :func:`serves_row_adam` says: the table, first and second moments.
    ids : Tensor
        int64 ``[U]``, distinct, in ``0 .. N-1``.
    gradients : Tensor
        float32 ``[U, G]``.
    lr, betas, eps, weight_decay
        As of :class:`torch.optim.Adam`.
    step : int
        Of the run, from 1: for the bias correction.

    Raises
    ------
    ValueError
        For an id out of range, or shapes that do not fit.

    Examples
    --------
    >>> tables = torch.zeros(3, 2, 1).unbind()
    >>> given = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "step": 1}
    >>> row_adam(tables, torch.tensor([1]), torch.tensor([[4.0]]), lr=0.5, **given)
    >>> tables[0].tolist()
    [[0.0], [-0.5]]
    """
    table = tables[0]
    if any(it.shape != table.shape or not serves_row_adam(it) for it in tables):
        raise ValueError("tables must be contiguous float32 [N, G] on the CPU, of one shape")
    if gradients.shape != (len(ids), table.shape[1]) or gradients.dtype != torch.float32:
        raise ValueError(
            f"gradients must be float32 {[len(ids), table.shape[1]]}; got {gradients.dtype} "
            f"{list(gradients.shape)}"
        )
    check_ids("ids", ids, len(table))
    if gradients.numel():
        common.backend_kernel("cpu", "row_adam", "row_adam")(
            tables, ids.contiguous(), gradients, lr, betas, eps, weight_decay, step
        )

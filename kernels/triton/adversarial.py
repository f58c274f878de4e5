"""The adversarial loss on a GPU: one launch for rows of scores, one for their gradient."""

import torch
from torch import Tensor

from ..backend import Adversarial
from .device import adversarial as kernels
from .host import launch as launcher
from .host.views import plane_of

_MOST_COLUMNS, _LEAST_COLUMNS = 1024, 128  # columns of a step


class FusedAdversarial:
    """Fused sums; see :class:`kgfast.kernels.backend.Adversarial`; scores are read in place."""

    def rows(self, scores: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, peaks and masses ``[R]``."""
        rows = kernels.WeightedRows(
            *(torch.empty(len(scores), dtype=torch.float32, device=scores.device) for _ in range(3))
        )
        with launcher.serving(scores.device):
            launcher.launch(
                kernels.adversarial_rows,
                (len(scores),),
                {
                    "scores": plane_of(scores),
                    "rows": rows,
                    "num_columns": scores.shape[1],
                    "alpha": float(alpha),
                    "COLUMNS": _columns(scores),
                },
                num_warps=4,
            )
        return rows

    def backward(
        self, grad_rows: Tensor, scores: Tensor, peaks: Tensor, masses: Tensor, alpha: float
    ) -> Tensor:
        """Return the gradient of the scores, contiguous."""
        slopes = torch.empty(scores.shape, dtype=torch.float32, device=scores.device)
        columns = _columns(scores)
        with launcher.serving(scores.device):
            launcher.launch(
                kernels.adversarial_slopes,
                (len(scores) * -(-scores.shape[1] // columns),),
                {
                    "scores": plane_of(scores),
                    "p_slopes": slopes,
                    "rows": kernels.WeightedRows(grad_rows.contiguous(), peaks, masses),
                    "num_columns": scores.shape[1],
                    "alpha": float(alpha),
                    "COLUMNS": columns,
                },
                num_warps=4,
            )
        return slopes


def _columns(scores: Tensor) -> int:
    """Return the columns of a step: a power of two."""
    columns = _LEAST_COLUMNS
    while columns < min(scores.shape[1], _MOST_COLUMNS):
        columns *= 2
    return columns


ADVERSARIAL: Adversarial = FusedAdversarial()

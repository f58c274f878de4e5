"""Arguments of above()."""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kgfast.text import shown

MAX_RESULTS = 10_000_000


def thresholds_of(threshold: Tensor | float, count: int, device: torch.device) -> Tensor:
    """Return checked thresholds float64 ``[count]`` on a device."""
    value: Any = threshold
    if isinstance(value, bool) or not isinstance(value, Tensor | Real):
        raise TypeError(
            f"threshold must be a number, or a tensor of one for each query; got {shown(value)}"
        )
    if not isinstance(value, Tensor):
        value = torch.tensor(float(value), dtype=torch.float64, device=device)
    if not value.is_floating_point():
        raise TypeError(f"threshold must be floating point; got {value.dtype}")
    if value.ndim and value.shape != (count,):
        raise ValueError(
            f"threshold must be one number, or have shape [{count}]; got {list(value.shape)}"
        )
    thresholds: Tensor = value.detach().to(device, torch.float64).expand(count).clone()
    bad = thresholds.isnan().nonzero()
    if len(bad):
        raise ValueError(f"threshold[{int(bad[0])}] must be a number or an infinity; got nan")
    return thresholds

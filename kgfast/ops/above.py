"""Arguments of above(): thresholds, and the number of results."""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kgfast.text import shown

MAX_RESULTS = 10_000_000


def thresholds_of(threshold: Tensor | float, count: int, device: torch.device) -> Tensor:
    """Return thresholds float64 ``[count]`` on a device, after checking type and shape."""
    if not isinstance(threshold, Tensor):
        value: Any = threshold
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(
                f"threshold must be a number, or a tensor of one for each query; got {shown(value)}"
            )
        return torch.full((count,), float(threshold), dtype=torch.float64, device=device)
    if not threshold.is_floating_point():
        raise TypeError(f"threshold must be floating point; got {threshold.dtype}")
    if threshold.ndim and threshold.shape != (count,):
        raise ValueError(
            f"threshold must be one number, or have shape [{count}]; got {list(threshold.shape)}"
        )
    return threshold.detach().to(device, torch.float64).expand(count).clone()


def check_thresholds(thresholds: Tensor) -> None:
    """Check that no threshold is NaN."""
    bad = thresholds.isnan().nonzero()
    if len(bad):
        raise ValueError(f"threshold[{int(bad[0])}] must be a number or an infinity; got nan")


def check_max_results(most: int) -> None:
    """Check a number of results."""
    if isinstance(most, bool) or not isinstance(most, int):
        raise TypeError(f"max_results must be an int; got {shown(most)}")
    if most < 1:
        raise ValueError(f"max_results must be at least 1; got {most}")


def too_many(count: int, most: int) -> ValueError:
    """Make the error for more results than a call may return."""
    return ValueError(
        f"max_results must be at least the number of results, {count:,}; got {most:,} (a higher "
        f"threshold finds fewer)"
    )

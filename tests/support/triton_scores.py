"""Rows to score on Triton's backend, and the comparison with the reference in float64."""

from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.scores import get_score
from support.engines import DEVICE


def rows(score: str, count: int, dim: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(count, dim * get_score(score).planes, generator=rng)
    return values.to(dtype).to(DEVICE)


def operands(
    score: str, queries: int, others: int, dim: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Make queries and a table, of which one row equals a query."""
    q, c = rows(score, queries, dim, 0), rows(score, others, dim, 1, dtype)
    q[0] = c[-1].float()
    return q, c


def exact(value: Any) -> Any:
    """Convert operands to float64 on the host, for the reference."""
    return value.double().cpu() if torch.is_tensor(value) and value.is_floating_point() else value


def assert_close(actual: Tensor | None, expected: Tensor | None, rel: float = 1e-5) -> None:
    """Allow ``rel`` of the largest number: one that cancelled may be far below its terms."""
    if expected is None:
        assert actual is None
        return
    assert actual is not None
    assert actual.shape == expected.shape
    scale = expected.abs().max() if expected.numel() else expected
    error = (actual.double().cpu() - expected.double().cpu()).abs()
    assert bool((error <= rel * scale + 1e-30).all()), float(error.max() / scale)


def narrow_bits(dtype: torch.dtype) -> float:
    """Return the relative error of a gradient's dtype; the interpreter truncates bfloat16."""
    return {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]

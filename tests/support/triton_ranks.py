"""Where the tests of Triton's ranks run, their tables, and the comparison with the reference."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from kgfast.kernels.scores import get_score
from support.flat import reference, triton
from support.interpreter import quicken
from support.problems import SCORES

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = not INTERPRETED and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
CAN_RUN = INTERPRETED or ON_GPU  # else the classes are left to the subprocess
on_gpu = pytest.mark.gpu if ON_GPU else lambda item: item
PLAIN_SCORES = [score for score in SCORES if score != "rotate_interleaved"]  # it is a layout
few = settings(
    max_examples=50 if ON_GPU else 6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

if INTERPRETED:
    quicken()


def compare(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    indptr: Tensor,
    indices: Tensor,
    score: str,
    **options: object,
) -> None:
    """Assert that both backends return the same integers."""

    def there(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        if not ON_GPU:
            return value
        storage = value.untyped_storage().to(device=DEVICE)  # keeps strides and alignment
        moved = torch.empty(0, dtype=value.dtype, device=DEVICE)
        return moved.set_(storage, value.storage_offset(), value.shape, value.stride())

    args = [queries, candidates, targets, indptr, indices]
    expected = reference.rank_counts(*args, score, **options)
    moved = {name: there(value) for name, value in options.items()}
    actual = triton.rank_counts(*(there(value) for value in args), score, **moved)
    for x, y in zip(expected, actual, strict=True):
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(x, y.cpu()), (expected, actual)


@contextmanager
def packed(is_packed: bool = True) -> Iterator[None]:
    """Within, few queries are packed, too, as many are; or swept in place, as they are."""
    from kgfast.kernels.triton.host import configs

    with patch.object(configs, "FEW_QUERIES", 0 if is_packed else configs.FEW_QUERIES):
        yield


@pytest.fixture
def few_are_packed() -> Iterator[None]:
    """All queries are packed."""
    with packed():
        yield


def known_ids(num_queries: int, num_entities: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Targets and a CSR index in random order, with duplicates, targets and empty rows."""
    rng = torch.Generator().manual_seed(seed)
    targets = torch.randint(num_entities, (num_queries,), generator=rng)
    counts = torch.randint(0, 6, (num_queries,), generator=rng)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return targets, indptr, torch.randint(num_entities, (int(indptr[-1]),), generator=rng)


def table(score: str, rows: int, dim: int, dtype: torch.dtype, seed: int, grid: float) -> Tensor:
    """Random rows; a coarse grid makes ties."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, dim * get_score(score).planes, generator=rng, dtype=torch.float64)
    return ((values * grid).round() / grid if grid else values).to(dtype)


def query_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32

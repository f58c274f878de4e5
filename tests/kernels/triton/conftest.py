"""Calls of the Triton backend without a GPU: what would be launched, on tensors without values."""

from collections import Counter
from collections.abc import Iterator

import pytest

from support.waits import pretended_triton


@pytest.fixture
def launches() -> Iterator[Counter[str]]:
    """Yield the names of kernels launched on a pretended sm_90; Triton serves every call."""
    with pretended_triton() as names:
        yield names

"""Calls of the Triton backend without a GPU: what would be launched, on tensors without values."""

from collections import Counter
from collections.abc import Iterator

import pytest

from support.waits import pretended_triton


@pytest.fixture
def launches() -> Iterator[Counter[str]]:
    """The kernels that would be launched on an sm_90, by name; Triton serves every call."""
    with pretended_triton() as names:
        yield names

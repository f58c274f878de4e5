"""A small model that is served."""

from typing import Any

import pytest

from support.serving import engine_of


@pytest.fixture(scope="session")
def engine() -> Any:
    """RotatE on the graph of docs/reference/http.md."""
    return engine_of()

"""A small model that is served."""

import pytest

from support.serving import engine_of


@pytest.fixture(scope="session")
def engine():
    """RotatE on the graph of docs/reference/http.md."""
    return engine_of()

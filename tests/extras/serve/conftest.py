"""A small model that is served."""

import pytest

from kgfast.extras.serve.engine import Engine
from support.serving import engine_of


@pytest.fixture(scope="session")
def engine() -> Engine:
    """RotatE on the graph of docs/how-to/serve.md."""
    return engine_of()

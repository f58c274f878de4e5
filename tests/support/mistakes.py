"""Tables of calls that must fail: the call of each message, under its error."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

Mistakes = Mapping[type[Exception], Mapping[str, Callable[..., Any]]]


def each_of(mistakes: Mistakes) -> pytest.MarkDecorator:
    """Parametrize a test by ``error``, ``message`` and ``call``."""
    cases = [
        pytest.param(error, message, call, id=message)
        for error, calls in mistakes.items()
        for message, call in calls.items()
    ]
    return pytest.mark.parametrize(("error", "message", "call"), cases)

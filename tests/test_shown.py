"""Quotes in errors: bounded whatever was given."""

import pytest

from kgfast.text import shown

SCREEN = 500  # characters that fit a message


class Holds:
    """A container whose own repr is long."""

    def __repr__(self):
        return "x" * 10**6


def nested_list(depth):
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "a" * 10**6,
        b"\xff" * 10**6,
        10**5000,
        -(10**5000),
        ["a" * 10**6] * 10**4,
        {"a" * 10**6: [10**5000]},
        {str(i): i for i in range(10**4)},
        nested_list(10**4),
        Holds(),
    ],
    ids=["text", "bytes", "digits", "negative", "list", "key", "mapping", "depth", "repr"],
)
def test_what_is_shown_fits_a_line(value):
    assert len(shown(value)) <= SCREEN


def test_what_is_short_is_shown_as_it_is():
    for value in ("cat", 3, [20, 10], {"a": 1}, None, 0.5, b"x", ("a", "b")):
        assert shown(value) == repr(value)

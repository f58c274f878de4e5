"""Quotes in errors: bounded whatever was given, and the nearest names at once."""

import difflib
import random
import time

import numpy as np
import pytest

from kgfast.graph import Vocabulary
from kgfast.graph.nearest import did_you_mean, nearest_names
from kgfast.text import shown

SCREEN = 500  # characters that fit a message


def random_names(count, length=20):
    letters = np.random.default_rng(0).integers(97, 123, (count, length), dtype=np.uint8)
    return letters.view(f"S{length}").ravel().astype(str).tolist()


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


def test_the_nearest_are_those_of_difflib():
    names = random_names(300, 8)
    rng = random.Random(1)
    for name in names[:100]:
        at = rng.randrange(8)
        typed = name[:at] + rng.choice(["", "q", name[at] * 2]) + name[at + 1 :]
        assert nearest_names(typed, names, 1) == difflib.get_close_matches(typed, names, 1)


@pytest.mark.parametrize("name", ["", "\n", "\ud800", "a\nb", "\0"], ids=ascii)
def test_any_text_may_be_asked_for(name):
    assert nearest_names(name, []) == []
    assert name in nearest_names(name, ["x", name, "a\n\nb", "\udfff"])


def test_did_you_mean():
    assert did_you_mean("cta", ["dog"]) == ""
    assert did_you_mean("ca", ["cat", "car"]) == "; did you mean 'cat' or 'car'?"
    assert did_you_mean(3, ["3"]) == ""


@pytest.mark.parametrize("name", ["x" * 10**6, "hypernymm" * 30], ids=["1 MB", "long"])
def test_an_unknown_name_is_answered_at_once(name):
    """Every name shares all its characters with the wanted one: difflib alone takes a minute."""
    vocabulary = Vocabulary(f"{name[:200]}{i}" for i in range(20_000))
    start = time.process_time()
    with pytest.raises(ValueError, match="unknown name") as error:
        vocabulary[name]
    assert time.process_time() - start < 10  # a minute where names are compared one by one
    assert len(str(error.value)) <= SCREEN


@pytest.mark.slow
def test_two_million_names_are_searched_at_once():
    names = random_names(2_000_000)
    start = time.process_time()
    assert nearest_names(names[-1].upper() + "q", names)[0] == names[-1]
    assert time.process_time() - start < 10  # a minute where names are compared one by one


def test_names_of_a_megabyte_are_not_repeated():
    long = "a" * 10**6
    for make in (
        lambda: Vocabulary([long, long]),
        lambda: Vocabulary([long])["aaa"],
        lambda: repr(Vocabulary([long])),
        lambda: Vocabulary([long]).ids([long[1:]]),
    ):
        try:
            text = make()
        except ValueError as error:
            text = str(error)
        assert len(str(text)) <= SCREEN


def test_a_name_that_is_no_text_is_named():
    with pytest.raises(TypeError, match=r"names must be strings, got names\[1\] = \['b'\]"):
        Vocabulary(["a", ["b"]])

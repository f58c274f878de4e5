"""Suggestions for unknown names: the right ones, soon, and in a message that fits."""

import time

import numpy as np
import pytest

from kgfast.graph import Vocabulary
from kgfast.graph.nearest import did_you_mean, nearest_names


def random_names(count, length=20):
    letters = np.random.default_rng(0).integers(97, 123, (count, length), dtype=np.uint8)
    return letters.view(f"S{length}").ravel().astype(str).tolist()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("An Smith", "Ann Smith"),
        ("ANN SMITH", "Ann Smith"),
        ("tihs", "this"),
        ("hypernim", "hypernym"),
        ("ZÜRCH", "Zürich"),
        ("a" * 2000, "a" * 1000),
    ],
)
def test_a_slip_of_the_pen_is_found(wanted, expected):
    names = ["Bob Jones", "Ann Smith", "Tom", "this", "hypernym", "hyponym", "Zürich", "a" * 1000]
    assert nearest_names(wanted, names)[0] == expected


@pytest.mark.parametrize("wanted", ["", "q", "\ud800", "a\nb", "\0", "like none"], ids=ascii)
def test_any_text_may_be_looked_for(wanted):
    assert nearest_names(wanted, ["Bob Jones", "Ann Smith"]) == nearest_names(wanted, []) == []


def test_did_you_mean():
    assert did_you_mean("cta", ["dog"]) == did_you_mean(3, ["3"]) == ""
    assert sorted(did_you_mean("ca", ["cat", "car"])) == sorted("; did you mean 'cat' or 'car'?")


@pytest.mark.parametrize("kind", ["random", "1 MB"])
def test_among_many_they_are_found_soon(kind):
    """``difflib`` alone compares names one by one, which takes half a minute and more."""
    if kind == "random":
        names = random_names(100_000, 40)
        wanted, said = names[9][:10] + "#" + names[9][11:], f"did you mean '{names[9]}'"
    else:
        names, said = [f"{'x' * 200}{i}" for i in range(20_000)], "unknown name"
        wanted = "x" * 10**6
    vocabulary = Vocabulary(names)
    start = time.process_time()
    with pytest.raises(ValueError, match=said) as error:
        vocabulary[wanted]
    assert time.process_time() - start < 10
    assert len(str(error.value)) <= 500

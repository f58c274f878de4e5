"""Suggestions for unknown names: the right ones, soon, and in a message that fits."""

import difflib
import random
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
        ("Ann  Smith", "Ann Smith"),
        ("tihs", "this"),
        ("hypernim", "hypernym"),
        ("Zürch", "Zürich"),
        ("ZÜRICH", "Zürich"),
        ("a" * 2000, "a" * 1000),
    ],
)
def test_a_slip_of_the_pen_is_found(wanted, expected):
    names = ["Bob Jones", "Ann Smith", "Tom", "this", "hypernym", "hyponym", "Zürich", "a" * 1000]
    assert nearest_names(wanted, names)[0] == expected


def test_the_nearest_come_first_and_few():
    names = [f"person_{i}" for i in range(1000)]
    found = nearest_names("person_1234", names, count=3)
    assert len(found) == 3
    assert found[0] in ("person_123", "person_124", "person_134", "person_234")


@pytest.mark.parametrize("wanted", ["", "q", "\n", "\ud800", "a\nb", "\0", "like none"], ids=ascii)
def test_any_text_may_be_asked_for(wanted):
    assert nearest_names(wanted, ["Bob Jones", "Ann Smith"]) == nearest_names(wanted, []) == []
    assert wanted in nearest_names(wanted, ["x", wanted, "a\n\nb", "\udfff"])


def test_the_nearest_are_those_of_difflib():
    names, pick = random_names(300, 8), random.Random(1)
    for name in names[:100]:
        at = pick.randrange(8)
        typed = name[:at] + pick.choice(["", "q", name[at] * 2]) + name[at + 1 :]
        assert nearest_names(typed, names, 1) == difflib.get_close_matches(typed, names, 1)


def test_did_you_mean():
    assert did_you_mean("cta", ["dog"]) == ""
    assert did_you_mean("ca", ["cat", "car"]) == "; did you mean 'cat' or 'car'?"
    assert did_you_mean(3, ["3"]) == ""


LARGE = {
    "random": lambda: random_names(20_000, 40),
    "1 MB": lambda: [f"{'x' * 200}{i}" for i in range(20_000)],
    "long": lambda: [f"{('hypernymm' * 30)[:200]}{i}" for i in range(20_000)],
    "two million": lambda: random_names(2_000_000),
}
WANTED = {"1 MB": "x" * 10**6, "long": "hypernymm" * 30}
SLOW = [pytest.param("two million", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", [*list(LARGE)[:-1], *SLOW])
def test_among_many_they_are_found_soon(kind):
    """``difflib`` alone compares names one by one, which takes half a minute and more."""
    names = LARGE[kind]()
    wanted = WANTED.get(kind, names[9][:10] + "#" + names[9][11:])
    said = "unknown name" if kind in WANTED else f"did you mean '{names[9]}'"
    vocabulary = Vocabulary(names)
    start = time.process_time()
    with pytest.raises(ValueError, match=said) as error:
        vocabulary[wanted]
    assert time.process_time() - start < 10
    assert len(str(error.value)) <= 500

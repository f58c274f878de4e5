"""Suggestions for unknown names: the right ones, soon, and in a message that fits."""

import random
import string
import time

import pytest

from kgfast.graph import Vocabulary, nearest_names


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


@pytest.mark.parametrize("wanted", ["", "q", "nothing like it at all"])
def test_nothing_is_near(wanted):
    assert nearest_names(wanted, ["Bob Jones", "Ann Smith"]) == []
    assert nearest_names(wanted, []) == []


def test_the_nearest_come_first_and_few():
    names = [f"person_{i}" for i in range(1000)]
    found = nearest_names("person_1234", names, count=3)
    assert len(found) == 3
    assert found[0] in ("person_123", "person_124", "person_134", "person_234")


def test_among_tens_of_thousands_it_is_found_soon():
    """``difflib`` alone takes 25 seconds; 5 are ten times what a slow machine needs."""
    pick = random.Random(0)
    names = ["".join(pick.choices(string.ascii_lowercase, k=40)) for _ in range(20_000)]
    wanted = names[9][:20] + "#" + names[9][21:]
    start = time.process_time()
    with pytest.raises(ValueError, match=f"did you mean '{names[9]}'"):
        Vocabulary(names)[wanted]
    assert time.process_time() - start < 5

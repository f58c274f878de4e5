"""Calls drawn at random, on any model, against dense formulas and brute force; bad ones are told.

``make fuzz`` draws more of them. A failure names the command that draws it alone.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz import evaluations, invalid, model_losses
from fuzz.case import Case, Wrong, refused
from support.engines import examples
from support.sampled import threads

KINDS = {
    "rank": evaluations.rank,
    "topk": evaluations.topk,
    "losses of samples": model_losses.sampled,
    "losses of all": model_losses.whole,
    "invalid operands": invalid.operators,
    "invalid calls": invalid.calls,
}
ALONE = os.environ.get("CASE", "")  # KIND:NUMBER


@pytest.mark.parametrize("kind", [ALONE.partition(":")[0]] if ALONE else KINDS)
@examples(20)
@given(number=st.just(int(ALONE.partition(":")[2])) if ALONE else st.integers(0, 2**31 - 1))
def test_a_drawn_call_is_as_it_should_be(kind, number):
    case = Case(kind, number)
    try:
        with threads(1):
            KINDS[kind](case)
    except Exception as error:
        error.add_note(f"drawn: {' '.join(case.notes)}\nalone: make fuzz CASE='{kind}:{number}'")
        raise


def test_a_call_is_drawn_from_its_number():
    first, again, other = Case("rank", 2), Case("rank", 2), Case("rank", 3)
    assert first.normal(3).equal(again.normal(3))
    assert first.pick.random() == again.pick.random() != other.pick.random()


def test_what_should_be_refused():
    def raises(error):
        raise error

    assert refused(lambda: raises(ValueError("k must be 1")), errors=(ValueError,)) == "k must be 1"
    for call in (
        lambda: 3,
        lambda: raises(KeyError("k")),
        lambda: raises(ValueError("")),
        lambda: raises(ValueError("two\nlines")),
        lambda: raises(ValueError("x" * 5000)),
    ):
        with pytest.raises(Wrong):
            refused(call, errors=(ValueError,))

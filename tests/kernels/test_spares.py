"""Memory that one step leaves to the next is taken once, by what has its shape and dtype."""

import pytest
import torch

from kgfast.kernels.spares import Spares, constant, empty_like, numbers


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def test_the_last_of_a_kind_is_taken_once():
    spares, old, last = Spares(), ones(4, 3), ones(4, 3)
    spares.give(old)
    spares.give(last)
    with spares.in_use():
        taken, other = empty_like(ones(4, 3)), empty_like(ones(4, 3))
    assert taken.data_ptr() == last.data_ptr()
    assert other.data_ptr() not in (old.data_ptr(), last.data_ptr())
    assert not taken.requires_grad


@pytest.mark.parametrize("like", [ones(3, 4), ones(4, 3, dtype=torch.float64), ones(4, 2)])
def test_other_shapes_and_dtypes_get_their_own(like):
    spares, old = Spares(), ones(4, 3)
    spares.give(old)
    with spares.in_use():
        made = empty_like(like)
    assert made.data_ptr() != old.data_ptr()
    assert (made.shape, made.dtype) == (like.shape, like.dtype)


@pytest.mark.parametrize("part", [lambda it: it[:4], lambda it: it.T, lambda it: it[:, :2]])
def test_parts_of_others_are_not_kept(part):
    spares, whole = Spares(), ones(8, 3)
    spares.give(part(whole))
    assert spares.take(part(whole)) is None


def test_nothing_is_taken_outside_and_after_it_was_cleared():
    spares, old = Spares(), ones(4, 3)
    spares.give(old)
    assert empty_like(ones(4, 3)).data_ptr() != old.data_ptr()
    spares.clear()
    assert spares.take(ones(4, 3)) is None


def test_a_constant_is_made_once_within_and_anew_outside():
    spares, given = Spares(), (torch.float32, torch.device("cpu"))
    with spares.in_use():
        first, again = constant(2.0, (1,), *given), constant(2.0, (1,), *given)
        others = constant(3.0, (1,), *given), constant(2.0, (2,), *given)
    assert first is again
    assert first.tolist() == constant(2.0, (1,), *given).tolist() == [2.0]
    assert [it.tolist() for it in others] == [[3.0], [2.0, 2.0]]
    assert constant(2.0, (1,), *given) is not first
    with spares.in_use():
        first.add_(1)  # somebody's own
        assert constant(2.0, (1,), *given).tolist() == [2.0]


def test_numbers_are_kept_on_a_device_alone():
    there, here = torch.device("meta"), torch.device("cpu")
    with Spares().in_use():
        assert numbers(3, there) is numbers(3, there)
        assert len(numbers(2, there)) == 2
        assert numbers(3, here) is not numbers(3, here)

"""Forward-mode derivatives are refused: they would come out as zeros."""

import pytest
import torch
from torch.autograd import forward_ad

from kgfast import TransE, losses
from support.operators import NAMES, operands, served


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_dual_number_is_refused(name, place, trains):
    given = [it.detach().requires_grad_(trains) for it in operands(name)]
    with forward_ad.dual_level():
        given[place] = forward_ad.make_dual(given[place], torch.ones_like(given[place]))
        with pytest.raises(NotImplementedError, match=f"ops.{name} has no forward-mode derivative"):
            served(name, given)


@pytest.mark.parametrize("name", NAMES)
def test_jvp_is_refused(name):
    queries, *others = (it.detach() for it in operands(name))
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(
            lambda it: served(name, [it, *others]), (queries,), (torch.ones_like(queries),)
        )


@pytest.mark.parametrize("name", NAMES)
def test_other_tensors_of_a_dual_level_are_served(name):
    plain = served(name, operands(name))
    with forward_ad.dual_level():
        assert torch.equal(served(name, operands(name)), plain)


def test_a_loss_of_a_model():
    model = TransE.init(5, 2, 3, seed=0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(model.entity.detach(), torch.ones(5, 3))
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            losses.nssa(model.with_entity(dual), [(0, 0, 1)], torch.tensor([[2, 3]]))

"""Forward-mode derivatives are refused: they would come out as zeros."""

import pytest
import torch
from torch.autograd import forward_ad

from kgfast import TransE, losses, ops
from kgfast.kernels import cpu

CSR = torch.tensor([0, 1, 2]), torch.tensor([3, 0])
TARGETS = torch.tensor([3, 0])
INDEX = torch.tensor([[0, 1], [2, 2]])
OPERATORS = {
    "pairwise_scores": lambda q, t, b: ops.pairwise_scores(q, t, "l1", bias=b),
    "indexed_scores": lambda q, t, b: ops.indexed_scores(q, t, INDEX, "l1", bias=b),
    "bce": lambda q, t, b: ops.bce(q, t, b, *CSR, 1.0, 0.0, "l1"),
    "bce_total": lambda q, t, b: ops.bce_total(q, t, b, *CSR, 1.0, 0.0, "l1"),
    "cross_entropy": lambda q, t, b: ops.cross_entropy(q, t, b, TARGETS, 0.0, "l1"),
    "cross_entropy_total": lambda q, t, b: ops.cross_entropy_total(q, t, b, TARGETS, 0.0, "l1"),
}


def operands():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in ((2, 4), (5, 4), (5,))]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_dual_number_is_refused(name, place, trains):
    given = [it.requires_grad_(trains) for it in operands()]
    with forward_ad.dual_level():
        given[place] = forward_ad.make_dual(given[place], torch.ones_like(given[place]))
        with pytest.raises(NotImplementedError, match=f"ops.{name} has no forward-mode derivative"):
            OPERATORS[name](*given)


@pytest.mark.parametrize("name", OPERATORS)
def test_jvp_is_refused(name):
    queries, table, bias = operands()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(
            lambda it: OPERATORS[name](it, table, bias), (queries,), (torch.ones_like(queries),)
        )


@pytest.mark.parametrize("name", OPERATORS)
def test_other_tensors_of_a_dual_level_are_served(name):
    plain = OPERATORS[name](*operands())
    with forward_ad.dual_level():
        assert torch.equal(OPERATORS[name](*operands()), plain)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_adversarial_rows():
    with forward_ad.dual_level():
        scores = forward_ad.make_dual(torch.zeros(2, 3), torch.ones(2, 3))
        with pytest.raises(NotImplementedError, match="adversarial_rows has no forward-mode"):
            ops.adversarial_rows(scores, 1.0)


def test_a_loss_of_a_model():
    model = TransE.init(5, 2, 3, seed=0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(model.entity.detach(), torch.ones(5, 3))
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            losses.nssa(model.with_entity(dual), [(0, 0, 1)], torch.tensor([[2, 3]]))

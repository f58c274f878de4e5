"""Tensors of devices without kernels are copied to the CPU, with one notice.

No such device is here: tensors say that they are on one, or the CPU is taken for one.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

import kgfast
from kgfast import ops
from kgfast.eval.preparation import host_model
from kgfast.ops import dispatch, registry, run
from kgfast.ops.run import operands_of


class Elsewhere(Tensor):
    """A tensor that says that it is on another device."""

    @property
    def device(self):
        return torch.device("mps")

    def cpu(self):
        return self.as_subclass(Tensor)


def elsewhere(*shape):
    return torch.ones(shape).as_subclass(Elsewhere)


@pytest.fixture(autouse=True)
def not_warned(monkeypatch):
    monkeypatch.setattr(dispatch, "_warned", set())


def test_an_operator_sees_the_cpu_and_its_results_go_back(monkeypatch):
    seen, sent = [], []

    @registry.operator("copies_of_a_test")
    def body(table: Tensor, other: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
        seen.append((type(table), other, width))
        return table + 1, table.new_zeros(width)

    monkeypatch.setattr(registry, "_moved", lambda results, device: sent.append(device) or results)
    with pytest.warns(RuntimeWarning, match="no kernels for mps tensors: they are copied to the C"):
        results = body.serve(elsewhere(3, 2), None, 4)
    del registry._libraries[body.name], registry.OPERATORS[body.name]
    assert seen == [(Tensor, None, 4)]
    assert sent == [torch.device("mps")]
    assert [it.tolist() for it in results] == [[[2.0, 2.0]] * 3, [0.0] * 4]


def test_the_cpu_serves_them_and_says_so_once(recwarn):
    for _ in range(3):
        assert dispatch.backend_for(torch.device("mps")) == "cpu"
    with ops.use_backend("cpu"):
        assert dispatch.backend_for(torch.device("xpu")) == "cpu"
    assert [str(it.message).split()[4] for it in recwarn] == ["mps", "xpu"]
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="cannot serve tensors on cuda"):
        dispatch.backend_for(torch.device("cuda"))


def test_a_model_is_copied_with_all_that_it_holds():
    class Holding:  # no module, but holds one and a tensor
        def __init__(self):
            self.part, self.table = nn.Linear(2, 2), elsewhere(3, 2)

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.entity = nn.Parameter(elsewhere(3, 2), requires_grad=False)
            self.register_buffer("mask", elsewhere(3))
            self.same = self.entity

    module, other = Module(), Holding()
    with pytest.warns(RuntimeWarning, match="they are copied to the CPU"):
        copied, held = host_model(module), host_model(other)
    assert {it.device.type for it in (*copied.parameters(), *copied.buffers())} == {"cpu"}
    assert {it.device.type for it in (*module.parameters(), *module.buffers())} == {"mps"}
    assert isinstance(copied.entity, nn.Parameter)
    assert not copied.entity.requires_grad
    assert copied.same is copied.entity
    assert (held.table.device.type, other.table.device.type) == ("cpu", "mps")


def test_a_model_of_the_cpu_is_not_copied():
    model = kgfast.TransE.init(5, 1, 2, seed=0)
    assert host_model(model) is model


def test_results_are_those_without_the_way(monkeypatch):
    model = kgfast.RotatE.init(20, 2, 4, seed=0)
    triples = torch.tensor([[0, 1, 2], [3, 0, 4]])
    ranks = kgfast.rank(model, triples)
    best = kgfast.topk(model, heads=[0, 3], relations=0, k=3)
    facts = kgfast.top_facts(model, k=3)
    table = torch.randn(6, 4, requires_grad=True)
    queries = torch.randn(2, 4)
    scored = ops.pairwise_scores(queries, table, "l1")
    (gradient,) = torch.autograd.grad(scored.sum(), table)
    copies, moved = [], []
    monkeypatch.setattr(registry, "_moved", lambda results, device: moved.append(device) or results)
    monkeypatch.setattr(dispatch, "COPIED", ("cpu",))
    monkeypatch.setattr("kgfast.ops.run.COPIED", ())
    monkeypatch.setattr(copy, "deepcopy", lambda model, memo: copies.append(model) or model)
    with pytest.warns(RuntimeWarning, match="no kernels for cpu tensors"):
        again = ops.pairwise_scores(queries, table, "l1")
    assert torch.equal(again, scored)
    assert len(moved) == 1
    assert torch.equal(torch.autograd.grad(again.sum(), table)[0], gradient)
    assert moved == [torch.device("cpu")] * 2
    assert torch.equal(kgfast.rank(model, triples).greater, ranks.greater)
    assert torch.equal(kgfast.topk(model, heads=[0, 3], relations=0, k=3).ids, best.ids)
    assert torch.equal(kgfast.top_facts(model, k=3).triples, facts.triples)
    assert copies == [model] * 3


def test_what_was_not_copied_is_refused():
    table = elsewhere(3, 2)
    with pytest.raises(ValueError, match="no kernels for tensors on mps: move the model to the C"):
        run.backend_of(operands_of(table[:2], table, "l1"))

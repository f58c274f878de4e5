"""Registered operators: what torch knows of them; the compiler stays unloaded."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kgfast.ops import adversarial, registry
from kgfast.ops.registry import Operator, operator

NAMES = sorted(registry._libraries)
KEYS = ("CompositeExplicitAutograd", "Autograd", "Meta")


def halve(value: Tensor, count: int, other: Tensor | None) -> Tensor:
    return value / 2


@pytest.fixture
def op():
    yield Operator("halve_of_a_test", halve)
    registry._libraries.pop("halve_of_a_test")


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_knows_of_an_operator(name):
    found = getattr(torch.ops.kgfast, name).default
    never = "adversarial", "compose", "filters", "med_loss"
    never_waits = name.startswith(never) or name == "total_backward"
    assert (torch.Tag.cudagraph_unsafe in found.tags) != never_waits
    assert torch.Tag.pt2_compliant_tag in found.tags
    assert len(found.tags) == 2 - never_waits
    for key in KEYS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(found._name, key), key
    assert not found._schema.is_mutable
    assert all(it.alias_info is None for it in (*found._schema.arguments, *found._schema.returns))


def test_the_operators_of_kgfast():
    assert {
        "rank_counts",
        "topk",
        "bce",
        "bce_total",
        "cross_entropy",
        "cross_entropy_total",
    } <= set(NAMES)
    assert {"pairwise_scores", "indexed_scores", "adversarial_rows"} <= set(NAMES)


def test_annotations_are_the_schema(op):
    schema = str(torch.ops.kgfast.halve_of_a_test.default._schema)
    assert schema.endswith("(Tensor value, SymInt count, Tensor? other) -> Tensor")


def test_arguments_come_by_name(op):
    seen: list[SimpleNamespace] = []

    def save(ctx: Any, given: SimpleNamespace, output: Tensor) -> None:
        seen.append(given)

    def backward(ctx: Any, need: list[bool], grad: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(SimpleNamespace(need=need))
        return grad / 2, grad

    op.differentiate(backward, save, wrt=("value", "other"))
    value = torch.ones(2, requires_grad=True)
    torch.ops.kgfast.halve_of_a_test(value, other=torch.ones(1), count=3).sum().backward()
    assert seen[0].count == 3
    assert seen[0].value is not None
    assert seen[1].need == [True, False]
    assert value.grad.tolist() == [0.5, 0.5]


def test_a_fake_gets_arguments_by_name(op):
    op.fake(lambda given: given.value.new_empty(given.count))
    result = torch.ops.kgfast.halve_of_a_test(torch.empty(2, device="meta"), 5, None)
    assert result.shape == (5,)


def test_without_a_gradient_a_backward_raises(op):
    result = torch.ops.kgfast.halve_of_a_test(torch.ones(2, requires_grad=True), 1, None)
    with pytest.raises(RuntimeError, match="kgfast::halve_of_a_test has no gradient"):
        result.sum().backward()


def test_a_module_can_be_loaded_again():
    before = torch.ops.kgfast.adversarial_rows(torch.zeros(1, 2), 1.0)
    importlib.reload(adversarial)
    scores = torch.zeros(1, 2, requires_grad=True)
    after = torch.ops.kgfast.adversarial_rows(scores, 1.0)
    assert torch.equal(before[0], after[0])
    after[0].sum().backward()
    assert scores.grad.tolist() == [[0.25, 0.25]]


def test_the_compiler_does_not_look_into_an_operator():
    """Also where a compiled function falls back to eager: there it looks into every call."""
    compiling = []

    @operator("body_of_a_test")
    def body(value: Tensor) -> Tensor:
        compiling.append(torch.compiler.is_compiling())
        return value + 1

    def falls_back(value):
        if torch.compiler.is_compiling():
            raise RuntimeError("not under the compiler")
        return torch.ops.kgfast.body_of_a_test(value)

    try:
        torch.compile(falls_back, backend="eager")(torch.zeros(1))
    finally:
        registry._libraries.pop("body_of_a_test")
    assert compiling == [False]

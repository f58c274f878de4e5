"""Registered operators: what torch knows of them; the compiler stays unloaded."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kgfast.ops import registry
from kgfast.ops.registry import OPERATORS, operator

NAMES = sorted(OPERATORS)
KEYS = ("CompositeExplicitAutograd", "Meta")


def forget(name: str) -> None:
    del registry._libraries[name], OPERATORS[name]


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_knows_of_an_operator(name):
    found = getattr(torch.ops.kgfast, name).default
    never_waits = name.startswith(("compose", "filters"))
    assert (torch.Tag.cudagraph_unsafe in found.tags) != never_waits
    assert torch.Tag.pt2_compliant_tag in found.tags
    assert len(found.tags) == 2 - never_waits
    for key in KEYS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(found._name, key), key
    assert not found._schema.is_mutable
    assert all(it.alias_info is None for it in (*found._schema.arguments, *found._schema.returns))


def test_a_gradient_gets_kept_results_and_arguments_by_name():
    @operator("scale_of_a_test")
    def body(value: Tensor, count: int, other: Tensor) -> tuple[Tensor, Tensor]:
        return value * count, other + 1

    @body.fake
    def _(value: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(value), torch.empty_like(value)

    @body.gradient("value", "other")
    def _(
        grad: Tensor, kept: Tensor, value: Tensor, count: int, other: Tensor, need: Sequence[bool]
    ):
        seen.append((kept.tolist(), count, [*need]))
        return grad * count, None

    seen: list[tuple] = []
    value, other = torch.ones(2, requires_grad=True), torch.zeros(2)
    assert body(torch.empty(2, device="meta"), 3, other.to("meta"))[0].shape == (2,)
    body(value, other=other, count=3)[0].sum().backward()
    assert seen == [([1.0, 1.0], 3, [True, False])]
    assert value.grad.tolist() == [3.0, 3.0]
    for name in ("scale_of_a_test", "scale_of_a_test_backward"):
        forget(name)


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
        forget("body_of_a_test")
    assert compiling == [False]

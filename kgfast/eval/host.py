"""Models on devices that have no kernels, such as MPS and XPU: ranked by a copy on the CPU."""

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import Tensor, nn

from kgfast.models.reciprocal import holder_of
from kgfast.ops.dispatch import is_copied

AnyModel = TypeVar("AnyModel")


def host_model(model: AnyModel) -> AnyModel:
    """The model itself, or a copy on the CPU where its device has no kernels, with one notice.

    The copy is made with the tensors on the CPU already, so that its device needs no room for it.
    """
    moved: dict[int, Any] = {}
    for tensor in _tensors_of(model):
        if is_copied(tensor.device):
            host = tensor.detach().cpu()
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = (
                nn.Parameter(host, requires_grad=tensor.requires_grad) if is_parameter else host
            )
    return copy.deepcopy(model, moved) if moved else model


def _tensors_of(model: Any) -> Iterator[Tensor]:
    """Parameters and buffers of a module; of another object those that it and its modules hold."""
    model = holder_of(model)
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
    for value in getattr(model, "__dict__", {}).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module) and not isinstance(model, nn.Module):
            yield from _tensors_of(value)

"""Backend, precision and empty results of the differentiable operators."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kgfast.kernels.backend import kernel_of
from kgfast.kernels.checks import decided_once
from kgfast.ops.dispatch import backend_for, find_backend, get_backend

_HALF = (torch.float16, torch.bfloat16)


def full_precision(queries: Tensor) -> Tensor:
    """Return queries in half precision, as under autocast, as float32, which is exact."""
    if isinstance(queries, Tensor) and queries.dtype in _HALF:
        return queries.float()
    return queries


def chosen_backend(queries: Tensor) -> str:
    """Return the backend of a forward, which the backward uses again.

    Float64 queries are served by the reference, since all other backends score in float32.
    """
    return "reference" if queries.dtype == torch.float64 else backend_for(queries.device)


@decided_once
def offers(device: torch.device, kernel: str) -> bool:
    """Return whether the backend that serves a device has an optional kernel."""
    return kernel_of(get_backend(find_backend(device)[0]), kernel) is not None


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off: kernels choose the precision of their computations."""
    if not (
        torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    ):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def refuse_forward_mode(name: str, *tensors: Tensor | None) -> None:
    """Raise if a tensor has a forward-mode derivative, which would be lost silently."""
    if forward_ad._current_level < 0:
        return
    for tensor in tensors:
        if isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise no_forward_mode(name)


def no_forward_mode(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"kgfast.ops.{name} has no forward-mode derivative (jvp, jacfwd, hessian, dual numbers): "
        f"use backward(), torch.autograd.grad or torch.func.grad"
    )


def refuse_sparse(name: str) -> None:
    """Raise if a transform or the compiler runs: a sparse gradient's size depends on ids."""
    if torch.compiler.is_compiling() or is_transformed():
        raise RuntimeError(
            f"{name}: sparse=True gives a gradient whose size depends on ids, so sparse=True is "
            f"eager only; use sparse=False under torch.compile and torch.func"
        )


def has_gradients(*tensors: Tensor | None) -> bool:
    """Return whether a backward may follow that no transform of torch makes."""
    if not torch.is_grad_enabled() or is_transformed():
        return False
    return any(it is not None and it.requires_grad for it in tensors)


def is_transformed() -> bool:
    """Return whether a transform of torch runs, such as those of ``torch.func``."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def empty_scores(queries: Tensor, shape: Sequence[int]) -> Tensor:
    """Make room for scores: float64 for float64 queries, else float32."""
    return torch.empty(tuple(shape), dtype=result_dtype(queries), device=queries.device)


def result_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype of scores and losses: float64 for float64 queries, else float32."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def zero_gradients(tensors: Sequence[Tensor | None], need: Sequence[bool]) -> list[Tensor]:
    """Make zeros like the tensors; empty ones where not needed. The first is never None."""
    first = tensors[0]
    assert first is not None
    return [
        first.new_empty(0)
        if tensor is None or not needed
        else torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        for tensor, needed in zip(tensors, need, strict=True)
    ]


def or_empty(gradient: Tensor | None, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a gradient, or an empty tensor for None, which an operator cannot return."""
    return like.new_empty(0, dtype=dtype) if gradient is None else gradient


def bias_gradient(per_candidate: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient ``[N]`` in the shape (``[N]`` or ``[1]``) and the dtype of the bias."""
    total = per_candidate if bias.shape == per_candidate.shape else per_candidate.sum(0, True)
    return total.to(bias.dtype)

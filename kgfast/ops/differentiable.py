"""Backend, precision and empty results of the differentiable operators."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kgfast.ops.dispatch import backend_for

_HALF = (torch.float16, torch.bfloat16)


def full_precision(rows: Tensor) -> Tensor:
    """Cast rows in half precision, as autocast makes queries, to float32: no rounding."""
    if isinstance(rows, Tensor) and rows.dtype in _HALF:
        return rows.float()
    return rows


def chosen_backend(queries: Tensor) -> str:
    """Return the backend for a forward and its backward.

    Float64 queries are served by the reference, since all other backends score in float32.
    """
    return "reference" if queries.dtype == torch.float64 else backend_for(queries.device)


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off: kernels choose the precision of their computations."""
    kind = device.type
    is_available = kind == "cpu" or torch.amp.is_autocast_available(kind)
    if not (is_available and torch.is_autocast_enabled(kind)):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def is_transformed() -> bool:
    """Return whether a transform of torch runs, such as those of ``torch.func``."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def refuse_sparse(name: str) -> None:
    """Raise if the compiler runs: a sparse gradient's size depends on ids."""
    if torch.compiler.is_compiling():
        raise RuntimeError(
            f"{name}: sparse=True gives a gradient whose size depends on ids, so sparse=True is "
            f"eager only; use sparse=False under torch.compile"
        )


def refuse_second() -> None:
    """Raise within a backward that has to be differentiated in turn."""
    if torch.is_grad_enabled():
        message = "losses and operators of kgfast can be differentiated once: create_graph"
        raise RuntimeError(message)


def has_gradients(*tensors: Tensor | None) -> bool:
    """Return whether a backward may follow."""
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


def result_dtype(queries: Tensor) -> torch.dtype:
    """Return the dtype of scores and losses: float64 for float64 queries, else float32."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def bias_gradient(per_candidate: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient ``[N]`` in the shape (``[N]`` or ``[1]``) and the dtype of the bias."""
    total = per_candidate if bias.shape == per_candidate.shape else per_candidate.sum(0, True)
    return total.to(bias.dtype)

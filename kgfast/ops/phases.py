"""Cosine and sine of the phases of queries, with equal bits on every device."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kgfast.kernels.cpu import rotations
from kgfast.kernels.reference import trig
from kgfast.ops.dispatch import find_backend


def cos_sin(phases: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of float64 radians as the reference defines them.

    Without gradients and graphs, a kernel of the CPU computes both.
    """
    is_plain = type(phases) is Tensor and phases.device.type == "cpu"
    if not is_plain or torch.is_grad_enabled() or torch.compiler.is_compiling() or _is_traced():
        return trig.cos_sin(phases)
    if find_backend(phases.device)[0] != "cpu":
        return trig.cos_sin(phases)
    return rotations.cos_sin(phases)


def _is_traced() -> bool:
    in_functorch = torch._C._functorch.maybe_current_level() is not None
    return in_functorch or forward_ad._current_level >= 0

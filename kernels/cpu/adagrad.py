"""Adagrad on the CPU: a parameter and its sum of squares in one pass.

Cost model: host/adagrad.h. Bits do not depend on threads; they are those of torch's fused Adagrad.
"""

from torch import Tensor

from ..backend import AdagradStep
from . import extension
from .views import address, machine


def adagrad(parameter: Tensor, sums: Tensor, gradient: Tensor, step: AdagradStep) -> None:
    """Update; the contract of :func:`kgfast.ops.adagrad`."""
    gradient = gradient.contiguous()
    tensors = parameter, sums, gradient
    numbers = (*(address(it) for it in tensors), parameter.numel())
    extension.adagrad(machine(), numbers, [step.lr, step.eps, step.weight_decay])

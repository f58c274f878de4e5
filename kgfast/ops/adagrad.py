"""Adagrad on a whole parameter, in place, on the threads that other kernels compute on.

Not a torch.library operator, as :mod:`kgfast.ops.row_adam`.
"""

import torch
from torch import Tensor

from kgfast.kernels.backend import AdagradStep
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_apart
from kgfast.ops.dispatch import get_backend


def serves_adagrad(parameter: Tensor) -> bool:
    """Return whether :func:`adagrad` takes a parameter: contiguous float32 of the extension."""
    fits = parameter.dtype == torch.float32 and parameter.is_contiguous()
    fits = fits and not parameter.is_neg()
    return fits and common.offers(parameter.device, "adagrad")


def adagrad(
    parameter: Tensor,
    sums: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Update a parameter and its sums of squared gradients (Duchi et al. 2011), as torch does.

    Parameters
    ----------
    parameter, sums : Tensor
        As :func:`serves_adagrad` says, of one shape.
    gradient : Tensor
        float32 of that shape, any strides.
    lr, eps, weight_decay
        As of :class:`torch.optim.Adagrad`.

    Raises
    ------
    ValueError
        For tensors that do not fit, or that share memory. Nothing is changed then.

    Examples
    --------
    >>> table, sums = torch.zeros(1, 2), torch.zeros(1, 2)
    >>> adagrad(table, sums, torch.tensor([[4.0, -1.0]]), lr=0.5, eps=0.0, weight_decay=0.0)
    >>> table.tolist(), sums.tolist()
    ([[-0.5, 0.5]], [[16.0, 1.0]])
    """
    tensors = {"parameter": parameter, "sums": sums, "gradient": gradient}
    for name, tensor in tensors.items():
        is_written = name != "gradient"
        if (
            tensor.shape != parameter.shape
            or tensor.dtype != torch.float32
            or tensor.device != parameter.device
            or (is_written and not serves_adagrad(tensor))
        ):
            raise ValueError(
                f"{name} must be float32 {list(parameter.shape)} on the CPU, with the extension "
                f"built; got {tensor.dtype} {list(tensor.shape)} with strides "
                f"{list(tensor.stride())} on {tensor.device}"
            )
    check_apart("sums", sums, "parameter", parameter)
    for name in ("parameter", "sums"):
        check_apart("gradient", gradient, name, tensors[name])
    if parameter.numel():
        update = get_backend(common.chosen_backend(parameter)).adagrad
        assert update is not None
        update(parameter, sums, gradient.resolve_neg(), AdagradStep(lr, eps, weight_decay))
        # Written through pointers: autograd, and an index, know of writes by torch alone.
        torch.autograd.graph.increment_version((parameter, sums))

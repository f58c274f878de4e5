"""Sum rows of scores, weighted by the softmax of the row, for self-adversarial sampling."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.backend import Adversarial
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_bounded, check_tensor
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator


def serves_adversarial(scores: Tensor) -> bool:
    """Return whether :func:`adversarial_rows` takes these scores.

    Scores must be float32, and the backend must fuse this loss.
    """
    fits = scores.dtype == torch.float32 and scores.numel() > 0
    return fits and common.offers(scores.device, "adversarial")


def adversarial_rows(scores: Tensor, alpha: float) -> Tensor:
    """Return ``sum_i p_i softplus(scores_i)`` of each row, ``p = softmax(alpha * scores)``.

    No gradient flows through p (Sun et al. 2019, eq. 5-6). The operator is differentiable once. Two
    runs give equal bits, for any number of threads.

    Parameters
    ----------
    scores : Tensor
        ``[R, K]`` float32, neither empty; see :func:`serves_adversarial`.
    alpha : float
        Finite, at least 0.

    Returns
    -------
    Tensor
        float32 ``[R]``; NaN where a score of the row is NaN or infinite upwards.

    Raises
    ------
    ValueError, TypeError
        For scores of another kind, or an alpha that is negative or not finite.

    Examples
    --------
    >>> adversarial_rows(torch.tensor([[0.0, 0.0]]), 1.0)
    tensor([0.6931])
    """
    common.refuse_forward_mode("adversarial_rows", scores)
    check_tensor("scores", scores)
    if scores.ndim != 2 or not serves_adversarial(scores):
        raise ValueError(
            "scores must be [R, K] float32, not empty, where a backend fuses this loss (the CPU's "
            f"extension, Triton); got {scores.dtype} {list(scores.shape)} on {scores.device}"
        )
    check_bounded("alpha", alpha, 0)
    return _adversarial_rows(scores, float(alpha))[0]


@operator("adversarial_rows")
def _adversarial_rows(scores: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows, the highest score of each, and the sum of the weights of each."""
    return _kernel(scores).rows(scores, alpha)


@_adversarial_rows.fake
def _(scores: Tensor) -> tuple[Tensor, ...]:
    return tuple(scores.new_empty(len(scores)) for _ in range(3))


@_adversarial_rows.gradient("scores", of="adversarial_rows")
def _adversarial_backward(
    grad: Tensor, peaks: Tensor, masses: Tensor, scores: Tensor, alpha: float, need: Sequence[bool]
) -> tuple[Tensor]:
    return (_kernel(scores).backward(grad, scores, peaks, masses, alpha),)


def _kernel(scores: Tensor) -> Adversarial:
    kernel = get_backend(common.chosen_backend(scores)).adversarial
    assert kernel is not None
    return kernel

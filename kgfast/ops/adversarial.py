"""Rows of scores weighted by their own softmax: the negatives of self-adversarial sampling."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.backend import Adversarial
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_bounded, check_tensor
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator


def serves_adversarial(scores: Tensor) -> bool:
    """Whether :func:`adversarial_rows` takes these scores.

    It does float32 where the backend fuses this loss; elsewhere torch's own operators do.
    """
    fits = scores.dtype == torch.float32 and scores.numel() > 0
    return fits and common.offers(scores.device, "adversarial")


def adversarial_rows(scores: Tensor, alpha: float) -> Tensor:
    """``sum_i p_i softplus(scores_i)`` of each row, ``p = softmax(alpha * scores)``.

    No gradient flows through p (Sun et al. 2019, eq. 5-6). Differentiable once; two runs give
    equal bits, whatever the number of threads.

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
    rows: Tensor = torch.ops.kgfast.adversarial_rows(scores, float(alpha))[0]
    return rows


@operator("adversarial_rows")
def _adversarial_rows(scores: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, and for the backward their highest scores and the sums of their weights."""
    return _kernel(scores).rows(scores, alpha)


@_adversarial_rows.fake
def _(args: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    rows, peaks, masses = (args.scores.new_empty(len(args.scores)) for _ in range(3))
    return rows, peaks, masses


@operator("adversarial_backward")
def _adversarial_backward(
    grad_rows: Tensor, scores: Tensor, peaks: Tensor, masses: Tensor, alpha: float
) -> Tensor:
    return _kernel(scores).backward(grad_rows, scores, peaks, masses, alpha)


@_adversarial_backward.fake
def _(args: SimpleNamespace) -> Tensor:
    slopes: Tensor = args.scores.new_empty(args.scores.shape)
    return slopes


def _kernel(scores: Tensor) -> Adversarial:
    kernel = get_backend(common.chosen_backend(scores)).adversarial
    assert kernel is not None
    return kernel


def _save(ctx: Any, args: SimpleNamespace, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.alpha = args.alpha
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(args.scores, *output[1:])


def _differentiate(
    ctx: Any, need: list[bool], grad_rows: Tensor, *_: Tensor | None
) -> tuple[Tensor]:
    return (torch.ops.kgfast.adversarial_backward(grad_rows, *ctx.saved_tensors, ctx.alpha),)


_adversarial_rows.differentiate(_differentiate, _save, wrt=("scores",))
_adversarial_backward.refuse_second_derivative("adversarial_rows")

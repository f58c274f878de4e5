"""Sigmoid loss of pairs: batches, the dense formula, and calls in several processes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from kgfast import losses

SCALE, BIAS = 10.0, -4.0


def pairs(
    count: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Draw normalized images and texts whose pairs are near each other."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(count, width, generator=generator, dtype=torch.float32)
    text = image + torch.randn(count, width, generator=generator, dtype=torch.float32)
    image, text = (functional.normalize(it, dim=1).to(dtype) for it in (image, text))
    return image, text


def dense(
    image: Tensor, text: Tensor, scale: Any, bias: Any, own: Sequence[int] | None = None
) -> Tensor:
    """Return the loss by logits; ``own``: the texts of the images, where there are more."""
    logits = scale * image @ text.T + (0 if bias is None else bias)
    signs = -torch.ones_like(logits)
    places = torch.arange(len(image))
    signs[places, places if own is None else torch.tensor(own)] = 1
    return -functional.logsigmoid(signs * logits).sum() / len(image)


def graded(
    loss: Callable[..., Tensor], *given: Any, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return a loss and its gradients, of copies of tensors and numbers in a dtype."""
    leaves = [torch.as_tensor(it).to(dtype).clone().requires_grad_() for it in given]
    found = loss(*leaves)
    return [found.detach(), *torch.autograd.grad(found, leaves)]


def worst_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest error of any result, relative to the largest number of the result."""
    return max(
        float((one.double() - other).abs().max() / other.abs().max())
        for one, other in zip(found, exact, strict=True)
    )


def shares(world: int, count: int, width: int, **options: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs of each process."""
    images, texts = (it.split(count) for it in pairs(world * count, width, **options))
    return list(zip(images, texts, strict=True))


def expected(
    world: int, count: int, width: int, weights: Sequence[float] | None = None
) -> list[list[Tensor]]:
    """Return loss and gradients of each process, by one process in float64.

    Gradients of image, scale and bias are of a process's own loss, a text's gradient is of all
    losses; ``weights`` are the gradients of the losses.
    """
    weights = [1.0] * world if weights is None else weights
    image, text = (it.requires_grad_() for it in pairs(world * count, width, dtype=torch.float64))
    results, of_text = [], torch.zeros_like(text)
    for rank, weight in enumerate(weights):
        own = range(rank * count, (rank + 1) * count)
        numbers = [
            torch.tensor(it, dtype=torch.float64, requires_grad=True) for it in (SCALE, BIAS)
        ]
        loss = dense(image[own.start : own.stop], text, *numbers, own=own)
        made = torch.autograd.grad(loss * weight, [image, text, *numbers])
        of_text += made[1]
        results.append([loss.detach(), made[0][own.start : own.stop], None, *made[2:]])
    for result, own in zip(results, of_text.split(count), strict=True):
        result[2] = own
    return results


def of_process(
    rank: int, world: int, count: int, width: int, weights: Sequence[float] | None, how: str
) -> list[Tensor]:
    """Return loss and gradients of one process of a ring."""
    image, text = shares(world, count, width)[rank]
    weight = 1.0 if weights is None else weights[rank]
    loss = by_module if how == "module" else losses.siglip
    found = graded(lambda *them: weight * loss(*them), image, text, SCALE, BIAS)
    return [found[0] / weight, *found[1:]]


def by_module(*given: Tensor) -> Tensor:
    """Return the loss as training loops of open_clip call it."""
    names = "image_features", "text_features", "logit_scale", "logit_bias"
    made = losses.SigLIPLoss()(**dict(zip(names, given, strict=True)), output_dict=True)
    return made["contrastive_loss"]


def twice(rank: int, world: int) -> list[Tensor]:
    """Return the gradients of two backwards through one graph."""
    image, text = (it.requires_grad_() for it in shares(world, 3, 5)[rank])
    loss = losses.siglip(image, text, SCALE, BIAS)
    first = torch.autograd.grad(loss, [image, text], retain_graph=True)
    return [*first, *torch.autograd.grad(loss, [image, text])]


def without_gradients(rank: int, world: int) -> Tensor:
    with torch.no_grad():
        image, text = (it.requires_grad_() for it in shares(world, 3, 5)[rank])
        loss = losses.siglip(image, text, torch.tensor(SCALE), BIAS)
    assert not loss.requires_grad
    return loss


def alone(rank: int, world: int) -> Tensor:
    """Return the loss of a group of one process."""
    groups = [dist.new_group([it]) for it in range(world)]
    return losses.siglip(*shares(world, 3, 5)[rank], SCALE, BIAS, group=groups[rank])


def in_halves(rank: int, world: int) -> Tensor:
    """Return the loss of a ring of half of the processes."""
    halves = [range(world // 2), range(world // 2, world)]
    groups = [dist.new_group(list(it)) for it in halves]
    return losses.siglip(*shares(world, 3, 5)[rank], SCALE, BIAS, group=groups[rank >= world // 2])


def wrong_in_one(rank: int, world: int, change: str) -> Tensor:
    """Call with arguments that are wrong in process 1 alone."""
    image, text = shares(world, 3, 5)[rank]
    if rank == 1 and change == "nan":
        text[2, 0] = torch.nan
    elif rank == 1 and change == "shape":
        text = text[:2]
    elif rank == 1 and change == "batch":
        image, text = image[:2], text[:2]
    elif rank == 1 and change == "need":
        text.requires_grad_()
    return losses.siglip(image, text, SCALE, BIAS)

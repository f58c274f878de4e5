"""Sigmoid loss of image-text pairs by torch, in chunks whose logits are held one at a time.

Both peers are forward and backward of all four gradients. ``rows`` restricts a run to the first
images, for finding the best chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kgfast import losses

Run = Callable[[], list[Tensor]]  # the loss and its gradients
SCALE, BIAS = 10.0, -10.0  # values that training begins with


@dataclass
class Pairs:
    """Images and texts, and the numbers of the loss."""

    image: Tensor
    text: Tensor
    scale: Tensor
    bias: Tensor

    @classmethod
    def random(cls, count: int, dim: int) -> "Pairs":
        """Draw normalized rows."""
        generator = torch.Generator().manual_seed(0)
        rows = (torch.randn(count, dim, generator=generator) for _ in range(2))
        return cls(
            *(functional.normalize(it, dim=1).requires_grad_() for it in rows),
            *(torch.tensor(it, requires_grad=True) for it in (SCALE, BIAS)),
        )

    def tensors(self) -> list[Tensor]:
        """Return images, texts, scale and bias."""
        return [self.image, self.text, self.scale, self.bias]

    def graded(self, loss: Tensor) -> list[Tensor]:
        """Return a loss and its gradients."""
        return [loss.detach(), *torch.autograd.grad(loss, self.tensors())]


def kgfast_siglip(pairs: Pairs, precision: str = "float32") -> Run:
    """Return the loss of kgfast."""
    return lambda: pairs.graded(losses.siglip(*pairs.tensors(), precision=precision))


def checkpointed(pairs: Pairs, chunk: int, rows: int | None = None) -> Run:
    """Return open_clip's formula on chunks of images, whose logits the backward makes again."""
    count = len(pairs.image)

    def part(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor, first: int) -> Tensor:
        logits = scale * image @ text.T + bias
        signs = -torch.ones_like(logits)
        signs[:, first : first + len(image)].fill_diagonal_(1.0)
        return -functional.logsigmoid(signs * logits).sum() / count

    def run() -> list[Tensor]:
        total = torch.zeros(())
        for first in range(0, rows or count, chunk):
            image = pairs.image[first : first + chunk]
            given = image, pairs.text, pairs.scale, pairs.bias, first
            total = total + checkpoint(part, *given, use_reentrant=False)
        return pairs.graded(total)

    return run


def three_products(pairs: Pairs, chunk: int, rows: int | None = None) -> Run:
    """Return value and gradients written by hand: three products a chunk, in place."""

    @torch.no_grad()
    def run() -> list[Tensor]:
        image, text, scale, bias = (it.detach() for it in pairs.tensors())
        count = len(image)
        total, of_bias = torch.zeros(()), torch.zeros(())
        of_image, of_text = torch.empty_like(image), torch.zeros_like(text)
        for first in range(0, rows or count, chunk):
            part = slice(first, first + chunk)
            scores = torch.addmm(bias, image[part], text.T, alpha=scale.item())
            own = scores[:, part].diagonal()
            total += functional.softplus(scores).sum() - own.sum()
            slopes = scores.sigmoid_()
            own -= 1.0
            slopes /= count
            of_bias += slopes.sum()
            torch.mm(slopes, text, out=of_image[part])
            of_text.addmm_(slopes.T, image[part], alpha=scale.item())
        of_scale = torch.dot(of_image.flatten(), image.flatten())
        return [total / count, of_image.mul_(scale), of_text, of_scale, of_bias]

    return run

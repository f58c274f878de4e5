"""Dropout that can draw from a generator of its own."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) whose randomness can be its owner's.

    ``torch.nn.Dropout`` draws from the process's generator, so that two models that train at the
    same time in threads change each other. The numbers that a seed gives are the same.
    ``generator`` is on the device of the inputs; None: the process's. ``whole_channels`` drops
    channels of ``[B, C, H, W]`` together (Tompson et al. 2015).
    """

    generator: torch.Generator | None = None

    def __init__(self, p: float = 0.5, *, whole_channels: bool = False) -> None:
        super().__init__(p)
        self.whole_channels = whole_channels

    def forward(self, values: Tensor) -> Tensor:
        """Return the values that stay, divided by the chance to."""
        if not self.training or self.p == 0:
            return values
        if self.p == 1:
            return values * 0.0
        shape = values.shape
        if self.whole_channels:
            shape = torch.Size([*shape[:2], *[1] * (values.ndim - 2)])
        kept = values.new_empty(shape).bernoulli_(1 - self.p, generator=self.generator)
        return values * kept.div_(1 - self.p)

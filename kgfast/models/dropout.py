"""Dropout that can draw from its own generator."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """Dropout (Srivastava et al. 2014) that can draw from its owner's generator.

    ``torch.nn.Dropout`` draws from the process's generator, so two models that train in threads at
    the same time change each other. A seed gives the same numbers with both. ``generator`` is on
    the device of the inputs; None takes the process's generator. ``whole_channels`` drops channels
    of ``[B, C, H, W]`` together (Tompson et al. 2015).
    """

    generator: torch.Generator | None = None

    def __init__(self, p: float = 0.5, *, whole_channels: bool = False) -> None:
        super().__init__(p)
        self.whole_channels = whole_channels

    def forward(self, values: Tensor) -> Tensor:
        """Return the values that stay, divided by the probability to stay."""
        if not self.training or self.p == 0:
            return values
        if self.p == 1:
            return values * 0.0
        shape = values.shape
        if self.whole_channels:
            shape = torch.Size([*shape[:2], *[1] * (values.ndim - 2)])
        kept = values.new_empty(shape).bernoulli_(1 - self.p, generator=self.generator)
        return values * kept.div_(1 - self.p)

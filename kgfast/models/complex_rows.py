"""Complex numbers in real rows: ``re | im`` (halves) or ``re0 im0 re1 ...`` (interleaved)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Layout = Literal["halves", "interleaved"]
LAYOUTS: tuple[Layout, Layout] = ("halves", "interleaved")


class Complex(NamedTuple):
    """Real and imaginary parts; products round each operation on its own."""

    re: Tensor
    im: Tensor

    def times(self, other: "Complex") -> "Complex":
        """Product, elementwise."""
        return Complex(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    def conj(self) -> "Complex":
        """Complex conjugate."""
        return Complex(self.re, -self.im)


def split(rows: Tensor, layout: Layout) -> Complex:
    """The parts ``[..., D]`` of rows ``[..., 2D]``."""
    if layout == "interleaved":
        return Complex(rows[..., 0::2], rows[..., 1::2])
    return Complex(*rows.chunk(2, -1))


def join(value: Complex, layout: Layout) -> Tensor:
    """Rows ``[..., 2D]`` of parts ``[..., D]``."""
    if layout == "interleaved":
        return torch.stack(value, -1).flatten(-2)
    return torch.cat(value, -1)


def check_layout(name: str, rows: Tensor, layout: str) -> int:
    """Check that rows hold pairs and return how many."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    width = rows.shape[1]
    if width < 2 or width % 2:
        raise ValueError(f"{name} must have an even number of columns (re, im); got {width}")
    return width // 2

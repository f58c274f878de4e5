"""Complex numbers in real rows: ``re | im`` (halves) or ``re0 im0 re1 ...`` (interleaved)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.models.base import check_option

Layout = Literal["halves", "interleaved"]
LAYOUTS: tuple[Layout, Layout] = ("halves", "interleaved")


class Complex(NamedTuple):
    """Real and imaginary parts."""

    re: Tensor
    im: Tensor


def split(rows: Tensor, layout: Layout) -> Complex:
    """Return the parts ``[..., D]`` of rows ``[..., 2D]``."""
    if layout == "interleaved":
        return Complex(rows[..., 0::2], rows[..., 1::2])
    return Complex(*rows.chunk(2, -1))


def join(value: Complex, layout: Layout) -> Tensor:
    """Return rows ``[..., 2D]`` of parts ``[..., D]``."""
    if layout == "interleaved":
        return torch.stack(value, -1).flatten(-2)
    return torch.cat(value, -1)


def product(rows: Tensor, other: Complex, layout: Layout, *, conjugates: bool) -> Tensor:
    """Multiply rows ``[B, 2D]`` by complex numbers ``[B, D]``, or by their conjugates.

    Each operation rounds separately.
    """
    re, im = split(rows, layout)
    other_im = -other.im if conjugates else other.im
    parts = Complex(re * other.re - im * other_im, re * other_im + im * other.re)
    return join(parts, layout)


def in_layout(rows: Tensor, layout: Layout, other: Layout) -> Tensor:
    """Return rows ``[..., 2D]`` of one layout in another."""
    return rows if layout == other else join(split(rows, layout), other)


def check_layout(name: str, rows: Tensor, layout: str) -> int:
    """Check that rows hold pairs, and return the number of pairs."""
    check_option("layout", layout, LAYOUTS)
    width = rows.shape[1]
    if width < 2 or width % 2:
        raise ValueError(f"{name} must have an even number of columns (re, im); got {width}")
    return width // 2

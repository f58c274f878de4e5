"""Complex numbers in real rows: ``re | im`` (halves) or ``re0 im0 re1 ...`` (interleaved)."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.models.tables import is_complex

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


def layout_of(layout: Layout | None, entity: Any, relation: Any) -> Layout:
    """Return the given layout of rows, else the layout of complex tables, else halves.

    Complex tables are interleaved; the layout halves for them is a ValueError.
    """
    if not (is_complex(entity) or is_complex(relation)):
        return "halves" if layout is None else layout
    if layout is None and is_complex(entity):
        return "interleaved"
    if layout != "interleaved":
        name = "entity" if is_complex(entity) else "relation"
        told = "real entity rows are halves by default" if layout is None else f"got {layout!r}"
        raise ValueError(
            f"layout must be 'interleaved' where {name} is complex, since complex numbers lie so "
            f"in memory; {told}"
        )
    return layout


def check_layout(name: str, rows: Tensor, layout: str) -> int:
    """Check that rows hold pairs, and return the number of pairs."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    width = rows.shape[1]
    if width < 2 or width % 2:
        raise ValueError(f"{name} must have an even number of columns (re, im); got {width}")
    return width // 2

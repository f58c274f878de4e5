"""Filters of RSCF on a GPU: products of the library, and one kernel each way for all crops."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .device.arguments import TileShape
from .device.filters import FilterShape, filter_slopes, make_filters
from .host import launch as launcher

TILE_NUMBERS = 1024  # fewest numbers of a program


def filters(
    rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int
) -> tuple[Tensor, Tensor]:
    """Make filters ``[C, M, R]`` and norms ``[C, M]``."""
    made = rows.new_empty(len(widths), len(rows), matrix.shape[1])
    norms = rows.new_empty(made.shape[:2])
    before = None
    for crop, span in _spans(rows, widths, features):
        if before is None:
            torch.mm(rows[:, span], matrix[span], out=made[crop])
        else:
            torch.addmm(made[before], rows[:, span], matrix[span], out=made[crop])
        before = crop
    _launch(make_filters, made, widths, features, {"p_filters": made, "p_norms": norms})
    return made, norms


def filters_backward(
    grad: Tensor,
    made: tuple[Tensor, Tensor],
    rows: Tensor,
    matrix: Tensor,
    widths: Sequence[int],
    features: int,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    slopes, room = torch.empty_like(made[0]), torch.empty_like
    given = {"p_slopes": slopes, "p_grad": grad.contiguous()}
    given |= {"p_filters": made[0], "p_norms": made[1]}
    _launch(filter_slopes, slopes, widths[::-1], features, given)
    if widths[-1] < features:
        room = torch.zeros_like
    of_rows, of_matrix = (
        room(it) if is_needed else None for it, is_needed in zip((rows, matrix), need, strict=True)
    )
    for crop, span in _spans(rows, widths, features):
        if of_rows is not None:
            torch.mm(slopes[crop], matrix[span].t(), out=of_rows[:, span])
        if of_matrix is not None:
            torch.mm(rows[:, span].t(), slopes[crop], out=of_matrix[span])
    return of_rows, of_matrix


def _spans(rows: Tensor, widths: Sequence[int], features: int) -> Iterator[tuple[int, slice]]:
    for crop, (below, width) in enumerate(pairwise([0, *widths])):
        for first in range(0, rows.shape[1], features):
            yield crop, slice(first + below, first + width)


def _launch(
    kernel: Any, made: Tensor, widths: Sequence[int], features: int, given: dict[str, Any]
) -> None:
    crops, count, columns = made.shape
    lanes = 1 << (columns - 1).bit_length()
    tile = TileShape(max(1, TILE_NUMBERS // lanes), lanes)
    with launcher.serving(made.device):
        launcher.launch(
            kernel,
            (-(-count // tile.rows),),
            {
                **given,
                "shape": FilterShape(count, columns, features, tuple(widths)),
                "CROPS": crops,
                "TILE": tile,
            },
            num_warps=4 if lanes <= 2048 else 16,
        )

"""Queries of training on a GPU, one kernel each way."""

from typing import Any

import torch
from torch import Tensor

from ..backend import Composition
from .device.arguments import RowView, TileShape
from .device.compose import Composed, Extent, Pair
from .device.compose import compose as compose_kernel
from .device.compose import compose_backward as backward_kernel
from .host import launch as launcher

TILE_NUMBERS = 512  # numbers of a program


def compose(anchors: Tensor, relations: Tensor, how: Composition) -> Tensor:
    """Make queries ``[B, F]``."""
    out = torch.empty_like(anchors)
    _launch(compose_kernel, (anchors, relations), how, {"out": _view(out, how)})
    return out


def compose_backward(
    grad: Tensor, anchors: Tensor, relations: Tensor, how: Composition
) -> tuple[Tensor, Tensor]:
    """Make the gradients of anchors and relations."""
    made = torch.empty_like(anchors), torch.empty_like(relations)
    given = {"grad": _view(grad.contiguous(), how), "grads": _pair(*made, how)}
    _launch(backward_kernel, (anchors, relations), how, given)
    return made


def _launch(
    kernel: Any, rows: tuple[Tensor, Tensor], how: Composition, given: dict[str, Any]
) -> None:
    count, width = rows[0].shape
    features = width // 2
    lanes = min(TILE_NUMBERS, 1 << (features - 1).bit_length())
    tile = TileShape(TILE_NUMBERS // lanes, lanes)
    with launcher.serving(rows[0].device):
        launcher.launch(
            kernel,
            (-(-count // tile.rows), -(-features // lanes)),
            {
                "rows": _pair(*rows, how),
                **given,
                "extent": Extent(count, features, how.unit),
                "FORM": Composed(how.kind == "rotate", how.conjugates),
                "TILE": tile,
            },
            num_warps=4,
        )


def _pair(anchors: Tensor, relations: Tensor, how: Composition) -> Pair:
    is_plain = how.kind == "rotate"  # phases are one plane in any layout
    own = RowView(relations, relations.stride(0), 0, 1) if is_plain else _view(relations, how)
    return Pair(_view(anchors, how), own)


def _view(rows: Tensor, how: Composition) -> RowView:
    plane, step = (1, 2) if how.interleaved else (rows.shape[1] // 2, 1)
    return RowView(rows, rows.stride(0), plane, step)

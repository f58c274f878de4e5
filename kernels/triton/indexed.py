"""Scores of each query with its own candidates on a GPU, and their gradients.

Memory: 8 MiB of extra rows for lists that are cut, and O(index) words. The host waits once, in the
backward for the table, for the number of its distinct rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..scores import get_score
from .device.gather import gather_scores
from .device.operands import Out, Tile
from .host import configs
from .host import launch as launcher
from .host.gradients import ListGradients, Slopes
from .host.sides import Sides
from .host.views import plane_of, takes_root
from .host.widths import crop_order, over_norms, segments

GATHER_PAIRS, GATHER_FEATURES = 16, 64


def indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The contract of :func:`kgfast.ops.indexed_scores`; see there."""
    sides = Sides(queries, table, get_score(score), factor, bias)
    launcher.architecture(table.device)
    crops = [sides.num_features] if dims is None else list(dims)
    out = torch.empty(len(crops), *index.shape, dtype=torch.float32, device=table.device)
    with launcher.on_device(table.device):
        fill_indexed(out, sides, index, crops)
    return out[0] if dims is None else out


def fill_indexed(out: Tensor, sides: Sides, index: Tensor, crops: Sequence[int]) -> None:
    """Write the scores of pairs ``index [B, K]`` into ``out [C, B, K]`` of column stride 1."""
    if not out.numel():
        return
    if sides.bias is not None:
        sides = sides._replace(bias=sides.bias.expand(len(sides.table)))
    order = crop_order(crops, out)
    step = configs.MAX_GRID * GATHER_PAIRS
    for first in range(0, index.shape[1], step):
        part = index[:, first : first + step]
        launcher.launch(
            gather_scores,
            (len(index), -(-part.shape[1] // GATHER_PAIRS)),
            {
                "operands": sides.views(),
                "index": plane_of(part),
                "out": Out(out[:, :, first:], out.stride(1), order),
                "num_candidates": part.shape[1],
                "num_crops": len(crops),
                "FORM": sides.form(),
                "TILE": Tile(GATHER_PAIRS, GATHER_FEATURES),
            },
            num_warps=2,
        )


def indexed_backward(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None]:
    """Gradient of the queries, ``(ids [U] ascending, rows [U, G])`` of the table, the factor's."""
    sides = Sides(queries, table, get_score(score), factor)
    launcher.architecture(table.device)
    crops = [sides.num_features] if dims is None else list(dims)
    grad = grad[None] if dims is None else grad  # [C, B, K]
    needs_factor = need[2] and factor is not None
    by_query: ListGradients | None = None
    by_row: ListGradients | None = None
    with launcher.on_device(table.device):
        if takes_root(sides.score):
            norms = torch.empty(grad.shape, dtype=torch.float32, device=table.device)
            fill_indexed(norms, sides, index, crops)
            grad = over_norms(grad, norms.neg_())
        if need[0]:
            by_query = ListGradients(sides, index, (True, False), of_queries=True)
        if need[1] or needs_factor:
            by_row = ListGradients(sides, index, (need[1], needs_factor), of_queries=False)
        both = [lists for lists in (by_query, by_row) if lists is not None]
        for low, high, coefficient in segments(grad, crops):
            slopes = Slopes(low, high, coefficient.contiguous())
            for lists in both:
                lists.write(slopes)
        for lists in both:
            lists.add_pieces()
    of_queries = None if by_query is None else by_query.grad
    if by_row is None:
        return of_queries, None, None
    of_table = None if by_row.grad is None else (by_row.lists.ids, by_row.grad)
    return of_queries, of_table, by_row.grad_factor

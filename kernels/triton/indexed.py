"""Scores of each query with its own candidates on a GPU, and gradients.

Memory: 8 MiB of extra rows for lists that are cut, O(index) words, and in the backward for the
table a row for each pair of the index, but no more than the table has. The host waits for nothing.
"""

import torch
from torch import Tensor

from ..operands import Gradients, Need, Operands
from .device.arguments import Out, TileShape
from .device.gather import gather_scores
from .host import configs
from .host import launch as launcher
from .host.gradients import ListGradients
from .host.pull import SlopeFactors
from .host.views import form_of, plane_of, views_of
from .host.widths import crop_order, over_norms, segments

GATHER_PAIRS, GATHER_FEATURES = 16, 64


def indexed_scores(operands: Operands, index: Tensor) -> Tensor:
    """Return scores of the pairs ``index [B, K]``: that shape, or with ``dims`` ``[C, B, K]``."""
    shape, device = (len(operands.crops), *index.shape), operands.table.device
    out = torch.empty(shape, dtype=torch.float32, device=device)
    with launcher.serving(device):
        fill_indexed(out, operands, index)
    return out[0] if operands.dims is None else out


def fill_indexed(out: Tensor, operands: Operands, index: Tensor) -> None:
    """Write the scores of pairs ``index [B, K]`` into ``out [C, B, K]`` of column stride 1."""
    if not out.numel():
        return
    views, form, order = views_of(operands), form_of(operands), crop_order(operands.crops, out)
    step = configs.MAX_GRID * GATHER_PAIRS
    for first in range(0, index.shape[1], step):
        part = index[:, first : first + step]
        launcher.launch(
            gather_scores,
            (len(index), -(-part.shape[1] // GATHER_PAIRS)),
            {
                "views": views,
                "index": plane_of(part),
                "out": Out(out[:, :, first:], out.stride(1), order, None),
                "num_candidates": part.shape[1],
                "num_crops": len(operands.crops),
                "FORM": form,
                "TILE": TileShape(GATHER_PAIRS, GATHER_FEATURES),
            },
            num_warps=2,
        )


def indexed_gradients(
    operands: Operands,
    grad: Tensor,
    index: Tensor,
    need: Need,
    *,
    rows_only: bool,
    over_roots: bool = False,
) -> Gradients:
    """Return the gradients of :func:`indexed_scores`; ``rows_only``: see ``Backend.backward``.

    ``over_roots`` is True if ``grad`` was divided by scores that are roots.
    """
    operands = operands.without_bias()
    grad = grad[None] if operands.dims is None else grad  # [C, B, K]
    by_query: ListGradients | None = None
    by_row: ListGradients | None = None
    with launcher.serving(operands.table.device):
        if operands.score.root and not over_roots:
            norms = torch.empty(grad.shape, dtype=torch.float32, device=grad.device)
            fill_indexed(norms, operands, index)
            grad = over_norms(grad, norms.neg_())
        if need.queries:
            by_query = ListGradients(operands, index, (True, False), of_queries=True)
        if need.table or need.factor:
            by_row = ListGradients(operands, index, (need.table, need.factor), of_queries=False)
        both = [lists for lists in (by_query, by_row) if lists is not None]
        for low, high, coefficient in segments(grad, operands.crops):
            slopes = SlopeFactors(low, high, coefficient.contiguous())
            for lists in both:
                lists.write(slopes)
        for lists in both:
            lists.add_pieces()
    gradients = Gradients(None if by_query is None else by_query.grad)
    if by_row is None:
        return gradients
    ids = by_row.lists.ids
    table, factor = (
        None if it is None else it[: len(ids)] for it in (by_row.grad, by_row.grad_factor)
    )
    gradients = Gradients(gradients.queries, table, factor, ids, repeats=True)
    return gradients if rows_only else gradients.spread(operands, need)

"""Scores of each query with its own candidates on a GPU, and gradients.

Memory: 8 MiB of extra rows for lists that are cut, O(index) words, and in the backward for the
table a row for each pair of the index, but no more than the table has. The host waits for nothing.
"""

import torch
from torch import Tensor

from ..operands import Gradients, Need, Operands
from .device.arguments import Out, TileShape
from .device.gather import ListedRows, gather_scores
from .host import launch as launcher
from .host.gradients import ListGradients, over_norms, segments
from .host.views import crop_order, form_of, plane_of, views_of

GATHER_PAIRS, GATHER_FEATURES = 16, 64
MOVED_REGISTERS = 160  # for queries that a factor moves; uncapped, ptxas spills scalars


def fill_indexed(
    out: Tensor, operands: Operands, index: Tensor, arch: int, listed: ListedRows | None = None
) -> None:
    """Write the scores of pairs ``index [B, K]`` into ``out [C, B, K]`` of column stride 1.

    With ``listed``, targets come first, and ``out`` has a column more than the index.
    """
    if not out.numel():
        return
    (crops, count, width), dims = out.shape, operands.dims
    launcher.launch(
        gather_scores,
        (count * -(-width // GATHER_PAIRS),),
        {
            "views": views_of(operands),
            "index": plane_of(index),
            "listed": listed,
            "out": Out(out, out.stride(1), None if dims is None else crop_order(dims, out), None),
            "num_candidates": width,
            "num_features": operands.num_features,
            "num_crops": crops,
            "FORM": form_of(operands),
            "TILE": TileShape(GATHER_PAIRS, GATHER_FEATURES),
        },
        num_warps=2,
        **launcher.capped(MOVED_REGISTERS if operands.has_factor else None, arch),
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
    """Return the gradients of :func:`fill_indexed`; ``rows_only``: see ``Backend.backward``.

    ``over_roots`` is True if ``grad`` was divided by scores that are roots.
    """
    operands = operands.without_bias()
    grad = grad[None] if operands.dims is None else grad  # [C, B, K]
    with launcher.serving(operands.table.device) as arch:
        if operands.score.root and not over_roots:
            norms = torch.empty(grad.shape, dtype=torch.float32, device=grad.device)
            fill_indexed(norms, operands, index, arch)
            grad = over_norms(grad, norms.neg_())
        by_query = ListGradients(operands, index, need, of_queries=True) if need.queries else None
        has_rows = need.table or need.factor
        by_row = ListGradients(operands, index, need, of_queries=False) if has_rows else None
        both = [lists for lists in (by_query, by_row) if lists is not None]
        for slopes in segments(grad, operands.crops):
            slopes = slopes._replace(coefficient=slopes.coefficient.contiguous())
            for lists in both:
                lists.write(slopes)
        for lists in both:
            lists.add_pieces()
    of_queries = None if by_query is None else by_query.grads[0]
    if by_row is None:
        return Gradients(of_queries)
    ids = by_row.lists.ids
    table, factor = (None if grad is None else grad[: len(ids)] for grad in by_row.grads)
    gradients = Gradients(of_queries, table, factor, ids, repeats=True)
    return gradients if rows_only else gradients.spread(operands, need)

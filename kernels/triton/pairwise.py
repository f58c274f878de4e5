"""Scores of all pairs on a GPU, and gradients.

Distances are swept in tiles (device/score_tiles.py), and slopes carried to both sides at once
(device/pull.py). ``dot`` is multiplied on tensor cores (device/products.py). With ``dims``, scores
of ``dot`` are swept in IEEE float32, all crops in one pass.

Memory: 20 MiB of packed operands; backward 16 MiB of partial sums, 8 MiB of float32 sums of rows in
half precision and, for ``l2`` and crops, 16 MiB of coefficients.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..operands import Gradients, Need, Operands
from .device.arguments import Out
from .device.score_tiles import ScorePanels, score_tiles
from .host import configs
from .host import launch as launcher
from .host.gradients import over_norms, segments
from .host.layout import Selection, pack_candidates, pack_queries
from .host.matmul import Products, precision_of
from .host.pull import RowSums, blocks_of, pull
from .host.views import bias_of, crop_order, form_of, packed_planes

QUERY_BYTES, CANDIDATE_BYTES = 8 << 20, 12 << 20  # packed operands
BLOCK_PAIRS = 1 << 21  # pairs of one block of coefficients, or of the scores of a loss: 8 MiB
TOTAL_BYTES = 8 << 20  # bytes of float32 sums of rows that are stored in half precision
_LEAST_COLUMNS = 512  # fewest columns of a block, if there are that many


def fill_scores(out: Tensor, operands: Operands, arch: int) -> None:
    """Write the scores of all pairs and crops into ``out [C, B, N]`` of column stride 1."""
    if not out.numel():
        return
    form, dims, crops = form_of(operands), operands.dims, operands.crops
    if not operands.score.monotone and dims is None:
        products = Products(operands.queries, operands.table, precision_of(operands, arch), arch)
        constants = {"FORM": form, "TILE": products.tile, "PRODUCT": products.product}
        width = configs.MAX_GRID * products.tile.lanes
        for j in range(0, len(operands.table), width):
            part, rest = operands.of_rows(slice(j, j + width)), out[..., j:]
            into = {"out": Out(rest, out.stride(1), None, 1), **constants}
            products.launch(score_tiles, part.table, bias_of(part), into)
        return
    tile = configs.filled_tile(operands, arch)
    of_query, of_row = (4 * max(crops) * planes for planes in packed_planes(operands))
    height = max(1, QUERY_BYTES // of_query // tile.rows) * tile.rows
    most = max(1, CANDIDATE_BYTES // of_row // tile.lanes)
    width = min(most, configs.MAX_GRID) * tile.lanes
    order = None if dims is None else crop_order(crops, out)
    for i in range(0, operands.num_queries, height):
        block = operands.of_queries(slice(i, i + height))
        every = Selection(len(block.queries))
        packed = pack_queries(block, every, max(crops), tile.rows, is_stored=True)
        for j in range(0, len(operands.table), width):
            part = block.of_rows(slice(j, j + width))
            panels = pack_candidates(part, Selection(len(part.table)), max(crops), tile.lanes)
            sizes = {"num_queries": len(part.queries), "num_candidates": len(part.table)}
            tile.launch(
                score_tiles,
                len(part.queries),
                {**sizes, "num_features": max(crops)},
                rows=ScorePanels(packed, panels, bias_of(part)),
                out=Out(out[:, i:, j:], out.stride(1), order, len(crops)),
                FORM=form,
                TILE=tile,
                PRODUCT=None,
            )


def all_gradients(
    operands: Operands,
    grad: Tensor,
    need: Need,
    *,
    over_roots: bool = False,
) -> Gradients:
    """Return the gradients of :func:`fill_scores`: float32 sums, in the inputs' dtypes.

    ``over_roots`` is True if ``grad`` was divided by scores that are roots.
    """
    operands = operands.without_bias()
    grad = grad[None] if operands.dims is None else grad  # [C, B, N]
    is_narrow = max(operands.crops) < operands.num_features
    make = Tensor.new_zeros if is_narrow or not grad.numel() else Tensor.new_empty
    queries, table, factor = operands.queries, operands.table, operands.factor
    gradients = Gradients(
        make(queries, queries.shape) if need.queries else None,
        make(table, table.shape) if need.table else None,
        make(factor, factor.shape) if need.factor and factor is not None else None,
    )
    if not grad.numel():
        return gradients
    with launcher.serving(operands.table.device) as arch:
        takes_root = operands.score.root and not over_roots
        for columns, blocks in _blocks(operands, grad, takes_root=takes_root):
            of_table, of_factor = (
                None if whole is None else whole[columns]
                for whole in (gradients.table, gradients.factor)
            )
            fill_gradients(
                Gradients(gradients.queries, of_table, of_factor),
                *(operands.of_rows(columns), grad[..., columns], blocks, arch),
                takes_root=takes_root,
                adds=columns.start > 0,
            )
    return gradients


def fill_gradients(
    gradients: Gradients,
    operands: Operands,
    grad: Tensor,
    blocks: list[slice],
    arch: int,
    *,
    adds: bool,
    takes_root: bool = False,
) -> None:
    """Write the gradients of table and factor, given those of scores ``[C, B, N]`` without a bias.

    The queries, in ``blocks``, have a gradient that is added to if ``adds``, else written. With
    ``takes_root``, scores are roots that did not divide ``grad``.
    """
    of_table, of_factor = (
        None if rows is None else RowSums(rows, is_single=len(blocks) == 1)
        for rows in (gradients.table, gradients.factor)
    )
    for rows in blocks:
        of_queries = None if gradients.queries is None else gradients.queries[rows]
        block, coefficients = operands.of_queries(rows), grad[:, rows]
        if takes_root:
            norms = torch.empty_like(coefficients, memory_format=torch.contiguous_format)
            fill_scores(norms, block, arch)
            coefficients = over_norms(coefficients, norms.neg_())
        is_first = not rows.start
        # From the widest crop down: each adds to the coefficients of its own features.
        for slopes in segments(coefficients, operands.crops):
            if operands.score.monotone:
                of_rows = of_table, of_factor
                pull(block, slopes, of_queries, of_rows, arch, is_first=is_first, adds=adds)
                continue
            low, high, coefficient = slopes
            left, right = block.queries[:, low:high], block.table[:, low:high]
            products = Products(left, right, precision_of(operands, arch), arch)
            if of_queries is not None:
                products.add_queries(coefficient, right, of_queries[:, low:high], adds=adds)
            if of_table is not None:
                into = of_table.target(1)[:, low:high]
                products.multiply(coefficient, left, into, splits=0, adds=not is_first)
    for sums in (of_table, of_factor):
        if sums is not None:
            sums.finish()


def _blocks(
    operands: Operands, grad: Tensor, *, takes_root: bool
) -> Iterator[tuple[slice, list[slice]]]:
    """Yield columns and rows of blocks with bounded scratch.

    Slopes are read in place, unless crops share slopes or a root divides them.
    """
    copies = int(len(grad) > 1) + (len(grad) if takes_root else 0)
    num_queries, num_rows = grad.shape[1:]
    width, parts = num_rows, [slice(0, num_queries)]
    if operands.score.monotone:
        parts = blocks_of(operands)
    if copies:
        pairs = BLOCK_PAIRS * 2 // (copies + 1)
        height = max(1, min(parts[0].stop, pairs // _LEAST_COLUMNS))
        width = min(num_rows, max(1, pairs // height))
        parts = [slice(i, i + height) for i in range(0, num_queries, height)]
    for rows in (operands.table, operands.factor):
        if len(parts) > 1 and rows is not None and rows.dtype != torch.float32:
            width = min(width, max(1, TOTAL_BYTES // (4 * rows.shape[1])))  # a float32 copy
    for j in range(0, num_rows, width):
        yield slice(j, j + width), parts

"""Scores of all pairs on a GPU, and their gradients.

Distances are swept in tiles (device/score_tiles.py), and slopes summed row by row
(device/backward.py). ``dot`` is a GEMM, so it goes to the vendor's library in chunks, with torch's
own float32 matmul precision (IEEE unless the user allows less); with ``dims`` its scores are swept
in IEEE float32, all crops in one pass.

Memory: 20 MiB of packed operands; backward 8 MiB each for the coefficients of a block, their
packed form, partial sums and, for ``l2``, the norms. A loss over all candidates scores chunks of
them into 8 MiB of scratch, which stays in the L2 cache until its slopes are carried back.

Cost model of such a loss (rotate, d features, sm_90): 7.0 d issue slots a pair forward; 7.0 d and
twice 9.2 d backward; about ten passes over the scratch beside that.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..backend import Into
from ..operands import Gradients, Need, Operands
from .device.arguments import Out
from .device.score_tiles import Panels, score_tiles
from .host import configs
from .host import launch as launcher
from .host.gradients import (
    Accumulators,
    GradAccumulator,
    Slopes,
    add_gradients,
    float_chunks,
    no_autocast,
    row_cap,
    zero_gradient,
)
from .host.layout import Selection, pack_candidates, pack_stored_queries
from .host.views import form_of, packed_planes, vector_of
from .host.widths import crop_order, over_norms, segments
from .indexed import fill_indexed

QUERY_BYTES, CANDIDATE_BYTES = 8 << 20, 12 << 20  # packed operands
BLOCK_PAIRS = 1 << 21  # of one block of coefficients, or of the scores of a loss: 8 MiB
_LEAST_COLUMNS = 512  # of a block, if there are so many


def all_scores(operands: Operands, out: Tensor | None = None) -> Tensor:
    """Scores of all pairs ``[B, N]``, with ``dims`` ``[C, B, N]``; in ``out`` where it is given."""
    queries, shape = operands.queries, (operands.num_queries, operands.candidates.num_rows)
    if out is None:
        out = queries.new_empty(len(operands.crops), *shape, dtype=torch.float32)
        out = out[0] if operands.dims is None else out
    with launcher.serving(queries.device) as arch:
        fill_scores(out[None] if operands.dims is None else out, operands, arch)
    return out


def fill_scores(out: Tensor, operands: Operands, arch: int) -> None:
    """Write the scores of all pairs and crops into ``out [C, B, N]`` of column stride 1."""
    if not out.numel():
        return
    form, dims, crops = form_of(operands), operands.dims, operands.crops
    if not operands.score.monotone and dims is None:
        _multiply(out[0], operands)
        return
    tile = configs.tile_for(operands.score, operands.num_queries, arch, len(crops))
    of_query, of_row = (4 * max(crops) * planes for planes in packed_planes(operands))
    height = QUERY_BYTES // of_query // tile.queries * tile.queries
    width = min(CANDIDATE_BYTES // of_row // tile.candidates, configs.MAX_GRID) * tile.candidates
    if not (height and width):
        _gather_all(out, operands)
        return
    order = None if dims is None else crop_order(crops, out)
    for i in range(0, operands.num_queries, height):
        block = operands.of_queries(slice(i, i + height))
        packed = pack_stored_queries(block, max(crops), tile.queries)
        for j in range(0, len(operands.table), width):
            part = block.of_rows(slice(j, j + width))
            panels = pack_candidates(part, Selection(len(part.table)), max(crops), tile.candidates)
            bias = part.candidates.whole_bias
            launcher.launch(
                score_tiles,
                (-(-len(part.queries) // tile.queries), -(-len(part.table) // tile.candidates)),
                {
                    "packed": Panels(packed, panels, None if bias is None else vector_of(bias)),
                    "out": Out(out[:, i:, j:], out.stride(1), order, len(crops)),
                    "num_queries": len(part.queries),
                    "num_candidates": len(part.table),
                    "num_features": max(crops),
                    "FORM": form,
                    "TILE": tile.shape,
                },
                num_warps=tile.num_warps,
                **({"maxnreg": tile.max_registers} if tile.max_registers else {}),
            )


def _multiply(out: Tensor, operands: Operands) -> None:
    """``dot`` by GEMM, the table converted in chunks if it has to be."""
    with no_autocast(out.device):
        for columns, rows in float_chunks(operands.table):
            torch.mm(operands.queries, rows.T, out=out[:, columns])
    if operands.bias is not None:
        out += operands.bias


def _gather_all(out: Tensor, operands: Operands) -> None:
    """Where not even one packed tile fits the scratch (tens of thousands of features)."""
    index = torch.arange(len(operands.table), dtype=torch.int64, device=out.device)
    fill_indexed(out, operands, index.expand(out.shape[1:]))


def all_gradients(
    operands: Operands, grad: Tensor, need: Need, into: Into | None = None
) -> Gradients:
    """The gradients of :func:`all_scores`: float32 sums, each in its input's dtype."""
    operands = operands.without_bias()
    grad = grad[None] if operands.dims is None else grad  # [C, B, N]
    num_queries, num_rows = grad.shape[1:]
    if into is None:
        gradients = Gradients(
            zero_gradient(operands.queries, need.queries),
            zero_gradient(operands.table, need.table),
            zero_gradient(operands.factor, need.factor),
        )
        copies = 2 + (len(grad) if operands.score.root else 0)
        pairs = BLOCK_PAIRS * 2 // copies
    else:  # a chunk of a loss: one block
        gradients = Gradients(into.queries, into.table)
        pairs = num_queries * max(num_rows, _LEAST_COLUMNS)
        if into.table is not None and not into.adds_to_table:
            into.table.zero_()
    with launcher.serving(operands.table.device) as arch:
        for columns, parts in _blocks(num_queries, num_rows, pairs, row_cap(operands)):
            of_table = _accumulator(gradients.table, columns)
            of_factor = _accumulator(gradients.factor, columns)
            for rows in parts:
                of_queries = _accumulator(gradients.queries, rows)
                block = operands.of_queries(rows).of_rows(columns)
                sums = Accumulators(of_queries, of_table, of_factor)
                _block_backward(block, grad[:, rows, columns], sums, arch)
                _finish(of_queries)
            _finish(of_table, of_factor)
    return gradients


def _blocks(
    num_rows: int, num_columns: int, pairs: int, most_columns: int
) -> Iterator[tuple[slice, list[slice]]]:
    """Columns and rows of blocks of at most ``pairs`` pairs, all rows if 512 columns then fit."""
    height = max(1, min(num_rows, pairs // _LEAST_COLUMNS))
    most_columns = min(most_columns, 16 * configs.MAX_GRID)  # of pack's grid
    width = max(1, min(num_columns, pairs // height, most_columns))
    rows = [slice(i, i + height) for i in range(0, num_rows, height)]
    for j in range(0, num_columns, width):
        yield slice(j, j + width), rows


def _accumulator(grad: Tensor | None, part: slice) -> GradAccumulator | None:
    return None if grad is None else GradAccumulator(grad[part])


def _finish(*accumulators: GradAccumulator | None) -> None:
    for accumulator in accumulators:
        if accumulator is not None:
            accumulator.finish()


def _block_backward(operands: Operands, grad: Tensor, into: Accumulators, arch: int) -> None:
    """Add the gradients of a block whose scores have the gradient ``[C, b, k]``.

    From the widest range of features down: each crop adds to the coefficients of those it has.
    """
    if operands.score.root:
        norms = torch.empty(grad.shape, dtype=torch.float32, device=grad.device)
        fill_scores(norms, operands, arch)
        grad = over_norms(grad, norms.neg_())
    for part in segments(grad, operands.crops):
        add_gradients(operands, Slopes(*part), into, arch)

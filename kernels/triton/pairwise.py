"""Scores of all pairs on a GPU, and their gradients.

Distances are swept in tiles (device/score_tiles.py) and pulled back row by row
(device/backward.py). ``dot`` is a GEMM, so it goes to the vendor's library in chunks, with torch's
own float32 matmul precision (IEEE unless the user allows less); with ``dims`` its scores are swept
in IEEE float32, all crops in one pass.

Memory: 20 MiB of packed operands; backward 8 MiB each for the coefficients of a block, their
packed form, partial sums and, for ``l2``, the norms.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..scores import get_score
from .device.operands import Out, Tile
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
from .host.sides import Sides
from .host.views import takes_root, vector_of
from .host.widths import crop_order, over_norms, segments
from .indexed import fill_indexed

QUERY_BYTES, CANDIDATE_BYTES = 8 << 20, 12 << 20  # packed operands
BLOCK_PAIRS = 1 << 21  # of one block of coefficients: 8 MiB


def pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The contract of :func:`kgfast.ops.pairwise_scores`; see there."""
    sides = Sides(queries, candidates, get_score(score), factor, bias)
    arch = launcher.architecture(candidates.device)
    count = 1 if dims is None else len(dims)
    out = queries.new_empty(count, len(queries), len(candidates), dtype=torch.float32)
    with launcher.on_device(candidates.device):
        fill_scores(out, sides, dims, arch)
    return out[0] if dims is None else out


def fill_scores(out: Tensor, sides: Sides, dims: Sequence[int] | None, arch: int) -> None:
    """Write the scores of all pairs and crops into ``out [C, B, K]`` of column stride 1."""
    if not out.numel():
        return
    if sides.bias is not None:
        sides = sides._replace(bias=sides.bias.expand(len(sides.table)))
    if sides.score.name == "dot" and dims is None:
        _multiply(out[0], sides)
        return
    crops = [sides.num_features] if dims is None else list(dims)
    tile = _tile_for(len(sides.queries), arch, sides.form().is_rscf, has_crops=dims is not None)
    of_query, of_row = (4 * max(crops) * planes for planes in sides.packed_planes)
    height = QUERY_BYTES // of_query // tile.queries * tile.queries
    width = min(CANDIDATE_BYTES // of_row // tile.candidates, configs.MAX_GRID) * tile.candidates
    if not (height and width):
        _gather_all(out, sides, crops)
        return
    order = None if dims is None else crop_order(crops, out)
    for i in range(0, len(sides.queries), height):
        block = sides.of_rows(slice(i, i + height))
        packed = pack_stored_queries(block, max(crops), tile.queries)
        for j in range(0, len(sides.table), width):
            part = block.of_candidates(slice(j, j + width))
            panels = pack_candidates(part, Selection(len(part.table)), max(crops), tile.candidates)
            bias = None if part.bias is None else vector_of(part.bias)
            launcher.launch(
                score_tiles,
                (-(-len(part.queries) // tile.queries), -(-len(part.table) // tile.candidates)),
                {
                    "packed": Panels(packed, panels, bias),
                    "out": Out(out[:, i:, j:], out.stride(1), order),
                    "num_queries": len(part.queries),
                    "num_candidates": len(part.table),
                    "num_features": max(crops),
                    "num_crops": len(crops),
                    "FORM": sides.form(),
                    "TILE": Tile(tile.queries, tile.candidates),
                },
                num_warps=tile.num_warps,
                **({"maxnreg": tile.max_registers} if tile.max_registers else {}),
            )


def _tile_for(num_queries: int, arch: int, is_rscf: bool, *, has_crops: bool) -> configs.Tile:
    """A lane is a candidate, as in configs.py.

    Crops keep a second sum and rscf scores need more registers, so half the queries.
    """
    lanes, num_warps = 32 if arch else 64, 1 if num_queries < 256 else 4
    queries = 16 if has_crops or is_rscf or num_queries <= 16 else 32
    cap = configs.RSCF_REGISTERS if arch and is_rscf else None
    return configs.Tile(queries, num_warps * lanes, num_warps, cap)


def _multiply(out: Tensor, sides: Sides) -> None:
    """``dot`` by GEMM, the table converted in chunks if it has to be."""
    with no_autocast(out.device):
        for columns, rows in float_chunks(sides.table):
            torch.mm(sides.queries, rows.T, out=out[:, columns])
    if sides.bias is not None:
        out += sides.bias


def _gather_all(out: Tensor, sides: Sides, crops: Sequence[int]) -> None:
    """Where not even one packed tile fits the scratch (tens of thousands of features)."""
    index = torch.arange(len(sides.table), dtype=torch.int64, device=out.device)
    fill_indexed(out, sides, index.expand(out.shape[1:]), crops)


def pairwise_backward(
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of queries, candidates and factor; float32 sums, each in its input's dtype."""
    sides = Sides(queries, candidates, get_score(score), factor)
    arch = launcher.architecture(candidates.device)
    grad = grad[None] if dims is None else grad  # [C, B, K]
    grad_queries = zero_gradient(queries, need[0])
    grad_candidates = zero_gradient(candidates, need[1])
    grad_factor = zero_gradient(factor, need[2])
    copies = 2 + (len(grad) if takes_root(sides.score) else 0)
    blocks = _blocks(grad.shape[1], grad.shape[2], BLOCK_PAIRS * 2 // copies, row_cap(sides))
    with launcher.on_device(candidates.device):
        for columns, parts in blocks:
            of_table = _accumulator(grad_candidates, columns)
            of_factor = _accumulator(grad_factor, columns)
            for rows in parts:
                of_queries = _accumulator(grad_queries, rows)
                block = sides.of_rows(rows).of_candidates(columns)
                into = Accumulators(of_queries, of_table, of_factor)
                block_backward(block, grad[:, rows, columns], dims, into, arch)
                if of_queries is not None:
                    of_queries.finish()
            for accumulator in (of_table, of_factor):
                if accumulator is not None:
                    accumulator.finish()
    return grad_queries, grad_candidates, grad_factor


def _blocks(
    num_rows: int, num_columns: int, pairs: int, most_columns: int
) -> Iterator[tuple[slice, list[slice]]]:
    """Columns and rows of blocks of at most ``pairs`` pairs, all rows if 512 columns then fit."""
    height = max(1, min(num_rows, pairs // 512))
    most_columns = min(most_columns, 16 * configs.MAX_GRID)  # of pack's grid
    width = max(1, min(num_columns, pairs // height, most_columns))
    rows = [slice(i, i + height) for i in range(0, num_rows, height)]
    for j in range(0, num_columns, width):
        yield slice(j, j + width), rows


def _accumulator(grad: Tensor | None, part: slice) -> GradAccumulator | None:
    return None if grad is None else GradAccumulator(grad[part])


def block_backward(
    sides: Sides, grad: Tensor, dims: Sequence[int] | None, into: Accumulators, arch: int
) -> None:
    """Add the gradients of a block whose scores without bias have the gradient ``[C, b, k]``.

    From the widest range of features down: each crop adds to the coefficients of those it has.
    """
    if takes_root(sides.score):
        norms = torch.empty(grad.shape, dtype=torch.float32, device=grad.device)
        fill_scores(norms, sides._replace(bias=None), dims, arch)
        grad = over_norms(grad, norms.neg_())
    for part in segments(grad, [sides.num_features] if dims is None else dims):
        add_gradients(sides, Slopes(*part), into, arch)

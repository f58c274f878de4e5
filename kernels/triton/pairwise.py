"""Scores of all pairs on a GPU, and their gradients.

Distances are swept in tiles (score_tiles.py) and pulled back row by row (pull.py). ``dot`` is a
GEMM, so it goes to the vendor's library in chunks, with torch's own float32 matmul precision
(IEEE unless the user allows less); with ``dims`` its scores are swept in IEEE float32, all crops
in one pass.

Memory: 20 MiB of packed operands; backward 8 MiB each for the coefficients of a block, their
packed form, partial sums and, for ``l2``, the norms.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..scores import Score, get_score
from .device.backward import pull
from .device.operands import view_args
from .device.score_tiles import score_tiles
from .device.terms import score_code, takes_root
from .host import configs
from .host import launch as launcher
from .host.gradients import WEIGHTS, pull_block
from .host.layout import pack_candidates, pack_panels, pack_weights
from .host.widths import crop_order, over_norms, segments
from .indexed import fill_indexed

QUERY_BYTES, CANDIDATE_BYTES = 8 << 20, 12 << 20  # packed operands
BLOCK_PAIRS = 1 << 21  # of one block of coefficients: 8 MiB
PARTIAL_BYTES = 8 << 20
MATMUL_BYTES = 8 << 20  # a chunk of rows converted for a GEMM
PULL_PROGRAMS = 4096  # warps that fill a machine: the other side is split until there are as many
PULL_ROWS = 16
MAX_GRID = 65535  # of the second and third axis


def pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The contract of :func:`kgfast.ops.pairwise_scores`; see there."""
    facts = get_score(score)
    arch = launcher.architecture(candidates.device)
    count = 1 if dims is None else len(dims)
    out = queries.new_empty(count, len(queries), len(candidates), dtype=torch.float32)
    with launcher.on_device(candidates.device):
        fill_scores(out, queries, candidates, facts, dims, bias, arch, factor)
    return out[0] if dims is None else out


def fill_scores(
    out: Tensor,
    queries: Tensor,
    candidates: Tensor,
    facts: Score,
    dims: Sequence[int] | None,
    bias: Tensor | None,
    arch: int,
    factor: Tensor | None = None,
) -> None:
    """Write the scores of all pairs and crops into ``out [C, B, K]`` of column stride 1."""
    if not out.numel():
        return
    if bias is not None:
        bias = bias.expand(len(candidates))
    if facts.name == "dot" and dims is None:
        _multiply(out[0], queries, candidates, bias)
        return
    full = facts.num_features(candidates.shape[1])
    crops = [full] if dims is None else list(dims)
    has_crops = dims is not None
    tile = _tile_for(len(queries), arch, has_crops, facts.filters)
    planes = facts.query_planes(factor is not None)
    row_bytes = 4 * max(crops) * (facts.planes + (factor is not None))
    height = QUERY_BYTES // (4 * max(crops) * planes) // tile.queries * tile.queries
    width = min(CANDIDATE_BYTES // row_bytes // tile.candidates, MAX_GRID) * tile.candidates
    if not (height and width):
        _gather_all(out, queries, candidates, facts, crops, bias, factor)
        return
    order = crop_order(crops, candidates.device) if has_crops else None
    for i in range(0, len(queries), height):
        block = queries[i : i + height]
        packed = pack_panels(block, facts, max(crops), tile.queries, planes=planes)
        for j in range(0, len(candidates), width):
            part = candidates[j : j + width]
            its_factor = None if factor is None else factor[j : j + width]
            panels = pack_candidates(part, its_factor, facts, max(crops), tile.candidates)
            target = out[:, i : i + height, j : j + width]
            launcher.launch(
                score_tiles,
                (-(-len(block) // tile.queries), -(-len(part) // tile.candidates)),
                {
                    "p_query": packed,
                    "p_panel": panels,
                    "p_crops": order,
                    "p_bias": None if bias is None else bias[j : j + width],
                    "bias_stride": 0 if bias is None else bias.stride(0),
                    "p_out": target,
                    "crop_stride": out.stride(0),
                    "row_stride": out.stride(1),
                    "num_queries": len(block),
                    "num_candidates": len(part),
                    "num_features": max(crops),
                    "num_crops": len(crops),
                    "SCORE": score_code(facts),
                    "PLANES": facts.planes,
                    "HAS_FACTOR": factor is not None,
                    "HAS_BIAS": bias is not None,
                    "HAS_CROPS": has_crops,
                    "BLOCK_M": tile.queries,
                    "BLOCK_N": tile.candidates,
                },
                num_warps=tile.num_warps,
                **({"maxnreg": tile.max_registers} if tile.max_registers else {}),
            )


def _tile_for(num_queries: int, arch: int, has_crops: bool, filters: bool) -> configs.Tile:
    """A lane is a candidate, as in configs.py.

    Crops keep a second sum and filtering scores need more registers, so half the queries.
    """
    lanes, is_low = 32 if arch else 64, has_crops or filters
    num_warps = 1 if num_queries < 256 else 4
    queries = 16 if is_low or num_queries <= 16 else 32
    cap = configs.FILTER_REGISTERS if arch and filters else None
    return configs.Tile(queries, num_warps * lanes, num_warps, cap)


def _multiply(out: Tensor, queries: Tensor, candidates: Tensor, bias: Tensor | None) -> None:
    """``dot`` by GEMM, the table converted in chunks if it has to be."""
    with float32_matmul(candidates.device):
        for columns, rows in float_chunks(candidates):
            torch.mm(queries, rows.T, out=out[:, columns])
    if bias is not None:
        out += bias


def _gather_all(
    out: Tensor,
    queries: Tensor,
    candidates: Tensor,
    facts: Score,
    crops: Sequence[int],
    bias: Tensor | None,
    factor: Tensor | None,
) -> None:
    """Where not even one packed tile fits the scratch (tens of thousands of features)."""
    index = torch.arange(len(candidates), dtype=torch.int64, device=candidates.device)
    index = index.expand(out.shape[1:])
    fill_indexed(out, queries, candidates, index, facts, crops, bias, factor)


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
    facts = get_score(score)
    arch = launcher.architecture(candidates.device)
    grad = grad[None] if dims is None else grad  # [C, B, K]
    grad_queries = zero_gradient(queries, need[0])
    grad_candidates = zero_gradient(candidates, need[1])
    grad_factor = None if factor is None else zero_gradient(factor, need[2])
    copies = 2 + (len(grad) if takes_root(facts) else 0)
    most = row_cap(candidates) if factor is None else min(row_cap(candidates), row_cap(factor))
    blocks = _blocks(len(queries), len(candidates), BLOCK_PAIRS * 2 // copies, most)
    with launcher.on_device(candidates.device):
        for columns, parts in blocks:
            of_candidates = None if grad_candidates is None else Sink(grad_candidates[columns])
            of_factor = None if grad_factor is None else Sink(grad_factor[columns])
            its_factor = None if factor is None else factor[columns]
            for rows in parts:
                of_queries = None if grad_queries is None else Sink(grad_queries[rows])
                pairs = Pairs(queries[rows], candidates[columns], facts, arch, its_factor)
                coefficients = pairs.coefficients(grad[:, rows, columns], dims)
                pairs.pull(coefficients, of_queries, of_candidates, of_factor)
                if of_queries is not None:
                    of_queries.finish()
            for sink in (of_candidates, of_factor):
                if sink is not None:
                    sink.finish()
    return grad_queries, grad_candidates, grad_factor


def row_cap(rows: Tensor) -> int:
    """How many rows of a gradient are summed at once: those whose float32 copy is small."""
    if rows.dtype == torch.float32:
        return max(1, len(rows))
    return max(1, PARTIAL_BYTES // (4 * rows.shape[1]))


def _blocks(
    num_rows: int, num_columns: int, pairs: int, most_columns: int
) -> Iterator[tuple[slice, list[slice]]]:
    """Columns and rows of blocks of at most ``pairs`` pairs, all rows if 512 columns then fit."""
    height = max(1, min(num_rows, pairs // 512))
    width = max(1, min(num_columns, pairs // height, most_columns, 16 * MAX_GRID))  # of pack's grid
    rows = [slice(i, i + height) for i in range(0, num_rows, height)]
    for j in range(0, num_columns, width):
        yield slice(j, j + width), rows


def zero_gradient(rows: Tensor, needed: bool) -> Tensor | None:
    """A contiguous gradient to add to."""
    return torch.zeros_like(rows, memory_format=torch.contiguous_format) if needed else None


class Pairs:
    """A block of queries ``[b, F]`` and candidates ``[k, G]``, all pairs of them."""

    def __init__(
        self,
        queries: Tensor,
        candidates: Tensor,
        facts: Score,
        arch: int,
        factor: Tensor | None = None,
    ) -> None:
        self.queries, self.candidates, self.factor = queries, candidates, factor
        self.facts, self.arch = facts, arch
        self.num_features = facts.num_features(candidates.shape[1])

    def scores(self, dims: Sequence[int] | None = None) -> Tensor:
        """Scores without bias ``[C, b, k]``."""
        shape = (1 if dims is None else len(dims), len(self.queries), len(self.candidates))
        out = torch.empty(shape, dtype=torch.float32, device=self.candidates.device)
        operands = self.queries, self.candidates, self.facts
        fill_scores(out, *operands, dims, None, self.arch, self.factor)
        return out

    def coefficients(
        self, grad: Tensor, dims: Sequence[int] | None
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of features and what their slopes are multiplied by, ``[b, k]``.

        From the widest range down: each crop adds to the coefficients of the features it has.
        """
        if takes_root(self.facts):
            grad = over_norms(grad, self.scores(dims).neg_())
        return segments(grad, [self.num_features] if dims is None else dims)

    def pull(
        self,
        coefficients: Iterator[tuple[int, int, Tensor]],
        of_queries: "Sink | None",
        of_candidates: "Sink | None",
        of_factor: "Sink | None" = None,
    ) -> None:
        """Add the gradients of the block."""
        for low, high, coefficient in coefficients:
            if self.facts.filters:
                self._pull_filtered(of_queries, of_candidates, of_factor, coefficient, low, high)
                continue
            for sink, rows, others, weights in (
                (of_queries, self.queries, self.candidates, coefficient),
                (of_candidates, self.candidates, self.queries, coefficient.T),
            ):
                if sink is not None and self.facts.name == "dot":
                    _pull_by_matmul(sink.total, weights, others, low, high)
                elif sink is not None:
                    self._pull(sink, rows, others, weights, low, high)

    def _pull_filtered(
        self,
        of_queries: "Sink | None",
        of_candidates: "Sink | None",
        of_factor: "Sink | None",
        coefficient: Tensor,
        low: int,
        high: int,
    ) -> None:
        operands = self.queries, self.candidates, self.factor, self.facts, self.arch
        if of_queries is not None:
            weights = pack_weights(coefficient, WEIGHTS)
            pull_block(*operands, weights, (of_queries, None), low, high, of_queries=True)
        if of_candidates is not None or of_factor is not None:
            weights = pack_weights(coefficient.T, WEIGHTS)
            sinks = of_candidates, of_factor
            pull_block(*operands, weights, sinks, low, high, of_queries=False)

    def _pull(
        self, sink: "Sink", rows: Tensor, others: Tensor, weights: Tensor, low: int, high: int
    ) -> None:
        features = 32 if self.arch else 64  # the lanes of a warp
        tiles, columns = -(-len(rows) // PULL_ROWS), -(-(high - low) // features)
        target = sink.target(tiles * -(-self.num_features // features), len(others))
        per_split = -(-len(others) // len(target))
        launcher.launch(
            pull,
            (tiles, columns, -(-len(others) // per_split)),
            {
                **view_args(rows, self.facts, "p_row", "r_"),
                **view_args(others, self.facts, "p_other", "c_"),
                **view_args(target[0], self.facts, "p_grad", "g_"),
                "p_coefficient": pack_weights(weights, PULL_ROWS),
                "split_stride": target.stride(0),
                "num_rows": len(rows),
                "num_others": len(others),
                "others_per_split": per_split,
                "first_feature": low,
                "last_feature": high,
                "SCORE": score_code(self.facts),
                "PLANES": self.facts.planes,
                "ROWS": PULL_ROWS,
                "FEATURES": features,
            },
            num_warps=1,
        )


class Sink:
    """Float32 sums for rows of a gradient, in as many splits as fill the machine."""

    def __init__(self, grad: Tensor) -> None:
        self.grad = grad
        is_float = grad.dtype == torch.float32
        self.total = grad if is_float else grad.to(torch.float32)
        self.partial: Tensor | None = None

    def target(self, programs: int, num_others: int, splits: int | None = None) -> Tensor:
        """``[splits, R, G]`` to add to; the same for every range of features."""
        if self.partial is None:
            room = PARTIAL_BYTES // (4 * self.total.numel())
            if splits is None:
                splits = min(PULL_PROGRAMS // programs, room, num_others // 64, MAX_GRID)
            if splits > 1:
                self.partial = self.total.new_zeros(splits, *self.total.shape)
        return self.total[None] if self.partial is None else self.partial

    def finish(self) -> None:
        """Bring the sums into the gradient, in its dtype."""
        if self.partial is not None:
            self.total += self.partial.sum(0)
        if self.total is not self.grad:
            self.grad.copy_(self.total)


def _pull_by_matmul(total: Tensor, weights: Tensor, others: Tensor, low: int, high: int) -> None:
    with float32_matmul(others.device):
        for part, rows in float_chunks(others[:, low:high]):
            total[:, low:high].addmm_(weights[:, part], rows)


def float_chunks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows as a GEMM takes them: float32, one stride 1; in place or by bounded copies."""
    (height, width), (row, column) = rows.shape, rows.stride()
    is_matrix = (column == 1 and row >= width) or (row == 1 and column >= height)
    in_place = rows.dtype == torch.float32 and is_matrix
    step = len(rows) if in_place else max(1, MATMUL_BYTES // (4 * max(1, rows.shape[1])))
    for first in range(0, len(rows), max(1, step)):
        part = slice(first, first + step)
        yield part, rows[part] if in_place else rows[part].float().contiguous()


def float32_matmul(device: torch.device) -> Any:
    """A context in which autocast leaves GEMMs alone."""
    return torch.autocast(device.type, enabled=False)

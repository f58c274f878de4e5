"""Losses over all candidates on a GPU: one kernel scores a tile, reduces it, and writes slopes.

A chunk of candidates is swept by one launch (loss_tiles.py), which writes row sums and, if
gradients are needed, the slopes of the chunk; these are then pulled into the gradients. Row sums of
all tiles are added once, at the end. The device checks labels while it makes their keys, and sums
while it adds them. The host waits once, for one word per program.

Memory: 40 MiB for slopes of a chunk and its panels outside the table's gradient; 2 MiB of packed
queries, 4 MiB of row sums, 16 MiB of partial gradients, and O(B + nnz): at most 64 MiB. On a GPU of
more than 16 GiB, partial gradients take more (:func:`scratch_of` in host/launch.py).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..labels import Bce, CrossEntropy, LossChecks, LossGradients, LossNeed, LossRows, LossTotal
from ..losses import Losses, LossPlan
from ..operands import Gradients, Operands
from .device import finish as finishing
from .device import losses as device
from .device.finish import FINISHED_ROWS, SCALED, Totals
from .device.losses import FACTS, LABELS, TileResults
from .host import launch as launcher
from .host.views import bias_of
from .loss_tiles import Distances, ProductTiles
from .pairwise import fill_gradients

SUM_BYTES = 4 << 20  # bytes of row sums; at least one tile's

_NOTHING = LossNeed(queries=False, table=False, bias=False)


class FusedLosses(Losses):
    """Fused losses. The base class serves calls without queries or candidates."""

    def __init__(self) -> None:
        super().__init__(None, LossPlan(scratch=1, dtype=torch.float32))

    def value(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
    ) -> LossRows:
        """Compute row losses; wait once if there are checks. No scores are stored."""
        if not _has_pairs(operands):
            return super().value(operands, loss, checks)
        totals, _ = _compute(operands, loss, 1.0, _NOTHING, checks)
        return LossRows(totals.rows, totals.linear, totals.logsumexp)

    def gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        made: LossRows | None = None,
    ) -> LossGradients:
        if not _has_pairs(operands):
            return super().gradients(operands, loss, weights, need, made)
        with launcher.serving(operands.table.device) as arch:
            labels, _ = _labels_of(operands, loss, 0, 1.0)
            labels = labels._replace(grad=weights, grad_step=weights.stride(0))
            if isinstance(loss, CrossEntropy):
                assert made is not None
                assert made.logsumexp is not None
                labels = labels._replace(logsumexp=made.logsumexp.contiguous())
            return _Sweep(operands, labels, need, arch).run()[1]

    def value_and_gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> LossTotal:
        """Compute bce in one sweep; cross entropy needs the logsumexp before its slopes."""
        if not _has_pairs(operands):
            return super().value_and_gradients(operands, loss, divisor, need, checks)
        if isinstance(loss, Bce):
            totals, gradients = _compute(operands, loss, 1 / divisor, need, checks, has_total=True)
            return LossTotal(totals.total, totals.linear, gradients)
        made = self.value(operands, loss, checks)
        gradients = LossGradients(None, None, None)
        if any(need):
            weights = torch.ones_like(made.rows) / divisor
            gradients = self.gradients(operands, loss, weights, need, made)
        return LossTotal(made.rows.sum() / divisor, made.linear, gradients)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply gradients by the factor in one launch; a factor of 1 writes nothing."""
        values = tuple(gradient for gradient in gradients if gradient.numel())
        counts = tuple(gradient.numel() for gradient in values)
        constants = {"MEMBERS": len(values), "BLOCK": SCALED}
        with launcher.serving(factor.device):
            launcher.launch(
                finishing.scale,
                (-(-max(counts, default=0) // SCALED),),
                {"values": values, "counts": counts, "p_factor": factor, **constants},
                num_warps=4,
            )


def _compute(
    operands: Operands,
    loss: Bce | CrossEntropy,
    weight: float,
    need: LossNeed,
    checks: LossChecks | None,
    *,
    has_total: bool = False,
) -> tuple[Totals, LossGradients]:
    """Compute ``weight`` times the rows, their sum if needed, and gradients; wait for checks."""
    is_softmax, queries = isinstance(loss, CrossEntropy), operands.queries
    with launcher.serving(operands.table.device) as arch:
        programs = -(-len(queries) // FINISHED_ROWS)
        labels, words = _labels_of(operands, loss, programs, weight)
        told = Totals(status=words[len(words) - programs :])
        if has_total:
            told = told._replace(
                total=queries.new_empty((), dtype=torch.float32),
                parts=queries.new_empty(programs, dtype=torch.float64),
                finished=words[2:],
            )
        totals, gradients = _Sweep(operands, labels, need, arch, told).run()
    if checks is not None and any(words[0 if is_softmax else FACTS :].cpu().tolist()):
        checks.labels()  # a program met an error
        checks.scores(totals.linear)
    return totals, gradients


def _has_pairs(operands: Operands) -> bool:
    return bool(operands.num_queries and operands.candidates.num_rows)


def _labels_of(
    operands: Operands, loss: Bce | CrossEntropy, num_finished: int, weight: float
) -> tuple[device.RowLabels, Tensor]:
    """Return labels for kernels, and words of programs; the last are those that finish.

    Labels of bce become ascending keys. Words about these, and of their programs, come first.
    """
    rows = operands.candidates.num_rows
    if isinstance(loss, CrossEntropy):
        labels = device.RowLabels(
            loss.targets, None, None, 1 - loss.smoothing, loss.smoothing / rows
        )
        return labels, loss.targets.new_empty(num_finished)
    count = len(loss.indices)
    programs = -(-max(count, operands.num_queries) // LABELS)
    programs += programs % 2  # so that later words begin at a multiple of 16 bytes
    words, keys = (
        loss.indices.new_empty(FACTS + programs + num_finished),
        loss.indices.new_empty(count),
    )
    launcher.launch(
        device.make_keys,
        (programs,),
        {
            "labels": device.PositiveIds(loss.indptr, loss.indices, keys),
            "p_status": words,
            "bias": bias_of(operands),
            "num_queries": operands.num_queries,
            "num_positives": count,
            "num_candidates": rows,
            "LABELS": LABELS,
        },
        num_warps=4,
    )
    keys = keys.sort().values
    return device.RowLabels(keys, loss.indptr, words, loss.a, loss.c, weight), words


class _Sweep:
    """Sweep of all candidates, chunk by chunk: row sums, gradients, or both.

    Row sums of tiles are added up when their memory is full, and at the end.
    """

    def __init__(
        self,
        operands: Operands,
        labels: device.RowLabels,
        need: LossNeed,
        arch: int,
        told: Totals | None = None,
    ) -> None:
        """Prepare a sweep; ``told`` gets words of finishing programs, and the needed total."""
        self.operands, self.labels, self.need, self._arch = operands, labels, need, arch
        is_softmax = labels.indptr is None
        way: type[Distances | ProductTiles] = Distances if operands.score.monotone else ProductTiles
        self.tiles = way(operands, arch, need)
        queries, table = operands.queries, operands.table
        self.of_bias = table.new_empty(len(table), dtype=torch.float32) if need.bias else None
        self.of_queries: Tensor | None = None
        if need.queries:
            self.of_queries = queries.new_empty(queries.shape, dtype=torch.float32)
        (count, lanes), parts = (len(queries), self.tiles.tile.lanes), 3 if is_softmax else 2
        self._capacity = max(1, SUM_BYTES // (4 * parts * count))
        width = min(self.tiles.width, self._capacity * lanes)
        self._chunks = [
            slice(first, min(first + width, len(table))) for first in range(0, len(table), width)
        ]
        row = -(-min(width, len(table)) // 16) * 16
        of_slopes = torch.bfloat16 if operands.precision == "bf16" else torch.float32
        slopes = queries.new_empty(count, row, dtype=of_slopes) if any(need) else None
        sums = None
        if need.bias:
            tiles_of_rows = -(-count // self.tiles.tile.rows)
            sums = queries.new_empty(tiles_of_rows, row, dtype=torch.float32)
        picked = queries.new_empty(count, dtype=torch.float32) if is_softmax else None
        self.result = TileResults(None, picked, slopes, row, sums)
        self._totals: Totals | None = None
        if told is None:
            return
        num_tiles = sum(map(self._tiles_of, self._chunks))  # a chunk may be less than a tile
        is_carried, self._capacity = num_tiles > self._capacity, min(num_tiles, self._capacity)
        self._sums = queries.new_empty(self._capacity, parts, count, dtype=torch.float32)
        bias = operands.candidates.whole_bias
        self._totals = told._replace(
            carried=queries.new_empty(parts * count * is_carried, dtype=torch.float64),
            rows=queries.new_empty(count, dtype=torch.float32),
            linear=queries.new_empty(count, dtype=torch.float64),
            logsumexp=queries.new_empty(count, dtype=torch.float64) if is_softmax else None,
            sums=self._sums,
            picked=picked,
            num_candidates=len(table),
            bias=bias,
            bias_step=0 if bias is None else bias.stride(0),
        )
        self._used, self._has_earlier = 0, False

    def run(self) -> tuple[Totals, LossGradients]:
        """Sweep; the totals are void if sums are not needed."""
        for chunk in self._chunks:
            room = None if self._totals is None else self._room(self._tiles_of(chunk))
            labels = self.labels._replace(first=chunk.start)
            part = self.tiles.score(chunk, labels, self.result._replace(sums=room))
            slopes, sums, count = self.result.slopes, self.result.bias_sums, len(part.table)
            if self.of_bias is not None:
                torch.sum(sums[:, :count], 0, out=self.of_bias[chunk])
            if self.need.queries or self.need.table:
                of_table = None if self.tiles.of_table is None else self.tiles.of_table[chunk]
                into, blocks = Gradients(self.of_queries, of_table), self.tiles.blocks
                grad = slopes[None, :, :count]
                fill_gradients(into, part, grad, blocks, self._arch, adds=chunk.start > 0)
        if self._totals is not None:
            self._finish(is_last=True)
        gradients = LossGradients(self.of_queries, self.tiles.of_table, self.of_bias)
        return self._totals or Totals(), gradients

    def _tiles_of(self, chunk: slice) -> int:
        return len(range(chunk.start, chunk.stop, self.tiles.tile.lanes))

    def _room(self, tiles: int) -> Tensor:
        """Return memory for sums of so many tiles."""
        if self._used + tiles > self._capacity:
            self._finish(is_last=False)
        self._used += tiles
        return self._sums[self._used - tiles :]

    def _finish(self, *, is_last: bool) -> None:
        """Add row sums."""
        launcher.launch(
            finishing.finish,
            (-(-self.operands.num_queries // FINISHED_ROWS),),
            {
                "labels": self.labels,
                "totals": self._totals,
                "num_tiles": self._used,
                "num_queries": self.operands.num_queries,
                "HAS_EARLIER": self._has_earlier,
                "IS_LAST": is_last,
            },
            num_warps=4,
        )
        self._used, self._has_earlier = 0, True

"""Losses over all candidates on a GPU: one kernel scores a tile, reduces it, and writes slopes.

A chunk of candidates is packed (distances) and swept by one launch, which writes row sums and, if
gradients are needed, the slopes of the chunk. Then slopes are pulled into the gradients
(pairwise.py); for products, two GEMMs of this backend do so (device/fused_losses.py). Row sums of
all tiles are added once, at the end. A forward alone writes only row sums.

The device checks labels while it makes their keys, and sums while it adds them. The host waits
once, for one word per program.

Memory: 40 MiB for slopes of a chunk, and for panels or bfloat16 rows of the chunk outside the
table's gradient; queries in bfloat16 take 2 bytes per number. Packed queries take 2 MiB and row
sums 4 MiB. Partial gradients of queries take 8 MiB for products and 14 MiB for distances, plus 2
MiB for few rows. Sums of a bias take 1/16 of the slopes; all else is O(B + nnz). In all at most 64
MiB.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..labels import Bce, CrossEntropy, LossChecks, LossGradients, LossNeed, LossRows, LossTotal
from ..losses import Losses
from ..operands import Operands
from .device import finish as finishing
from .device import losses as device
from .device.finish import FINISHED_ROWS, SCALED, Finish, Totals
from .device.losses import FACTS, LABELS, TileLoss, TileResults
from .host import launch as launcher
from .host.views import vector_of
from .loss_tiles import tiles_of

SUM_BYTES = 4 << 20  # bytes of row sums; at least one tile's

_NOTHING = LossNeed(queries=False, table=False, bias=False)
_SLOPES = TileLoss(is_softmax=False, has_sums=False, has_slopes=True)


class FusedLosses(Losses):
    """Fused losses; see :class:`kgfast.kernels.losses.Losses`."""

    def __init__(self) -> None:
        pass

    def value(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
    ) -> LossRows:
        """Compute row losses; wait once if there are checks. No scores are stored."""
        if isinstance(loss, Bce):
            totals, _ = self._bce(operands, loss, 1.0, _NOTHING, checks)
            return LossRows(totals.rows, totals.linear)
        with launcher.serving(operands.table.device) as arch:
            if not _has_pairs(operands):
                if checks is not None:
                    checks.labels()
                linear, logsumexp = (_zeros(operands, torch.float64) for _ in range(2))
                return LossRows(_zeros(operands, torch.float32), linear, logsumexp)
            words = loss.targets.new_empty(-(-operands.num_queries // FINISHED_ROWS))
            kind = TileLoss(is_softmax=True, has_sums=True, has_slopes=False)
            told = Totals(None, None, None, None, words)
            totals, _ = _Sweep(operands, _targets(operands, loss), kind, _NOTHING, arch, told).run()
        _read(words, totals.linear, checks)
        return LossRows(totals.rows, totals.linear, totals.logsumexp)

    def gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        made: LossRows | None = None,
    ) -> LossGradients:
        with launcher.serving(operands.table.device) as arch:
            if not _has_pairs(operands):
                return _no_gradients(operands, need)
            if isinstance(loss, Bce):
                kind, logsumexp = _SLOPES, None
                labels = _device_labels(operands, loss, make_keys(operands, loss, 0), 1.0)
            else:
                assert made is not None
                assert made.logsumexp is not None
                kind, logsumexp = _SLOPES._replace(is_softmax=True), made.logsumexp.contiguous()
                labels = _targets(operands, loss)
            labels = labels._replace(grad=weights, grad_step=weights.stride(0), logsumexp=logsumexp)
            return _Sweep(operands, labels, kind, need, arch).run()[1]

    def value_and_gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> LossTotal:
        """Compute bce in one sweep; cross entropy needs the logsumexp before its slopes."""
        if isinstance(loss, Bce):
            totals, gradients = self._bce(operands, loss, 1 / divisor, need, checks, has_total=True)
            return LossTotal(totals.total, totals.linear, gradients)
        made = self.value(operands, loss, checks)
        gradients = LossGradients(None, None, None)
        if any(need):
            weights = torch.ones_like(made.rows) / divisor
            gradients = self.gradients(operands, loss, weights, need, made)
        return LossTotal(made.rows.sum() / divisor, made.linear, gradients)

    def _bce(
        self,
        operands: Operands,
        labels: Bce,
        weight: float,
        need: LossNeed,
        checks: LossChecks | None,
        *,
        has_total: bool = False,
    ) -> tuple[Totals, LossGradients]:
        """Compute ``weight`` times the rows, the needed sum of rows, and the gradients."""
        with launcher.serving(operands.table.device) as arch:
            if not _has_pairs(operands):
                if checks is not None:
                    checks.labels()
                rows, linear = (_zeros(operands, it) for it in (torch.float32, torch.float64))
                none = Totals(None, rows, linear, None, None, rows.sum())
                return none, _no_gradients(operands, need)
            programs = -(-operands.num_queries // FINISHED_ROWS)
            status = make_keys(operands, labels, programs)
            made = _device_labels(operands, labels, status, weight)
            loss = TileLoss(is_softmax=False, has_sums=True, has_slopes=any(need))
            told = Totals(None, None, None, None, status.of_finish)
            if has_total:
                told = told._replace(
                    total=operands.queries.new_empty((), dtype=torch.float32),
                    parts=operands.queries.new_empty(programs, dtype=torch.float64),
                    finished=status.words[2:],
                )
            totals, gradients = _Sweep(operands, made, loss, need, arch, told).run()
        _read(status.words[FACTS:], totals.linear, checks)
        return totals, gradients

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Let the device read the factor: one launch, which writes nothing for a factor of 1."""
        sizes = [it.numel() for it in gradients] + [0, 0]
        values = [it if it.numel() else None for it in gradients] + [None, None]
        with launcher.serving(factor.device):
            launcher.launch(
                finishing.scale,
                (-(-max(sizes) // SCALED),),
                {
                    "values": tuple(values[:3]),
                    "p_factor": factor,
                    "first_count": sizes[0],
                    "second_count": sizes[1],
                    "third_count": sizes[2],
                    "BLOCK": SCALED,
                },
                num_warps=4,
            )


def _has_pairs(operands: Operands) -> bool:
    return bool(operands.num_queries and operands.candidates.num_rows)


def _zeros(operands: Operands, dtype: torch.dtype) -> Tensor:
    return torch.zeros(operands.num_queries, dtype=dtype, device=operands.table.device)


def _no_gradients(operands: Operands, need: LossNeed) -> LossGradients:
    """Make the gradients of no pairs."""
    queries, table = operands.queries, operands.table
    return LossGradients(
        torch.zeros_like(queries) if need.queries else None,
        torch.zeros_like(table) if need.table else None,
        table.new_zeros(len(table), dtype=torch.float32) if need.bias else None,
    )


def _read(words: Tensor, linear: Tensor, checks: LossChecks | None) -> None:
    """Wait for the device once, and look closer if a program met an error."""
    if checks is not None and any(words.cpu().tolist()):
        checks.labels()
        checks.scores(linear)


class _Status(NamedTuple):
    """Words of the device about labels and sums, and the keys of the labels."""

    words: Tensor  # [FACTS + programs] int64
    of_finish: Tensor  # words of the programs that finish
    keys: Tensor  # [positives]


def make_keys(operands: Operands, labels: Bce, num_finished: int) -> _Status:
    """Make ascending keys of the positives, and memory for the finishing programs' words."""
    count, rows = len(labels.indices), operands.num_queries
    programs = -(-max(count, rows) // LABELS)
    programs += programs % 2  # so that later words begin at a multiple of 16 bytes
    words = labels.indices.new_empty(FACTS + programs + num_finished)
    keys = torch.empty_like(labels.indices)
    bias = operands.candidates.whole_bias
    launcher.launch(
        device.make_keys,
        (programs,),
        {
            "positives": device.KeyInputs(labels.indptr, labels.indices, keys, words),
            "bias": None if bias is None else vector_of(bias),
            "num_queries": rows,
            "num_positives": count,
            "num_candidates": operands.candidates.num_rows,
            "LABELS": LABELS,
        },
        num_warps=4,
    )
    return _Status(words, words[FACTS + programs :], keys.sort().values)


def _device_labels(
    operands: Operands, labels: Bce, status: _Status, weight: float
) -> device.RowLabels:
    return device.RowLabels(status.keys, labels.indptr, status.words, labels.a, labels.c, weight)


def _targets(operands: Operands, loss: CrossEntropy) -> device.RowLabels:
    every = loss.smoothing / operands.candidates.num_rows
    return device.RowLabels(loss.targets, None, None, 1 - loss.smoothing, every)


class _Sweep:
    """Sweep of all candidates, chunk by chunk: row sums, gradients, or both."""

    def __init__(
        self,
        operands: Operands,
        labels: device.RowLabels,
        loss: TileLoss,
        need: LossNeed,
        arch: int,
        told: Totals | None = None,
    ) -> None:
        """Prepare a sweep; ``told`` gets words of finishing programs, and the needed total."""
        self.operands, self.labels, self.need = operands, labels, need
        self.loss = loss._replace(has_bias_sums=need.bias)
        self.tiles, self.told = tiles_of(operands, arch, need), told
        queries, table = operands.queries, operands.table
        self.of_bias = table.new_empty(len(table), dtype=torch.float32) if need.bias else None
        count, tile = operands.num_queries, self.tiles.tile
        self.width = min(self.tiles.width, self._most_tiles() * tile.lanes)
        row = -(-min(self.width, len(table)) // 16) * 16
        of_slopes = torch.bfloat16 if operands.precision == "bf16" else torch.float32
        slopes = queries.new_empty(count, row, dtype=of_slopes) if loss.has_slopes else None
        sums = None
        if need.bias:
            sums = queries.new_empty(-(-count // tile.rows), row, dtype=torch.float32)
        self.picked = queries.new_empty(count, dtype=torch.float32) if loss.is_softmax else None
        self.result = TileResults(None, self.picked, slopes, row, sums)

    def run(self) -> tuple[Totals, LossGradients]:
        """Sweep; the totals are void if sums are not needed."""
        sums = _RowSums(self) if self.loss.has_sums else None
        for chunk in self._chunks():
            room = None
            if sums is not None:
                room = sums.room(self._tiles_of(chunk))
            labels = self.labels._replace(first=chunk.start)
            self.tiles.score(chunk, labels, self.result._replace(sums=room), self.loss)
            self._pull(chunk)
        tiles = self.tiles
        if sums is None:
            totals = Totals(None, None, None, None, None)
            tiles.settle()
        else:
            totals = sums.finished()
        return totals, LossGradients(tiles.of_queries, tiles.of_table, self.of_bias)

    def _chunks(self) -> Iterator[slice]:
        count = self.operands.candidates.num_rows
        for first in range(0, count, self.width):
            yield slice(first, min(first + self.width, count))

    def _tiles_of(self, chunk: slice) -> int:
        return len(range(chunk.start, chunk.stop, self.tiles.tile.lanes))

    def _most_tiles(self) -> int:
        parts = 3 if self.loss.is_softmax else 2
        return max(1, SUM_BYTES // (4 * parts * self.operands.num_queries))

    def _pull(self, chunk: slice) -> None:
        slopes, sums, count = self.result.slopes, self.result.bias_sums, chunk.stop - chunk.start
        if self.of_bias is not None:
            torch.sum(sums[:, :count], 0, out=self.of_bias[chunk])
        if self.need.queries or self.need.table:
            self.tiles.pull(chunk, slopes[:, :count])


class _RowSums:
    """Row sums of tiles, added up when the memory is full and at the end."""

    def __init__(self, sweep: _Sweep) -> None:
        self._sweep, operands = sweep, sweep.operands
        self._parts = 3 if sweep.loss.is_softmax else 2
        tiles = sum(map(sweep._tiles_of, sweep._chunks()))  # a chunk may be less than a tile
        self._capacity = min(tiles, sweep._most_tiles())
        shape = self._capacity, self._parts, operands.num_queries
        self._sums = operands.queries.new_empty(shape, dtype=torch.float32)
        rows, linear, logsumexp = (
            operands.queries.new_empty(shape[2], dtype=dtype)
            for dtype in (torch.float32, torch.float64, torch.float64)
        )
        carried = linear.new_empty(shape[1:] if tiles > self._capacity else (0,))
        assert sweep.told is not None
        self._totals = sweep.told._replace(
            carried=carried, rows=rows, linear=linear, logsumexp=logsumexp
        )
        self._used, self._has_earlier = 0, False

    def room(self, tiles: int) -> Tensor:
        if self._used + tiles > self._capacity:
            self._add(is_last=False)
        self._used += tiles
        return self._sums[self._used - tiles :]

    def finished(self) -> Totals:
        self._add(is_last=True)
        return self._totals

    def _add(self, *, is_last: bool) -> None:
        operands, bias = self._sweep.operands, self._sweep.operands.candidates.whole_bias
        owed = self._sweep.tiles.owed() if is_last else None
        programs = -(-operands.num_queries // FINISHED_ROWS)
        launcher.launch(
            finishing.finish,
            (programs + (0 if owed is None else owed.programs),),
            {
                "labels": self._sweep.labels,
                "totals": self._totals._replace(
                    sums=self._sums,
                    picked=self._sweep.picked,
                    num_candidates=operands.candidates.num_rows,
                    bias=bias,
                    bias_step=0 if bias is None else bias.stride(0),
                ),
                "splits": None if owed is None else owed.parts,
                "num_tiles": self._used,
                "num_queries": operands.num_queries,
                "num_splits": 0 if owed is None else owed.num_parts,
                "FINISH": Finish(
                    self._sweep.loss.is_softmax,
                    self._has_earlier,
                    is_last,
                    FINISHED_ROWS,
                    None if owed is None else owed.striped,
                ),
            },
            num_warps=4,
        )
        self._used, self._has_earlier = 0, True

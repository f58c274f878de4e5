"""Losses of sampled negatives on a GPU: scores become sums of rows as they are computed.

Forward, a pool is packed and swept as for losses over all candidates (loss_tiles.py), and lists are
gathered. Tiles leave four numbers per row, which a last launch adds up. Backward, one launch turns
stored scores into slopes. Slopes are pulled into gradients like those of pairwise and indexed
scores; for products, tensor cores do so. No operator of torch sees a ``[B, K]``.

Memory: scores ``[B, K]``, if a gradient is needed, and slopes of that size in the backward; the
memory of a pull; four numbers per row for each tile of a pool, or for 64 negatives of a list.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..labels import LossNeed
from ..negatives import NegativeLosses
from ..operands import Gradients, NamedRows, Need, Operands
from ..sampled import NegativeGradients, NegativeLoss, NegativeRows, Sampled
from .device import negatives as device
from .device.arguments import TileShape
from .device.losses import TileLoss, TileResults, Variant
from .device.negatives import FINISHED_ROWS, PARTS, ForwardState, RowInputs
from .host import configs
from .host import launch as launcher
from .host.views import form_of, plane_of, vector_of, views_of
from .indexed import GATHER_FEATURES, GATHER_PAIRS, indexed_gradients
from .loss_tiles import LossTiles, Products, tiles_of
from .pairwise import all_gradients

STRIPE_PAIRS = 64  # pairs of a list in one program
SLOPE_TILE = TileShape(8, 128)

_FORWARD = LossNeed(queries=False, table=False, bias=False)


class FusedNegatives(NegativeLosses):
    """Fused negatives; see :class:`kgfast.kernels.negatives.NegativeLosses`."""

    def __init__(self) -> None:
        pass

    def value(
        self,
        operands: Operands,
        sampled: Sampled,
        loss: NegativeLoss,
        *,
        keeps: bool,
        check: Callable[[], None] | None,
    ) -> NegativeRows:
        """Compute the rows; wait once, if there is a check."""
        count = operands.num_queries
        with launcher.serving(operands.table.device) as arch:
            made = _room(operands, sampled, loss, keeps=keeps)
            given, reduced = _given(loss, made), loss.reduction != "none"
            if sampled.negatives is None:
                sums = _sweep_pool(operands, given, loss, made.raw if keeps else None, arch)
            else:
                sums = _gather_lists(operands, sampled, given, loss, made)
            programs = -(-count // FINISHED_ROWS)
            words = made.masses.new_zeros(1 + programs, dtype=torch.int64)
            parts = made.masses.new_empty(2, programs, dtype=torch.float64) if reduced else None
            lists = sampled.negatives
            width = len(operands.table) if lists is None else lists.shape[1]
            base, counts = _divisor(loss, made, width)
            launcher.launch(
                device.finish_negatives,
                (programs,),
                {
                    "kept": _kept(made, loss)._replace(sums=sums, status=words[1:]),
                    "ends": device.Ends(made.loss, parts, words, base),
                    "alpha": float(loss.parameter),
                    "num_tiles": len(sums),
                    "num_queries": count,
                    "COUNTS": counts,
                    "FORMULA": loss.formula,
                },
                num_warps=1,
            )
        if check is not None and any(words[1:].cpu().tolist()):  # the first word counts programs
            check()
        return made

    def gradients(
        self,
        operands: Operands,
        loss: NegativeLoss,
        made: NegativeRows,
        grad: Tensor,
        need: Need,
        *,
        bias: bool = False,
        rows: NamedRows | None = None,
    ) -> NegativeGradients:
        """Compute the gradients without a wait."""
        with launcher.serving(operands.table.device) as arch:
            slopes, of_bias, of_positive = _slopes(operands, loss, made, grad, bias=bias)
            if made.ids.numel():
                given = operands, slopes, made.ids, need
                pulled = indexed_gradients(*given, rows_only=rows is not None, over_roots=True)
            elif operands.score.monotone:
                pulled = all_gradients(operands, slopes, need, over_roots=True)
            else:
                tiles = Products(operands, arch, LossNeed(need.queries, need.table, bias=False))
                for chunk in _chunks(operands, tiles):
                    tiles.pull(chunk, slopes[:, chunk])
                tiles.settle()
                pulled = Gradients(tiles.of_queries, tiles.of_table)
        return NegativeGradients(pulled, of_bias, of_positive)


def _room(operands: Operands, sampled: Sampled, loss: NegativeLoss, *, keeps: bool) -> NegativeRows:
    queries, count, width = operands.queries, operands.num_queries, len(operands.table)
    index = torch.empty(0, dtype=torch.int64, device=queries.device)
    if sampled.negatives is not None:
        width = 1 + sampled.negatives.shape[1]
        index = index.new_empty(count, width)
    masses, peaks = (queries.new_empty(count, dtype=torch.float32) for _ in range(2))
    reduced = loss.reduction != "none"
    value, scale = masses.new_empty(() if reduced else count), masses.new_empty(int(reduced))
    own = sampled.positive
    positive = masses.new_empty(count) if own is None else own.contiguous()
    raw = masses.new_empty(count if keeps else 0, width)
    return NegativeRows(value, positive, masses, peaks, scale, raw, index)


def _divisor(loss: NegativeLoss, made: NegativeRows, num_negatives: int) -> tuple[float, bool]:
    count = len(made.masses)
    if loss.reduction != "mean":
        return 1.0, False
    if loss.formula == "nssa":
        return (float(count), False) if loss.weights is None else (0.0, True)
    own = float(count if loss.formula == "logistic" else 0)
    return (own + count * num_negatives, False) if loss.mask is None else (own, True)


def _given(loss: NegativeLoss, made: NegativeRows) -> RowInputs:
    mask, row, step = None, 0, 0
    if loss.mask is not None:
        mask = loss.mask.view(torch.uint8)
        row, step = mask.stride()
    positive = made.positive if loss.formula == "margin" else None
    return RowInputs(positive, mask, row, step, float(loss.parameter), first=0, row=0)


def _kept(made: NegativeRows, loss: NegativeLoss) -> ForwardState:
    return ForwardState(
        made.raw if made.raw.numel() else None,
        made.raw.shape[1],
        made.positive,
        made.peaks,
        made.masses,
        made.scale if made.scale.numel() else None,
        None if loss.weights is None else loss.weights.contiguous(),
    )


def _formula(loss: NegativeLoss, *, has_slopes: bool = False) -> TileLoss:
    return TileLoss(is_softmax=False, has_sums=True, has_slopes=has_slopes, formula=loss.formula)


def _chunks(operands: Operands, tiles: LossTiles) -> Iterator[slice]:
    for first in range(0, len(operands.table), tiles.width):
        yield slice(first, min(first + tiles.width, len(operands.table)))


def _sweep_pool(
    operands: Operands, given: RowInputs, loss: NegativeLoss, raw: Tensor | None, arch: int
) -> Tensor:
    """Sum rows over each tile of a pool, ``[tiles, PARTS, B]``."""
    tiles = tiles_of(operands, arch, _FORWARD)
    chunks = list(_chunks(operands, tiles))
    counts = [-(-(chunk.stop - chunk.start) // tiles.tile.lanes) for chunk in chunks]
    sums = operands.queries.new_empty(sum(counts), PARTS, operands.num_queries, dtype=torch.float32)
    made = _formula(loss, has_slopes=raw is not None)
    first = 0
    for chunk, count in zip(chunks, counts, strict=True):
        part = None if raw is None else raw[:, chunk]
        row = 0 if raw is None else raw.stride(0)
        result = TileResults(sums[first:], None, part, row, None)
        tiles.score(chunk, given._replace(first=chunk.start), result, made)
        first += count
    return sums


def _gather_lists(
    operands: Operands, sampled: Sampled, given: RowInputs, loss: NegativeLoss, made: NegativeRows
) -> Tensor:
    """Sum rows over each stripe of lists; write scores of positives and the whole index."""
    assert sampled.targets is not None
    assert sampled.negatives is not None
    count, width = sampled.negatives.shape
    pairs = STRIPE_PAIRS * -(-width // (STRIPE_PAIRS * configs.MAX_GRID))
    stripes = -(-width // pairs)
    sums = made.masses.new_empty(stripes, PARTS, count)
    launcher.launch(
        device.gather_negatives,
        (count, stripes),
        {
            "views": views_of(operands),
            "lists": device.RowLists(
                vector_of(sampled.targets),
                plane_of(sampled.negatives),
                made.ids,
                operands.candidates.num_rows,
                pairs,
            ),
            "given": given._replace(positive=None),
            "kept": _kept(made, loss)._replace(sums=sums),
            "num_negatives": width,
            "num_features": operands.num_features,
            "VARIANT": Variant(
                form_of(operands), TileShape(GATHER_PAIRS, GATHER_FEATURES), _formula(loss)
            ),
        },
        num_warps=4,
    )
    return sums


def _slopes(
    operands: Operands,
    loss: NegativeLoss,
    made: NegativeRows,
    grad: Tensor,
    *,
    bias: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradient of scores, over roots; for a pool also of biases and positives."""
    count, width = made.raw.shape
    is_listed, whole_bias = bool(made.ids.numel()), operands.candidates.whole_bias
    row = width if is_listed else -(-width // 16) * 16
    slopes = made.raw.new_empty(count, row)
    blocks = -(-count // SLOPE_TILE.rows)
    sums = made.raw.new_empty(blocks, width) if bias else None
    of_positive = made.raw.new_empty(0 if is_listed else count)
    launcher.launch(
        device.negative_slopes,
        (-(-width // SLOPE_TILE.lanes), blocks),
        {
            "kept": _kept(made, loss),
            "given": _given(loss, made),
            "slopes": device.ScoreGradients(
                slopes,
                row,
                sums,
                vector_of(grad.expand(count)),
                None if is_listed else of_positive,
                None if whole_bias is None else vector_of(whole_bias),
                made.ids if is_listed else None,
            ),
            "num_queries": count,
            "num_columns": width,
            "VARIANT": Variant(form_of(operands), SLOPE_TILE, _formula(loss)),
        },
        num_warps=4,
    )
    return slopes[:, :width], None if sums is None else sums.sum(0), of_positive


NEGATIVES: NegativeLosses = FusedNegatives()

"""Losses of sampled negatives on a GPU: scores, then rows of scores, and slopes from these.

Forward, scores of a pool are those of all pairs (pairwise.py), and scores of lists are gathered
(indexed.py). One launch makes losses of rows. Backward, one launch turns the scores into slopes,
which are pulled into gradients like those of pairwise and indexed scores. No operator of torch sees
a ``[B, K]``.

Memory: scores ``[B, K]``, and slopes of that size in the backward; the memory of a pull.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..operands import NamedRows, Need, Operands
from ..sampled import Formula, NegativeGradients, NegativeLoss, NegativeRows, Sampled
from .device import negatives as device
from .device.arguments import TileShape
from .device.gather import ListedRows
from .host import launch as launcher
from .indexed import fill_indexed, indexed_gradients
from .pairwise import all_gradients, fill_scores

ROW_NUMBERS, ROW_COLUMNS = 1024, 256  # numbers of a program of rows, and most columns at a time
ROW_REGISTERS = 160  # with fewer, lists spill; uncapped, ptxas spills scalars
SLOPE_TILE = TileShape(8, 128)


class FusedNegatives:
    """Fused negatives; the contract is :class:`kgfast.kernels.cpu.negatives.AdversarialLosses`."""

    def fuses(self, formula: Formula, *, has_mask: bool) -> bool:
        """Return whether this class takes a loss: every formula, with or without a mask."""
        return True

    def value(
        self,
        operands: Operands,
        sampled: Sampled,
        loss: NegativeLoss,
        *,
        check: Callable[[], None] | None,
    ) -> NegativeRows:
        """Compute the rows; wait once, if there is a check."""
        queries, count, reduced = operands.queries, operands.num_queries, loss.reduction != "none"
        with launcher.serving(operands.table.device) as arch:
            index = torch.empty(0, dtype=torch.int64, device=queries.device)
            width, targets, negatives = operands.candidates.num_rows, sampled.targets, None
            if targets is not None and (negatives := sampled.negatives) is not None:
                width = 1 + negatives.shape[1]
                index = index.new_empty(count, width)
            columns = min(ROW_COLUMNS, 1 << (width - 1).bit_length())
            tile = TileShape(ROW_NUMBERS // columns, columns)
            programs = -(-count // tile.rows)
            # programs that finished; 1 if an id was clamped; 1 if a program met an error
            words = index.new_zeros(2 + programs)
            masses, peaks, given = (queries.new_empty(count, dtype=torch.float32) for _ in range(3))
            made = NegativeRows(
                masses.new_empty(() if reduced else count),
                given if sampled.positive is None else sampled.positive.contiguous(),
                masses,
                peaks,
                masses.new_empty(int(reduced)),
                masses.new_empty(count, width),
                index,
            )
            scored = operands.without_bias()
            if targets is None or negatives is None:
                fill_scores(made.raw[None], scored, arch)
            else:
                facts = index, len(operands.table), words[1:]
                listed = ListedRows(targets, targets.stride(0), *facts)
                fill_indexed(made.raw[None], scored, negatives, arch, listed)
            base, counts = _divisor(loss, count, width - len(index[:1]))
            launcher.launch(
                device.negative_rows,
                (programs,),
                {
                    "scores": _scores(operands, loss, made),
                    "ends": device.Ends(
                        made.loss,
                        masses.new_empty(2, programs, dtype=torch.float64) if reduced else None,
                        words,
                        words[2:],
                        base,
                    ),
                    "num_queries": count,
                    "num_columns": width,
                    "COUNTS": counts,
                    "FORMULA": loss.formula,
                    "TILE": tile,
                },
                num_warps=4,
                **launcher.capped(ROW_REGISTERS, arch),
            )
        if check is not None and any(words[1:].cpu().tolist()):
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
        (count, width), is_listed = made.raw.shape, bool(made.ids.numel())
        row = width if is_listed else -(-width // 16) * 16
        slopes = made.raw.new_empty(count, row)  # by the scores, over roots
        blocks = -(-count // SLOPE_TILE.rows)
        of_bias = made.raw.new_empty(blocks, width) if bias else None
        of_positive = made.raw.new_empty(0 if is_listed else count)
        grad = grad.expand(count)
        with launcher.serving(operands.table.device):
            launcher.launch(
                device.negative_slopes,
                (-(-width // SLOPE_TILE.lanes) * blocks,),
                {
                    "scores": _scores(operands, loss, made),
                    "slopes": device.ScoreGradients(
                        *(slopes, row, of_bias, grad, grad.stride(0)),
                        None if is_listed else of_positive,
                    ),
                    "num_queries": count,
                    "num_columns": width,
                    "IS_ROOT": operands.score.root,
                    "FORMULA": loss.formula,
                    "TILE": SLOPE_TILE,
                },
                num_warps=4,
            )
            of_bias, slopes = None if of_bias is None else of_bias.sum(0), slopes[:, :width]
            if is_listed:
                lists = operands, slopes, made.ids, need
                pulled = indexed_gradients(*lists, rows_only=rows is not None, over_roots=True)
            else:
                pulled = all_gradients(operands, slopes, need, over_roots=True)
        return NegativeGradients(pulled, of_bias, of_positive)


def _divisor(loss: NegativeLoss, count: int, num_negatives: int) -> tuple[float, bool]:
    """Return the known part of the divisor, and whether the device counts the rest."""
    if loss.reduction != "mean":
        return 1.0, False
    if loss.formula == "nssa":
        return (float(count), False) if loss.weights is None else (0.0, True)
    own = float(count if loss.formula == "logistic" else 0)
    return (own + count * num_negatives, False) if loss.mask is None else (own, True)


def _scores(operands: Operands, loss: NegativeLoss, made: NegativeRows) -> device.RowScores:
    bias, mask = operands.candidates.whole_bias, None
    if loss.mask is not None:
        mask = loss.mask.view(torch.uint8)
    return device.RowScores(
        made.raw,
        made.raw.shape[1],
        bias,
        0 if bias is None else bias.stride(0),
        made.ids if made.ids.numel() else None,
        mask,
        0 if mask is None else mask.stride(0),
        0 if mask is None else mask.stride(1),
        float(loss.parameter),
        made.positive.contiguous(),
        made.peaks,
        made.masses,
        made.scale if made.scale.numel() else None,
        None if loss.weights is None else loss.weights.contiguous(),
    )

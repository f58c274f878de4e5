"""Draws from the softmax of all outputs, streamed: Gumbel-max over blocks, then within one.

The highest of ``x_j + g_j``, with standard Gumbel noise, is a draw from ``softmax(x)``. The highest
of a block is distributed as ``logsumexp(block) + g`` (Maddison et al. 2014, "A* sampling"). So one
noise per block draws the block, and the noises of that block draw the output. The distribution is
equal, with one logarithm per block instead of two per output. Blocks hold ``WIDTH`` candidates in
the order of their ids, so a draw depends neither on the cut of rows nor on the order of
``candidate_ids``.

Cost model: a sweep of all scores with one exponential each, then ``WIDTH`` scores and noises per
row. Memory: two scratches of ``_SCRATCH`` scores and some of their size, O(rows).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast import ops
from kgfast.ops import result_dtype, run
from kgfast.rng import GOLDEN, DrawStream, mix, scrambled, shifted, signed

WIDTH = 1024  # candidates of a block
_SCRATCH = 1 << 20  # scores at once
_STEP = signed(GOLDEN)


@dataclass(frozen=True)
class Outputs:
    """The outputs to draw from."""

    weight: Tensor  # [V, D]
    bias: Tensor | None  # [V]
    ids: Tensor | None  # int64 [M], ascending; None: all

    def __len__(self) -> int:
        return len(self.weight if self.ids is None else self.ids)

    def block(self, first: int) -> "Outputs":
        """Return the outputs of the block that begins at a place, as a separate table."""
        part = slice(first, min(first + WIDTH, len(self)))
        chosen = part if self.ids is None else self.ids[part]
        bias = None if self.bias is None else self.bias[chosen]
        return Outputs(self.weight[chosen], bias, None)

    def at(self, places: Tensor) -> Tensor:
        """Return the ids of places."""
        return places if self.ids is None else self.ids[places]


def draw(hidden: Tensor, outputs: Outputs, temperature: float, seed: int) -> Tensor:
    """Draw one output for each row of ``hidden [B, D]`` from ``softmax(scores / temperature)``."""
    drawn = hidden.new_empty(len(hidden), dtype=torch.int64)
    step = max(1, _SCRATCH // min(WIDTH, max(1, len(outputs))))
    with ops.cores_for_kernels(hidden.device):  # no torch operator here is large
        for first in range(0, len(hidden), step):
            part = hidden[first : first + step]
            rows = torch.arange(first, first + len(part), dtype=torch.int64, device=hidden.device)
            blocks = _blocks(part, rows, outputs, temperature, mix(seed, DrawStream.BLOCKS))
            drawn[first : first + step] = _within(
                part, rows, outputs, blocks, (temperature, mix(seed, DrawStream.WITHIN))
            )
    return drawn


def draw_of(scores: Tensor, ids: Tensor, temperature: float, seed: int, first: int = 0) -> Tensor:
    """Draw one of the outputs ``ids [B, k]`` of each row, by scores; ``first`` numbers the rows."""
    rows = torch.arange(first, first + len(scores), dtype=torch.int64, device=scores.device)
    scaled = (scores.double() - scores[:, :1].double()) / temperature
    noise = gumbel(mix(seed, DrawStream.WITHIN), rows[:, None], ids)
    best = (scaled + noise).argmax(1, keepdim=True)
    return ids.gather(1, best)[:, 0]


def _blocks(
    hidden: Tensor, rows: Tensor, outputs: Outputs, temperature: float, seed: int
) -> Tensor:
    """Draw a block for each row and return the block's first place, int64 ``[B]``."""
    chosen = torch.zeros_like(rows)
    if len(outputs) <= WIDTH:
        return chosen
    scaled = hidden.to(result_dtype(hidden)) / temperature
    anything = torch.zeros_like(rows)
    loss = run.CrossEntropy(anything, 0.0)
    highest = torch.full(rows.shape, -torch.inf, dtype=torch.float64, device=rows.device)
    for first in range(0, len(outputs), WIDTH):
        block = outputs.block(first)
        bias = None if block.bias is None else block.bias / temperature
        operands = run.operands_of(scaled, block.weight, "dot", bias)
        total = run.loss_value(operands, loss).logsumexp
        assert total is not None
        total += gumbel(seed, rows, anything + first // WIDTH)
        is_better = total > highest
        highest = torch.where(is_better, total, highest)
        chosen.masked_fill_(is_better, first)
    return chosen


def _within(
    hidden: Tensor, rows: Tensor, outputs: Outputs, blocks: Tensor, law: tuple[float, int]
) -> Tensor:
    temperature, seed = law
    drawn = torch.empty_like(rows)
    width = min(WIDTH, len(outputs))
    step = max(1, _SCRATCH // 8 // width)  # noise and its bits are wider than scores
    offsets = torch.arange(width, dtype=torch.int64, device=rows.device)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        places = blocks[part, None] + offsets  # [b, width]
        is_there = places < len(outputs)
        ids = outputs.at(places.clamp_(max=len(outputs) - 1))
        scores = ops.indexed_scores(hidden[part], outputs.weight, ids, "dot", bias=outputs.bias)
        scores = scores.double().div_(temperature)
        scores += gumbel(seed, rows[part, None], ids)
        best = scores.masked_fill_(~is_there, -torch.inf).argmax(1, keepdim=True)
        drawn[part] = ids.gather(1, best)[:, 0]
    return drawn


def gumbel(seed: int, rows: Tensor, ids: Tensor) -> Tensor:
    """Return standard Gumbel noise of pairs, float64, for int64 rows and ids that broadcast.

    The noise is ``-log(-log u)`` with ``u`` uniform in the middles of ``2**53`` intervals of ``(0,
    1)``, so it is always finite. Each row has a stream of splitmix64 (Steele et al. 2014) with the
    id of the output as counter. So noise has no state, and depends neither on the device nor on the
    cut into rows and outputs.

    >>> import torch
    >>> rows, ids = torch.arange(2)[:, None], torch.arange(3)
    >>> noise = gumbel(0, rows, ids)
    >>> noise.shape, bool((noise[1:, 2:] == gumbel(0, rows[1:], ids[2:])).all())
    (torch.Size([2, 3]), True)
    """
    keys = scrambled(rows * _STEP + mix(seed))
    bits = scrambled((ids + 1) * _STEP + keys)
    uniform = shifted(bits, 11).double().add_(0.5).mul_(2.0**-53)
    return uniform.log_().neg_().log_().neg_()


class DrawnOutputs(NamedTuple):
    """Outputs, and corrections of scores."""

    ids: Tensor  # int64 [M], ascending
    # float32 [M], added to scores: log of the number of outputs that a draw stands for
    shift: Tensor


def drawn_outputs(targets: Tensor, num_outputs: int, num_negatives: int, seed: int) -> DrawnOutputs:
    """Return the distinct targets, and ``num_negatives`` uniform draws of other outputs.

    With ``T`` distinct targets and ``K`` distinct draws that are no target, a draw stands for ``(V
    - T) / K`` outputs, so that the sum of ``exp(score + shift)`` is an unbiased estimate of the sum
    over all ``V``, given that a draw is left. If ``num_negatives`` is at least ``V - T``, all
    outputs are compared.
    """
    hit = targets.unique()
    others = num_outputs - len(hit)
    if num_negatives >= others:
        ids = torch.arange(num_outputs, dtype=torch.int64, device=targets.device)
        return DrawnOutputs(
            ids, torch.zeros(num_outputs, dtype=torch.float32, device=targets.device)
        )
    generator = torch.Generator(targets.device).manual_seed(mix(seed))
    draws = torch.randint(
        num_outputs,
        (num_negatives,),
        generator=generator,
        dtype=torch.int64,
        device=targets.device,
    )
    ids = torch.cat([hit, draws]).unique()
    left = len(ids) - len(hit)
    each = math.log(others / left) if left else 0.0
    shift = torch.full(ids.shape, each, dtype=torch.float32, device=ids.device)
    shift[torch.searchsorted(ids, hit)] = 0.0
    return DrawnOutputs(ids, shift)

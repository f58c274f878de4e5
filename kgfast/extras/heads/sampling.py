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
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast import ops
from kgfast.ops import result_dtype, run
from kgfast.rng import GOLDEN, DrawStream, mix, scrambled, shifted, signed

WIDTH = 1024  # candidates of a block
_SCRATCH = 1 << 20  # scores at once
_STEP = signed(GOLDEN)


class Outputs(NamedTuple):
    """The outputs to draw from."""

    weight: Tensor  # [V, D]
    bias: Tensor | None  # [V]
    ids: Tensor | None  # int64 [M], ascending; None: all

    @property
    def num_outputs(self) -> int:
        return len(self.weight if self.ids is None else self.ids)


def draw(hidden: Tensor, outputs: Outputs, temperature: float, seed: int) -> Tensor:
    """Draw one output for each row of ``hidden [B, D]`` from ``softmax(scores / temperature)``."""
    drawn = hidden.new_empty(len(hidden), dtype=torch.int64)
    step = max(1, _SCRATCH // min(WIDTH, outputs.num_outputs))
    with ops.cores_for_kernels(hidden.device):  # no torch operator here is large
        for first in range(0, len(hidden), step):
            rows = hidden[first : first + step]
            blocks = _blocks(rows, first, outputs, temperature, mix(seed, DrawStream.BLOCKS))
            # Noise and its bits are wider than scores.
            for start in range(0, len(rows), -(-step // 8)):
                some = slice(start, start + -(-step // 8))
                drawn[first + start :][: len(rows[some])] = _within(
                    rows[some], first + start, outputs, blocks[some], temperature, seed
                )
    return drawn


def draw_of(scores: Tensor, ids: Tensor, temperature: float, seed: int, first: int = 0) -> Tensor:
    """Draw one of the outputs ``ids [B, k]`` of each row, by scores; ``first`` numbers the rows."""
    scaled = (scores.double() - scores[:, :1].double()) / temperature
    noise = gumbel(mix(seed, DrawStream.WITHIN), _numbers(ids, first)[:, None], ids)
    return ids.gather(1, (scaled + noise).argmax(1, keepdim=True))[:, 0]


def _numbers(rows: Tensor, first: int) -> Tensor:
    return torch.arange(first, first + len(rows), dtype=torch.int64, device=rows.device)


def _blocks(
    hidden: Tensor, first_row: int, outputs: Outputs, temperature: float, seed: int
) -> Tensor:
    """Draw a block for each row and return the block's first place, int64 ``[B]``."""
    rows = _numbers(hidden, first_row)
    chosen, zeros = torch.zeros_like(rows), torch.zeros_like(rows)
    if outputs.num_outputs <= WIDTH:
        return chosen
    scaled, loss = hidden.to(result_dtype(hidden)) / temperature, run.CrossEntropy(zeros, 0.0)
    highest = torch.full(rows.shape, -torch.inf, dtype=torch.float64, device=rows.device)
    for first in range(0, outputs.num_outputs, WIDTH):
        block: slice | Tensor = slice(first, first + WIDTH)
        block = block if outputs.ids is None else outputs.ids[block]
        bias = None if outputs.bias is None else outputs.bias[block].to(scaled.dtype) / temperature
        operands = run.operands_of(scaled, outputs.weight[block], "dot", bias)
        total = run.loss_value(operands, loss).logsumexp
        assert total is not None
        total += gumbel(seed, rows, zeros + first // WIDTH)
        is_better = total > highest
        highest = torch.where(is_better, total, highest)
        chosen.masked_fill_(is_better, first)
    return chosen


def _within(
    hidden: Tensor, first: int, outputs: Outputs, blocks: Tensor, temperature: float, seed: int
) -> Tensor:
    """Draw an output of the block of each row."""
    width = min(WIDTH, outputs.num_outputs)
    places = blocks[:, None] + torch.arange(width, dtype=torch.int64, device=blocks.device)
    is_missing = places >= outputs.num_outputs
    places.clamp_(max=outputs.num_outputs - 1)
    ids = places if outputs.ids is None else outputs.ids[places]
    scores = ops.indexed_scores(hidden, outputs.weight, ids, "dot", bias=outputs.bias)
    scores = scores.double().div_(temperature)
    scores += gumbel(mix(seed, DrawStream.WITHIN), _numbers(ids, first)[:, None], ids)
    best = scores.masked_fill_(is_missing, -torch.inf).argmax(1, keepdim=True)
    return ids.gather(1, best)[:, 0]


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


def drawn_outputs(
    targets: Tensor, num_outputs: int, num_negatives: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the distinct targets with uniform draws of other outputs, and corrections of scores.

    Ids are int64 ``[M]``, ascending; corrections are float32 ``[M]``, the logarithm of the number
    of outputs that a draw stands for. With ``T`` distinct targets and ``K`` distinct draws that are
    no target, a draw stands for ``(V - T) / K`` outputs, so that the sum of ``exp(score + shift)``
    is an unbiased estimate of the sum over all ``V``, given that a draw is left. If
    ``num_negatives`` is at least ``V - T``, all outputs are compared.
    """
    hit, device = targets.unique(), targets.device
    others = num_outputs - len(hit)
    if num_negatives >= others:
        ids = torch.arange(num_outputs, dtype=torch.int64, device=device)
        return ids, torch.zeros(num_outputs, dtype=torch.float32, device=device)
    generator, shape = torch.Generator(device).manual_seed(mix(seed)), (num_negatives,)
    draws = torch.randint(num_outputs, shape, generator=generator, dtype=torch.int64, device=device)
    ids = torch.cat([hit, draws]).unique()
    left = len(ids) - len(hit)
    each = math.log(others / left) if left else 0.0
    shift = torch.full(ids.shape, each, dtype=torch.float32, device=device)
    shift[torch.searchsorted(ids, hit)] = 0.0
    return ids, shift

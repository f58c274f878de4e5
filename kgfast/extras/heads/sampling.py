"""Draws from the softmax of all outputs, streamed: Gumbel-max over blocks, then within one.

The highest of ``x_j + g_j``, with standard Gumbel noise, is a draw from ``softmax(x)``. The highest
of a block is distributed as ``logsumexp(block) + g`` (Maddison et al. 2014, "A* sampling"), so a
block is drawn by one noise each, and an output by the noises of that block alone: the same
distribution, with one logarithm a block instead of two an output. Blocks hold ``WIDTH`` candidates
in the order of their ids, so that a draw depends neither on how rows are cut nor on the order of
``candidate_ids``.

Cost model: a sweep of all scores and one exponential each, then ``WIDTH`` scores and noises a row.
Memory: two scratches of ``_SCRATCH`` scores and some of their size, O(rows).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kgfast import ops
from kgfast.extras.heads.noise import gumbel
from kgfast.ops import result_dtype, run
from kgfast.rng import DrawStream, mix

WIDTH = 1024  # candidates of a block
_SCRATCH = 1 << 20  # scores at once


@dataclass(frozen=True)
class Outputs:
    """What is drawn from.

    Attributes
    ----------
    weight : Tensor
        ``[V, D]``.
    bias : Tensor or None
        ``[V]``.
    ids : Tensor or None
        int64 ``[M]``, ascending: only these; all by default.
    """

    weight: Tensor
    bias: Tensor | None
    ids: Tensor | None

    def __len__(self) -> int:
        return len(self.weight if self.ids is None else self.ids)

    def block(self, first: int) -> "Outputs":
        """Those of the block that begins with a place, as a table of their own."""
        part = slice(first, min(first + WIDTH, len(self)))
        chosen = part if self.ids is None else self.ids[part]
        bias = None if self.bias is None else self.bias[chosen]
        return Outputs(self.weight[chosen], bias, None)

    def at(self, places: Tensor) -> Tensor:
        """The ids of places."""
        return places if self.ids is None else self.ids[places]


def draw(hidden: Tensor, outputs: Outputs, temperature: float, seed: int) -> Tensor:
    """One output of each row, from ``softmax(scores / temperature)``.

    Parameters
    ----------
    hidden : Tensor
        ``[B, D]``.
    outputs : Outputs
    temperature : float
        As of :meth:`kgfast.extras.heads.StreamedHead.sample`.
    seed : int

    Returns
    -------
    Tensor
        int64 ``[B]``.
    """
    with ops.cores_for_kernels(hidden.device):
        return _drawn(hidden, outputs, temperature, seed)


def _drawn(hidden: Tensor, outputs: Outputs, temperature: float, seed: int) -> Tensor:
    """As :func:`draw`; no operator of torch is large here, kernels have the cores."""
    drawn = hidden.new_empty(len(hidden), dtype=torch.int64)
    step = max(1, _SCRATCH // min(WIDTH, max(1, len(outputs))))
    for first in range(0, len(hidden), step):
        part = hidden[first : first + step]
        rows = torch.arange(first, first + len(part), dtype=torch.int64, device=hidden.device)
        blocks = _blocks(part, rows, outputs, temperature, mix(seed, DrawStream.BLOCKS))
        drawn[first : first + step] = _within(
            part, rows, outputs, blocks, (temperature, mix(seed, DrawStream.WITHIN))
        )
    return drawn


def draw_of(scores: Tensor, ids: Tensor, temperature: float, seed: int, first: int = 0) -> Tensor:
    """One of the outputs of each row whose scores ``[B, k]`` are at hand; ``first`` row's number.

    Parameters
    ----------
    scores, ids : Tensor
        ``[B, k]`` floating point and int64.
    temperature : float
        As of :meth:`kgfast.extras.heads.StreamedHead.sample`.
    seed, first : int

    Returns
    -------
    Tensor
        int64 ``[B]``.
    """
    rows = torch.arange(first, first + len(scores), dtype=torch.int64, device=scores.device)
    scaled = (scores.double() - scores[:, :1].double()) / temperature
    noise = gumbel(mix(seed, DrawStream.WITHIN), rows[:, None], ids)
    best = (scaled + noise).argmax(1, keepdim=True)
    return ids.gather(1, best)[:, 0]


def _blocks(
    hidden: Tensor, rows: Tensor, outputs: Outputs, temperature: float, seed: int
) -> Tensor:
    """The first place of the block that each row draws, int64 ``[B]``."""
    chosen = torch.zeros_like(rows)
    if len(outputs) <= WIDTH:
        return chosen
    scaled = hidden.to(result_dtype(hidden)) / temperature
    anything = torch.zeros_like(rows)
    highest = torch.full(rows.shape, -torch.inf, dtype=torch.float64, device=rows.device)
    for first in range(0, len(outputs), WIDTH):
        block = outputs.block(first)
        bias = None if block.bias is None else block.bias / temperature
        operands = run.operands_of(scaled, block.weight, "dot", bias)
        total = run.cross_entropy(operands, anything, 0.0).logsumexp
        total += gumbel(seed, rows, anything + first // WIDTH)
        is_better = total > highest
        highest = torch.where(is_better, total, highest)
        chosen.masked_fill_(is_better, first)
    return chosen


def _within(
    hidden: Tensor, rows: Tensor, outputs: Outputs, blocks: Tensor, law: tuple[float, int]
) -> Tensor:
    """The output that each row draws of its block."""
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

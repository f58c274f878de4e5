"""Losses over all candidates with products of bf16 numbers, each one call of the extension.

Scores, slopes and both gradients come from one walk over blocks of candidates. No scores are
stored, since computing scores again is faster than memory.

Cost model: engine/bf16_loss.h. Memory beyond operands and results: 16 MiB of parts of the queries'
gradient, 4 bytes per number of 1,024 queries, and about 1 MiB per thread.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..backend import Into
from ..labels import (
    Ahead,
    BceRows,
    CrossEntropyBackward,
    CrossEntropyRows,
    Labels,
    LossGradients,
    LossNeed,
)
from ..losses import ChunkedLosses, SoftmaxFactors, softmax_rows
from ..operands import Operands
from ..positives import Positives
from ..sweeps import GradientSums
from . import extension, isa
from .passes import LossPass
from .views import address, machine, pointers_of, query_view, table_view

_QUERIES = 1024  # queries at a time: with more, their gradient has too few parts for many threads


def is_available() -> bool:
    """Return whether this machine and build have such products beside the instruction set."""
    return extension.has_bf16(isa())


class Bf16Losses(ChunkedLosses):
    """Losses of ``dot`` for float32 queries; see :class:`kgfast.kernels.backend.Losses`."""

    def _bce(
        self,
        operands: Operands,
        labels: Labels,
        grad_rows: Tensor | None,
        need: LossNeed,
        *,
        has_rows: bool = True,
    ) -> tuple[BceRows, LossGradients]:
        walk = LossPass.SOFTPLUS_SUMS if grad_rows is None else LossPass.SIGMOID_SLOPES
        if has_rows and grad_rows is not None:
            walk = LossPass.SOFTPLUS_SUMS_SIGMOID_SLOPES
        rows, linear = operands.queries.new_zeros((2, operands.num_queries), dtype=torch.float64)
        gradients = GradientSums(self._backend, operands, need)
        for part in _blocks(operands):
            queries = operands.of_queries(part)
            positives = Positives.of_labels(labels.of_queries(part), operands.candidates.num_rows)
            factors = _NO_FACTORS
            if grad_rows is not None:
                scale = grad_rows[part].float()
                factors = _LossFactors(scale=scale, hit=labels.a * scale)
            sums = _sweep(walk, queries, positives, factors, labels.c, (gradients, part))
            rows[part] = sums.terms - labels.a * positives.sum_by_query(sums.picked)
            if labels.c:
                rows[part] -= labels.c * sums.linear
            linear[part] = sums.linear
        return BceRows(rows.float(), linear), gradients.finished()

    def _cross_entropy(
        self,
        operands: Operands,
        targets: Tensor,
        label_smoothing: float,
        keep: bool,
        ahead: Ahead | None,
    ) -> CrossEntropyRows:
        count = operands.num_queries
        rows, linear, logsumexp = operands.queries.new_zeros((3, count), dtype=torch.float64)
        share = label_smoothing / max(1, operands.candidates.num_rows)
        for part in _blocks(operands):
            positives = Positives.of_targets(targets[part])
            sums = _sweep(LossPass.EXP_SUMS, operands.of_queries(part), positives)
            logsumexp[part] = sums.peaks + sums.terms.log()
            linear[part] = sums.linear
            picked = (1 - label_smoothing) * sums.picked.double()
            rows[part] = softmax_rows(logsumexp[part], picked, sums.linear, share)
        return CrossEntropyRows(rows.float(), linear, logsumexp)

    def _cross_entropy_gradients(
        self, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
    ) -> LossGradients:
        smoothing = made_of.label_smoothing
        share = smoothing / max(1, operands.candidates.num_rows)
        gradients = GradientSums(self._backend, operands, need)
        for part in _blocks(operands):
            positives = Positives.of_targets(made_of.targets[part])
            of_rows = made_of.logsumexp[part], made_of.grad_rows[part]
            factors = _LossFactors(*SoftmaxFactors.of(*of_rows, smoothing, share, torch.float32))
            queries = operands.of_queries(part)
            _sweep(LossPass.SOFTMAX_SLOPES, queries, positives, factors, 0.0, (gradients, part))
        return gradients.finished()


class _LossFactors(NamedTuple):
    """Float32 numbers of each row: factors of slopes, and the amount to subtract at a positive."""

    near: Tensor | None = None
    scale: Tensor | None = None
    share: Tensor | None = None
    hit: Tensor | None = None


class _Sums(NamedTuple):
    """Sums of each row, float64, and the score of each positive."""

    peaks: Tensor  # [B] the highest scores, for exponentials
    terms: Tensor  # [B] sums of exp(x - peak) or softplus(x)
    linear: Tensor  # [B] sums of scores
    picked: Tensor  # [P]


_NO_FACTORS = _LossFactors()


def _blocks(operands: Operands) -> Iterator[slice]:
    """Cut queries into blocks that are swept together; only float32 gradients add up."""
    count, in_blocks = operands.num_queries, operands.table.dtype == torch.float32
    step = _QUERIES if in_blocks else max(1, count)
    for first in range(0, count if operands.candidates.num_rows else 0, step):
        yield slice(first, min(first + step, count))


def _sweep(
    walk: LossPass,
    operands: Operands,
    positives: Positives,
    factors: _LossFactors = _NO_FACTORS,
    constant: float = 0.0,
    gradients: tuple[GradientSums, slice] | None = None,
) -> _Sums:
    """Walk once; ``gradients`` are the tensors for a block of queries, and the block."""
    queries, into, bias = operands.queries, Into(None, None), None
    if gradients is not None:
        into, bias = gradients[0].into(gradients[1], slice(None)), gradients[0].bias
    sums = queries.new_zeros((3, len(queries)), dtype=torch.float64)
    picked = queries.new_zeros(len(positives.queries), dtype=torch.float32)
    extension.bf16_loss(
        machine(),
        walk,
        pointers_of(operands, operands.candidates.float_bias),
        operands.num_features,
        (
            address(positives.queries),
            address(positives.ids),
            len(picked),
            address(picked),
            address(factors.hit),
        ),
        [address(row) for row in sums],
        [address(row) for row in factors[:3]],
        constant,
        (
            None if into.queries is None else query_view(into.queries, operands),
            None if into.table is None else table_view(into.table, operands.score),
            address(bias),
            into.adds_to_table,
        ),
    )
    peaks, terms, linear = sums
    return _Sums(peaks, terms, linear, picked)

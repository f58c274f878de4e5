"""Backends called with the flat arguments of the operators: nothing is checked first."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.above import above, lowest_scores
from kgfast.kernels.backend import Backend
from kgfast.kernels.checks import Checks
from kgfast.kernels.labels import Bce, CrossEntropy, LossNeed, LossRows
from kgfast.kernels.operands import Gradients, Known, NamedRows, Need, Operands, Prepared
from kgfast.kernels.reference.canonical import canonical_scores as canonical
from kgfast.kernels.scores import get_score
from kgfast.ops.dispatch import get_backend

ALL = True, True, True


def without_repeats(gradients: Gradients) -> Gradients:
    """Drop rows whose id has a row before, which are to be zeros."""
    if gradients.ids is None or not gradients.repeats:
        return gradients
    ids, is_first = gradients.ids, torch.ones_like(gradients.ids, dtype=torch.bool)
    is_first[1:] = ids[1:] != ids[:-1]
    assert bool((ids[1:] >= ids[:-1]).all())
    rows = gradients.table, gradients.factor
    assert all(it is None or not it[~is_first].any() for it in rows)
    table, factor = (None if it is None else it[is_first] for it in rows)
    return Gradients(gradients.queries, table, factor, ids[is_first])


def operands_of(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
) -> Operands:
    """Make the operands of an operator's arguments."""
    prepared = Prepared(table, get_score(score), bias, factor, candidate_ids)
    return Operands(queries, prepared, None if dims is None else tuple(dims))


def canonical_scores(
    queries: Tensor,
    rows: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Compute scores by the reference, by the name of the score."""
    return canonical(queries, rows, get_score(score), bias, factor)


class Flat:
    """A backend by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def backend(self) -> Backend:
        return get_backend(self.name)

    def operands(self, *args: Any, **options: Any) -> Operands:
        """Make the operands of an operator's arguments; a subclass may pack them."""
        return operands_of(*args, **options)

    def _asked(self, queries, table, score, nan_worst=False, **options) -> tuple[Operands, Checks]:
        checks = Checks(deferred=self.backend.defers_checks, allows_nan=nan_worst)
        return self.operands(queries, table, score, **options), checks

    def rank_counts(
        self,
        queries,
        table,
        targets,
        indptr,
        indices,
        score,
        *,
        target_scores=None,
        lists=None,
        **options,
    ) -> tuple[Tensor, ...]:
        operands, checks = self._asked(queries, table, score, **options)
        known = Known(indptr, indices)
        return self.backend.rank_counts(operands, targets, known, checks, target_scores, lists)

    def topk(
        self, queries, table, k, indptr=None, indices=None, score="dot", lists=None, **options
    ) -> tuple[Tensor, Tensor]:
        operands, checks = self._asked(queries, table, score, **options)
        known = None if indptr is None else Known(indptr, indices)
        return self.backend.topk(operands, k, known, checks, lists)

    def above(
        self,
        queries,
        table,
        thresholds,
        indptr=None,
        indices=None,
        score="dot",
        *,
        dims=None,
        max_results=10_000_000,
        **options,
    ) -> tuple[Tensor, ...] | int:
        crops = None if dims is None else [dims]
        operands, checks = self._asked(queries, table, score, dims=crops, **options)
        known = None if indptr is None else Known(indptr, indices)
        lowest = lowest_scores(thresholds.double(), queries.dtype)
        return above(self.backend, operands, lowest, known, checks, max_results)

    def pairwise_scores(self, queries, table, score, *args, **options) -> Tensor:
        return self.backend.scores(self.operands(queries, table, score, *args, **options))

    def pairwise_backward(
        self, grad, queries, table, score, factor=None, dims=None, need=ALL
    ) -> tuple[Tensor | None, ...]:
        operands = self.operands(queries, table, score, None, factor, dims)
        gradients = self.backend.backward(operands, grad, need=Need(*need))
        return gradients.queries, gradients.table, gradients.factor

    def indexed_scores(self, queries, table, index, score, *args, **options) -> Tensor:
        return self.backend.scores(self.operands(queries, table, score, *args, **options), index)

    def indexed_backward(
        self, grad, queries, table, index, score, factor=None, dims=None, need=ALL
    ) -> tuple[Any, ...]:
        """Return the gradient of the queries, ids and rows of the table's, rows of the factor's."""
        operands = self.operands(queries, table, score, None, factor, dims)
        found = self.backend.backward(operands, grad, index, need=Need(*need), rows=NamedRows())
        found = without_repeats(found)
        rows = None if found.table is None else (found.ids, found.table)
        return found.queries, rows, found.factor

    def bce(self, queries, table, bias, *labels) -> tuple[Tensor, Tensor]:
        *labels, score = labels
        operands = self.operands(queries, table, score, bias)
        return self.backend.losses.value(operands, Bce(*labels))[:2]

    def bce_backward(self, grad, queries, table, bias, *labels, need=ALL) -> Any:
        *labels, score = labels
        operands = self.operands(queries, table, score, bias)
        return self.backend.losses.gradients(operands, Bce(*labels), grad, LossNeed(*need))

    def bce_total(self, queries, table, bias, *labels, divisor, need=ALL) -> tuple[Any, ...]:
        """Return the total, sums of scores, and the gradients."""
        *labels, score = labels
        operands = self.operands(queries, table, score, bias)
        given = operands, Bce(*labels), divisor, LossNeed(*need)
        return self.backend.losses.value_and_gradients(*given)

    def cross_entropy(
        self, queries, table, bias, targets, label_smoothing, score
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, their logsumexp, sums of scores."""
        operands = self.operands(queries, table, score, bias)
        made = self.backend.losses.value(operands, CrossEntropy(targets, label_smoothing))
        return made.rows, made.logsumexp, made.linear

    def cross_entropy_backward(
        self, grad, logsumexp, queries, table, bias, targets, label_smoothing, score, need=ALL
    ) -> Any:
        operands = self.operands(queries, table, score, bias)
        loss, made = CrossEntropy(targets, label_smoothing), LossRows(grad, logsumexp, logsumexp)
        return self.backend.losses.gradients(operands, loss, grad, LossNeed(*need), made)


reference, cpu, triton = Flat("reference"), Flat("cpu"), Flat("triton")

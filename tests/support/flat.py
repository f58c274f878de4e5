"""Backends called with the flat arguments of the operators: nothing is checked first."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from kgfast.kernels.backend import Backend
from kgfast.kernels.checks import Checks
from kgfast.kernels.labels import CrossEntropyBackward, Labels, LossNeed
from kgfast.kernels.operands import Gradients, Known, Lists, Need, Operands, Prepared
from kgfast.kernels.reference.canonical import canonical_scores as canonical
from kgfast.kernels.scores import get_score
from kgfast.ops.dispatch import get_backend


def operands_of(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
) -> Operands:
    """The operands of an operator's arguments."""
    prepared = Prepared(table, get_score(score), bias, factor, candidate_ids)
    return Operands(queries, prepared, None if dims is None else tuple(dims))


def canonical_scores(
    queries: Tensor,
    rows: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Those of the reference, by the name of the score."""
    return canonical(queries, rows, get_score(score), bias, factor)


class Flat:
    """A backend by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def backend(self) -> Backend:
        return get_backend(self.name)

    def operands(self, *args: Any, **options: Any) -> Operands:
        """Those of an operator's arguments."""
        return operands_of(*args, **options)

    def rank_counts(
        self,
        queries: Tensor,
        candidates: Tensor,
        targets: Tensor,
        exclude_indptr: Tensor,
        exclude_indices: Tensor,
        score: str,
        *,
        nan_worst: bool = False,
        target_scores: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        operands = self.operands(queries, candidates, score, **options)
        known = Known(exclude_indptr, exclude_indices)
        checks = Checks(deferred=self.backend.defers_checks, allows_nan=nan_worst)
        return self.backend.rank_counts(operands, targets, known, checks, target_scores)

    def topk(
        self,
        queries: Tensor,
        candidates: Tensor,
        k: int,
        exclude_indptr: Tensor | None = None,
        exclude_indices: Tensor | None = None,
        score: str = "dot",
        *,
        nan_worst: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        operands = self.operands(queries, candidates, score, **options)
        known = None
        if exclude_indptr is not None and exclude_indices is not None:
            known = Known(exclude_indptr, exclude_indices)
        checks = Checks(deferred=self.backend.defers_checks, allows_nan=nan_worst)
        return self.backend.topk(operands, k, known, checks)

    def list_counts(
        self,
        queries: Tensor,
        candidates: Tensor,
        targets: Tensor,
        exclude_indptr: Tensor,
        exclude_indices: Tensor,
        score: str,
        *,
        lists: Lists,
        nan_worst: bool = False,
        **options: Any,
    ) -> tuple[Tensor, ...]:
        operands = self.operands(queries, candidates, score, **options)
        known = Known(exclude_indptr, exclude_indices)
        checks = Checks(deferred=self.backend.defers_checks, allows_nan=nan_worst)
        return self.backend.list_counts(operands, lists, targets, known, checks)

    def list_topk(
        self,
        queries: Tensor,
        candidates: Tensor,
        k: int,
        exclude_indptr: Tensor,
        exclude_indices: Tensor,
        score: str,
        *,
        lists: Lists,
        nan_worst: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        operands = self.operands(queries, candidates, score, **options)
        known = Known(exclude_indptr, exclude_indices)
        checks = Checks(deferred=self.backend.defers_checks, allows_nan=nan_worst)
        return self.backend.list_topk(operands, lists, k, known, checks)

    def pairwise_scores(
        self, queries: Tensor, candidates: Tensor, score: str, *args: Any, **options: Any
    ) -> Tensor:
        return self.backend.scores(self.operands(queries, candidates, score, *args, **options))

    def pairwise_backward(
        self,
        grad: Tensor,
        queries: Tensor,
        candidates: Tensor,
        score: str,
        factor: Tensor | None = None,
        dims: Sequence[int] | None = None,
        need: Sequence[bool] = (True, True, True),
    ) -> tuple[Tensor | None, ...]:
        operands = self.operands(queries, candidates, score, None, factor, dims)
        gradients = self.backend.backward(operands, grad, need=Need(*need))
        return gradients.queries, gradients.table, gradients.factor

    def indexed_scores(
        self, queries: Tensor, table: Tensor, index: Tensor, score: str, *args: Any, **options: Any
    ) -> Tensor:
        return self.backend.scores(self.operands(queries, table, score, *args, **options), index)

    def indexed_backward(
        self,
        grad: Tensor,
        queries: Tensor,
        table: Tensor,
        index: Tensor,
        score: str,
        factor: Tensor | None = None,
        dims: Sequence[int] | None = None,
        need: Sequence[bool] = (True, True, True),
    ) -> tuple[Any, ...]:
        """Gradient of the queries, ids and rows of the table's, rows of the factor's."""
        operands = self.operands(queries, table, score, None, factor, dims)
        gradients: Gradients = self.backend.backward(
            operands, grad, index, need=Need(*need), rows_only=True
        )
        rows = None if gradients.table is None else (gradients.ids, gradients.table)
        return gradients.queries, rows, gradients.factor

    def bce(
        self, queries: Tensor, table: Tensor, bias: Tensor | None, *labels: Any
    ) -> tuple[Tensor, Tensor]:
        *labels, score = labels
        operands = self.operands(queries, table, score, bias)
        return self.backend.losses.bce(operands, Labels(*labels))

    def bce_backward(
        self,
        grad: Tensor,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        *labels: Any,
        need: Sequence[bool] = (True, True, True),
    ) -> tuple[Tensor | None, ...]:
        *labels, score = labels
        operands, need = self.operands(queries, table, score, bias), LossNeed(*need)
        return self.backend.losses.bce_gradients(operands, Labels(*labels), grad, need)

    def bce_with_gradients(
        self,
        grad: Tensor,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        *labels: Any,
        need: Sequence[bool] = (True, True, True),
    ) -> tuple[Any, ...]:
        """Rows, sums of scores, and the gradients, of a backend whose losses go over chunks."""
        *labels, score = labels
        operands, need = self.operands(queries, table, score, bias), LossNeed(*need)
        rows, gradients = self.backend.losses._bce(operands, Labels(*labels), grad, need)
        return *rows, gradients

    def bce_total(
        self,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        *labels: Any,
        divisor: float,
        need: Sequence[bool] = (True, True, True),
    ) -> tuple[Any, ...]:
        """The total, sums of scores, and the gradients."""
        *labels, score = labels
        operands, need = self.operands(queries, table, score, bias), LossNeed(*need)
        return self.backend.losses.bce_total(operands, Labels(*labels), divisor, need)

    def cross_entropy(
        self,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        score: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, their logsumexp, sums of scores."""
        operands = self.operands(queries, table, score, bias)
        made = self.backend.losses.cross_entropy(operands, targets, label_smoothing)
        return made.rows, made.logsumexp, made.linear

    def cross_entropy_backward(
        self,
        grad: Tensor,
        logsumexp: Tensor,
        queries: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        label_smoothing: float,
        score: str,
        need: Sequence[bool] = (True, True, True),
    ) -> tuple[Tensor | None, ...]:
        operands = self.operands(queries, table, score, bias)
        made_of = CrossEntropyBackward(grad, logsumexp, targets, label_smoothing)
        return self.backend.losses.cross_entropy_gradients(operands, made_of, LossNeed(*need))


reference, cpu, triton = Flat("reference"), Flat("cpu"), Flat("triton")

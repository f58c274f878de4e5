"""Training by several processes, which each hold all tables.

Every process has the queries of the whole batch and gets all scores: the process computes the
scores of one share of the batch and receives all others. In the backward one process sums the whole
gradient of a query, and of a candidate. So no sum depends on the number of processes, except in
losses over all entities, where each process sums over one share of the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.eval import Ranks
from kgfast.kernels.backend import Backend
from kgfast.kernels.cpu.negatives import AdversarialLosses
from kgfast.kernels.labels import (
    Bce,
    CrossEntropy,
    LossChecks,
    LossGradients,
    LossNeed,
    LossRows,
    LossTotal,
)
from kgfast.kernels.losses import Losses
from kgfast.kernels.operands import Gradients, NamedRows, Need, Operands
from kgfast.models import Model
from kgfast.ops.dispatch import backend_for, get_backend, serving
from kgfast.processes.assignment import Assignment
from kgfast.processes.shares import processes
from kgfast.processes.steps import OtherProcessError, Processes

# Errors of a divergence in another process.
_DIVERGED = ("NonFiniteError", "OutOfRangeError", "FloatingPointError")
_TERMS = 1024  # most terms of an uncut sum of products
_BLOCK = 256  # candidates of an uncut sum of distances
_PARTS = 1 << 22  # numbers of the parts of cut sums that a kernel stores
_ROOTS = 1 << 19  # scores of a block, for distances with a root


class Together(Processes, Assignment):
    """Processes that each hold all rows; row gradients go to all as (ids, rows).

    Every process draws the same batch and negatives, calls the same losses, and computes a part of
    the losses. So all processes have equal gradients and make equal updates, bit for bit. They make
    the same calls in the same order, and numbers are added in the order of processes. The error of
    a failed collective names the missing process, or the reason why a process gave up.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__("kgfast.training.Trainer", timeout)
        self.agree({})
        self._numbers = self._rows = self.group()

    def agreed_device(self, find: Callable[[], torch.device]) -> torch.device:
        device = self.together(find)
        if device.type == "cuda":  # rows are sent from there
            self._rows = self.group("nccl")
        return device

    def check_same(self, facts: Mapping[str, object]) -> None:
        try:
            self.agree({name: str(fact) for name, fact in facts.items()})
        except ValueError as error:
            raise ValueError(
                f"{error}; start all processes of a run with the same command and the same data"
            ) from None

    def diverges(self, error: Exception) -> bool:
        theirs = isinstance(error, OtherProcessError) and error.kind in _DIVERGED
        return theirs or super().diverges(error)

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        return serving(SharedBackend(self, get_backend(backend_for(device))))

    def ranks(
        self, model: Model, dataset: Dataset, split: str, batch_size: int | None
    ) -> Ranks | dict[int, Ranks]:
        with processes(timeout=self.timeout):
            return super().ranks(model, dataset, split, batch_size)

    def gather_numbers(self, values: Tensor) -> Tensor:
        """Return the ``values [K]`` of all processes, on the CPU, ``[size, K]`` by rank."""
        return torch.stack(self.gather(values.cpu(), self._numbers))

    def gather_rows(self, ids: Tensor, *others: Tensor | None) -> list[Tensor | None]:
        """Return the ids ``[U]`` and rows ``[U, G]`` of all processes, in the order of ranks."""
        count = torch.full((1,), len(ids), dtype=torch.int64, device="cpu")
        counts = self.gather_numbers(count)[:, 0].tolist()
        return [None if rows is None else self._joined(rows, counts) for rows in (ids, *others)]

    def _joined(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Join the rows of all processes, ``counts[rank]`` of each, sent with padding."""
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        received = self.gather(padded, self._rows)
        return torch.cat([rows[:count] for rows, count in zip(received, counts, strict=True)])

    def share(self, count: int) -> slice:
        """Return the part of ``count`` rows that this process works on."""
        return self._shares(count)[self.rank]

    def _shares(self, count: int) -> list[slice]:
        ends = [count * rank // self.size for rank in range(self.size + 1)]
        return [slice(first, stop) for first, stop in pairwise(ends)]

    def join(self, rows: Tensor, count: int) -> Tensor:
        """Join rows ``[count, ...]``; each process has its share of the rows."""
        return self._joined(rows, [share.stop - share.start for share in self._shares(count)])

    def sum_rows(self, values: Tensor) -> Tensor:
        """Sum the values of all processes, in place, with equal bits in all."""
        return self.sum(values, self._rows)

    def align(self, gradients: Sequence[Tensor]) -> None:
        """Give all processes the bits of process 0; shapes and dtypes are equal in all."""
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in alike])
            self.collective(lambda: dist.broadcast(flat, group_src=0, group=self._rows))  # noqa: B023
            sizes = [tensor.numel() for tensor in alike]
            for tensor, values in zip(alike, flat.split(sizes), strict=True):
                tensor.copy_(values.view_as(tensor))


class SharedBackend:
    """Backend with scores and gradients that processes share out; ``backend`` does all else.

    All processes make the same calls with the same queries and indices.
    """

    name = "shared"

    def __init__(self, processes: Together, backend: Backend) -> None:
        self._processes, self._backend = processes, backend
        self.losses: Losses = SharedLosses(processes, backend.losses)
        # scores are shared out, not sums of scores: other backends fuse both
        self.negatives = AdversarialLosses(self) if backend.name == "cpu" else None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that is not shared out."""
        return getattr(self._backend, name)

    def scores(self, operands: Operands, index: Tensor | None = None) -> Tensor:
        if index is not None and index.shape[1] == 1:  # too little work to share
            return self._backend.scores(operands, index)
        count, share = operands.num_queries, self._processes.share(operands.num_queries)
        some = None if index is None else index[share]
        scores = self._backend.scores(operands.of_queries(share), some)
        return self._processes.join(scores.movedim(-2, 0), count).movedim(0, -2).contiguous()

    def backward(
        self,
        operands: Operands,
        grad: Tensor,
        index: Tensor | None = None,
        *,
        need: Need,
        rows: NamedRows | None = None,
    ) -> Gradients:
        if index is not None and index.shape[1] == 1 and rows is None:
            return self._backend.backward(operands, grad, index, need=need)
        of_queries = self._of_queries(operands, grad, index) if need.queries else None
        need = need._replace(queries=False)
        if not (need.table or need.factor):
            return Gradients(of_queries)
        if index is None:
            gradients = self._of_rows(operands, grad, need)
        else:
            gradients = self._of_named_rows(operands, grad, index, need, rows or NamedRows())
            if rows is None:
                gradients = gradients.spread(operands, need)
        return gradients._replace(queries=of_queries)

    def _of_queries(self, operands: Operands, grad: Tensor, index: Tensor | None) -> Tensor | None:
        need, processes, count = Need(True, False), self._processes, operands.num_queries
        if index is None and not are_summed_alone(operands, grad, of_queries=True):
            return self._backend.backward(operands, grad, need=need).queries
        share = processes.share(count)
        some = operands.of_queries(share), grad[..., share, :].contiguous()
        gradient = self._backend.backward(*some, None if index is None else index[share], need=need)
        assert gradient.queries is not None
        return processes.join(gradient.queries, count)

    def _of_named_rows(
        self, operands: Operands, grad: Tensor, index: Tensor, need: Need, rows: NamedRows
    ) -> Gradients:
        """Return the gradients of indexed rows, which each process sums for a share of the rows."""
        processes = self._processes
        rows = rows._replace(within=processes.share(operands.candidates.num_rows))
        mine = self._backend.backward(operands, grad, index, need=need, rows=rows)
        assert mine.ids is not None
        ids, table, factor = processes.gather_rows(mine.ids, mine.table, mine.factor)
        return mine._replace(table=table, factor=factor, ids=ids)

    def _of_rows(self, operands: Operands, grad: Tensor, need: Need) -> Gradients:
        if not are_summed_alone(operands, grad, of_queries=False):
            return self._backend.backward(operands, grad, need=need)
        count = operands.candidates.num_rows
        share = self._processes.share(count)
        some = operands.of_rows(share), grad[..., share].contiguous()
        sums, join = self._backend.backward(*some, need=need)[1:3], self._processes.join
        table, factor = (None if rows is None else join(rows, count) for rows in sums)
        return Gradients(None, table, factor)


def are_summed_alone(operands: Operands, grad: Tensor, *, of_queries: bool) -> bool:
    """Return whether some queries, or candidates, alone have the gradients of the whole problem.

    The CPU's kernels cut long sums by the shape of the problem (host/backward.cpp,
    host/product.cpp). A sum over a smaller problem may be cut at other places, and round otherwise.
    """
    score, pool = operands.score, grad.shape[-1]
    if score.is_rscf:  # queries and candidates are rotated in groups
        return False
    if not score.monotone:
        return (pool if of_queries else grad.shape[-2]) <= _TERMS
    blocks = -(-pool // _BLOCK)
    numbers = operands.num_queries * (operands.queries.shape[1] + 64)
    fits = blocks == 1 or blocks * numbers <= _PARTS
    return not of_queries or (fits and not (score.root and grad.numel() > _ROOTS))


class SharedLosses(Losses):
    """Losses over all candidates, with queries that processes share out."""

    def __init__(self, processes: Together, losses: Losses) -> None:
        self._processes, self._losses = processes, losses

    def value(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
    ) -> LossRows:
        share = self._share(operands, checks)
        mine = self._losses.value(operands.of_queries(share), loss.of_queries(share))
        count, join = operands.num_queries, self._processes.join
        rows = LossRows(join(mine.rows, count), join(mine.linear, count))
        if mine.logsumexp is not None and isinstance(loss, CrossEntropy):
            rows = rows._replace(logsumexp=join(mine.logsumexp, count))
        if checks is not None:
            checks.scores(rows.linear)
        return rows

    def gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        rows: LossRows | None = None,
    ) -> LossGradients:
        share = self._share(operands, None)
        if rows is not None and rows.logsumexp is not None:
            rows = LossRows(rows.rows[share], rows.linear[share], rows.logsumexp[share])
        mine = operands.of_queries(share), loss.of_queries(share), weights[share], need, rows
        return self._summed(operands, self._losses.gradients(*mine))

    def value_and_gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> LossTotal:
        share = self._share(operands, checks)
        arguments = operands.of_queries(share), loss.of_queries(share), divisor, need
        mine = self._losses.value_and_gradients(*arguments)
        totals = self._processes.gather_numbers(mine.total.double().reshape(1))
        total = totals.sum().to(mine.total.device, mine.total.dtype)
        linear = self._processes.join(mine.linear, operands.num_queries)
        if checks is not None:
            checks.scores(linear)
        return LossTotal(total, linear, self._summed(operands, mine.gradients))

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        self._losses.scale(gradients, factor)

    def _share(self, operands: Operands, checks: LossChecks | None) -> slice:
        """Check all labels, and return the queries of this process."""
        if checks is not None:
            checks.labels()
        return self._processes.share(operands.num_queries)

    def _summed(self, operands: Operands, mine: LossGradients) -> LossGradients:
        queries = mine.queries
        if queries is not None:
            queries = self._processes.join(queries, operands.num_queries)
        others = [None if rows is None else self._processes.sum_rows(rows) for rows in mine[1:]]
        return LossGradients(queries, *others)

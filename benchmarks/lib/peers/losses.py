"""Losses over all candidates, and sampled scores, by dense or chunked torch.

A peer is a forward and a backward, whose gradients go to ``queries.grad`` and ``table.grad``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kgfast import ops
from lib.peers import rotate_scores

TINY = 1e-30  # the square root has no slope at 0
CHUNK_BYTES = 1 << 28  # one [B, chunk, dim] float32 tensor of a peer that goes in chunks
HEAD_ROWS = 1024  # rows of an output head whose logits a peer holds at once

Run = Callable[[], float]  # forward and backward; the loss


@dataclass
class Work:
    """A batch of queries, a table, and what is true."""

    queries: Tensor
    table: Tensor
    score: str
    targets: Tensor  # [B, P] positives, or one target each
    smoothing: float = 0.0

    @classmethod
    def random(
        cls, score: str, batch: int, rows: int, dim: int, device: str, positives: int = 4
    ) -> "Work":
        """Normal numbers, of a size at which scores are neither 0 nor hopeless."""
        generator = torch.Generator().manual_seed(0)
        width = dim * (2 if score == "rotate" else 1)
        size = 0.3 if score == "dot" else 1 / dim
        queries = torch.randn(batch, width, generator=generator) * size
        table = torch.randn(rows, width, generator=generator) * size
        targets = torch.randint(rows, (batch, positives), generator=generator)
        return cls(
            queries.to(device).requires_grad_(),
            table.to(device).requires_grad_(),
            score,
            targets.to(device),
        )

    @property
    def dim(self) -> int:
        """Features."""
        return self.table.shape[1] // (2 if self.score == "rotate" else 1)

    def forget(self) -> None:
        """Drop the gradients."""
        self.queries.grad = self.table.grad = None


def kgfast_bce(work: Work) -> float:
    """All candidates of every row, streamed."""
    work.forget()
    batch, positives = work.targets.shape
    indptr = torch.arange(batch + 1, device=work.targets.device) * positives
    labels = indptr, work.targets.flatten(), 1.0, 0.0, work.score
    loss = ops.bce_total(work.queries, work.table, None, *labels, batch * len(work.table))
    loss.backward()
    return loss.item()


def kgfast_cross_entropy(work: Work, precision: str = "float32") -> float:
    """An output head, streamed; of products of that precision."""
    work.forget()
    problem = work.queries, work.table, None, work.targets[:, 0], work.smoothing, work.score
    count = len(work.queries)
    loss = ops.cross_entropy(*problem, divisor=count, precision=precision).mean()
    loss.backward()
    return loss.item()


def labels_of(work: Work) -> Tensor:
    """The dense labels ``[B, N]``."""
    labels = torch.zeros(len(work.queries), len(work.table), device=work.table.device)
    return labels.scatter_(1, work.targets, 1.0)


def dense_dot(queries: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Binary cross entropy as it is usually written."""
    return functional.binary_cross_entropy_with_logits(queries @ table.T, labels)


def dense_bce(work: Work, compiled: bool = False) -> Run:
    """Dense labels, scores and loss, eager or by torch.compile."""
    loss_of = torch.compile(dense_dot, dynamic=False) if compiled else dense_dot

    def run() -> float:
        work.forget()
        loss = loss_of(work.queries, work.table, labels_of(work))
        loss.backward()
        return loss.item()

    return run


def pairwise_rotate(queries: Tensor, table: Tensor) -> Tensor:
    """``[B, N]`` scores through ``[B, N, D]`` tensors."""
    return rotate_scores(queries[:, None], table, TINY)


def rotate_chunk(work: Work) -> int:
    """Candidates that a peer takes at once."""
    bytes_each = 4 * len(work.queries) * work.dim
    return max(1, min(len(work.table), CHUNK_BYTES // bytes_each))


def rotate_bce(queries: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Binary cross entropy of distances, summed."""
    scores = pairwise_rotate(queries, table)
    return functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


def chunk_of_rotate_bce(work: Work, compiled: bool = False) -> Run:
    """Forward and backward of the first chunk of candidates: the loss is a sum over chunks."""
    size = rotate_chunk(work)
    part = labels_of(work)[:, :size].contiguous()
    loss_of = torch.compile(rotate_bce, dynamic=False) if compiled else rotate_bce

    def run() -> float:
        work.forget()
        loss = loss_of(work.queries, work.table[:size], part)
        loss.backward()
        return loss.item()

    return run


def dense_logits(queries: Tensor, table: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Cross entropy as it is usually written."""
    return functional.cross_entropy(queries @ table.T, targets, label_smoothing=smoothing)


def dense_cross_entropy(work: Work, compiled: bool = False) -> Run:
    """Logits of all rows at once, eager or by torch.compile."""
    loss_of = torch.compile(dense_logits, dynamic=False) if compiled else dense_logits

    def run() -> float:
        work.forget()
        loss = loss_of(work.queries, work.table, work.targets[:, 0], work.smoothing)
        loss.backward()
        return loss.item()

    return run


def dense_cross_entropy_bf16(work: Work) -> Run:
    """Likewise, as torch's autocast to bfloat16 has it: products round what they take and give."""

    def run() -> float:
        work.forget()
        with torch.autocast(work.table.device.type, torch.bfloat16):
            logits = work.queries @ work.table.T
            loss = functional.cross_entropy(
                logits, work.targets[:, 0], label_smoothing=work.smoothing
            )
        loss.backward()
        return loss.item()

    return run


def three_products(work: Work) -> Run:
    """The scores, and what a gradient of them makes of the table and of the queries: no loss."""

    def run() -> float:
        with torch.no_grad():
            scores = work.queries @ work.table.T
            of_queries, _ = scores @ work.table, scores.T @ work.queries
            return of_queries[0, 0].item()

    return run


def has_linear_cross_entropy() -> bool:
    """Whether this torch has it."""
    return hasattr(functional, "linear_cross_entropy")


def linear_cross_entropy(work: Work) -> Run:
    """Torch's own cross entropy of an output head, which holds parts of the logits at a time."""

    def run() -> float:
        work.forget()
        loss = functional.linear_cross_entropy(
            work.queries, work.table, work.targets[:, 0], label_smoothing=work.smoothing
        )
        loss.backward()
        return float(loss.item())

    return run


def head_rows(work: Work) -> Run:
    """Smoothed cross entropy of the first rows of an output head, with dense logits."""
    rows = min(HEAD_ROWS, len(work.queries))

    def run() -> float:
        work.forget()
        logits = work.queries[:rows] @ work.table.T
        targets = work.targets[:rows, 0]
        loss = functional.cross_entropy(logits, targets, label_smoothing=work.smoothing)
        loss.backward()
        return loss.item()

    return run


def top_rows(work: Work) -> Run:
    """The best output of the first rows of an output head, with dense logits."""
    rows = min(HEAD_ROWS, len(work.queries))

    def run() -> float:
        with torch.no_grad():
            return float((work.queries[:rows] @ work.table.T).argmax(1)[0])

    return run


def kgfast_top(work: Work) -> float:
    """The best output of every row."""
    with torch.no_grad():
        _, ids = ops.topk(work.queries, work.table, 1)
    return float(ids[0, 0])


def sampled(work: Work, scores: Callable[[Tensor, Tensor], Tensor], pairs: Tensor) -> Run:
    """Scores of sampled candidates and, with this gradient of theirs, the backward."""

    def run() -> float:
        work.forget()
        found = scores(work.queries, work.table)
        found.backward(pairs)
        return found.detach()[0, 0].item()

    return run


def sampled_contenders(work: Work, per_query: int | None, compiled: bool) -> dict[str, Run]:
    """Pairwise scores, or indexed ones with ``per_query`` rows of the table for each query."""
    generator = torch.Generator().manual_seed(1)
    batch, device = len(work.queries), work.table.device
    columns = per_query or len(work.table)
    pairs = torch.randn(batch, columns, generator=generator).to(device)
    if per_query is None:
        dense: Callable[[Tensor, Tensor], Tensor] = pairwise_rotate
        ours = partial(ops.pairwise_scores, score="rotate")
    else:
        index = torch.randint(len(work.table), (batch, per_query), generator=generator).to(device)

        def dense(queries: Tensor, table: Tensor) -> Tensor:
            return rotate_scores(queries[:, None], table[index], TINY)

        def ours(queries: Tensor, table: Tensor) -> Tensor:
            return ops.indexed_scores(queries, table, index, "rotate")

    runs = {"kgfast": sampled(work, ours, pairs), "eager": sampled(work, dense, pairs)}
    if compiled:
        runs["compile"] = sampled(work, torch.compile(dense, dynamic=False), pairs)
    return runs

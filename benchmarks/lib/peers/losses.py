"""Losses over all candidates, and sampled scores, by dense or chunked torch.

A peer is a forward and a backward, whose gradients go to ``queries.grad`` and ``table.grad``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kgfast import ops
from lib.peers import fastest, rotate_scores

TINY = 1e-30  # the square root has no slope at 0
PART_BYTES = 1 << 28  # one [B, rows, dim] float32 tensor of the candidates that are measured
CHUNKS = (2, 4, 8, 16, 64, 256, 1 << 62)  # candidates of a chunk of RotatE
QUERY_CHUNKS = (1, 4, 16, 64, 1 << 62)  # queries of a chunk of given gradients

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
        """Draw normal numbers whose scores are neither 0 nor hopeless."""
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
        """Return the number of features."""
        return self.table.shape[1] // (2 if self.score == "rotate" else 1)


def backward(work: Work, loss_of: Callable[[], Tensor]) -> Run:
    """Return the forward and the backward of a loss."""

    def run() -> float:
        work.queries.grad = work.table.grad = None
        loss = loss_of()
        loss.backward()
        return float(loss.detach().item())

    return run


def compiled(function: Callable[..., Tensor], is_wanted: bool) -> Callable[..., Tensor]:
    """Return a function as it is, or by torch.compile."""
    return torch.compile(function, dynamic=False) if is_wanted else function


def kgfast_bce(work: Work) -> Run:
    """Return binary cross entropy of all candidates of every row, streamed."""
    batch, positives = work.targets.shape
    indptr = torch.arange(batch + 1, device=work.targets.device) * positives
    labels = indptr, work.targets.flatten(), 1.0, 0.0, work.score
    count = batch * len(work.table)
    return backward(work, lambda: ops.bce(work.queries, work.table, None, *labels, divisor=count))


def kgfast_cross_entropy(work: Work, precision: str = "float32") -> Run:
    """Return an output head, streamed; of products of that precision."""
    given = None, work.targets[:, 0], work.smoothing, work.score
    options = {"divisor": len(work.queries), "precision": precision}
    return backward(work, lambda: ops.cross_entropy(work.queries, work.table, *given, **options))


def labels_of(work: Work) -> Tensor:
    """Return the dense labels ``[B, N]``."""
    labels = torch.zeros(len(work.queries), len(work.table), device=work.table.device)
    return labels.scatter_(1, work.targets, 1.0)


def dense_dot(queries: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Return binary cross entropy as it is usually written."""
    return functional.binary_cross_entropy_with_logits(queries @ table.T, labels)


def dense_bce(work: Work, compile: bool = False) -> Run:
    """Return dense labels, scores and loss, eager or by torch.compile."""
    loss_of = compiled(dense_dot, compile)
    return backward(work, lambda: loss_of(work.queries, work.table, labels_of(work)))


def rotate_rows(work: Work) -> int:
    """Return how many candidates a peer scores: its time is that of all, divided."""
    bytes_each = 4 * len(work.queries) * work.dim
    return max(1, min(len(work.table), PART_BYTES // bytes_each))


def rotate_bce(queries: Tensor, table: Tensor, labels: Tensor) -> Tensor:
    """Return binary cross entropy of distances, summed."""
    scores = rotate_scores(queries[:, None], table, TINY)
    return functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


def part_of_rotate_bce(work: Work, chunk: int = 0, compile: bool = False) -> Run:
    """Return the loss of the first candidates, a sum over chunks; 0: of the fastest size."""
    chunk = chunk or fastest_rotate_chunk(work, compile)
    rows = rotate_rows(work)
    batch, positives = work.targets.shape
    owners = torch.arange(batch, device=work.targets.device).repeat_interleave(positives)
    loss_of = compiled(rotate_bce, compile)

    def run() -> float:
        work.queries.grad, total = None, 0.0
        gradient = torch.empty_like(work.table[:rows], requires_grad=False)
        targets = work.targets.flatten()
        for first in range(0, rows, chunk):
            # A leaf of its own: the gradient of a slice is as large as the whole.
            table = work.table.detach()[first : min(rows, first + chunk)].requires_grad_()
            labels = torch.zeros(batch, len(table), device=table.device)
            here = (targets >= first) & (targets < first + len(table))
            labels[owners[here], targets[here] - first] = 1.0
            loss = loss_of(work.queries, table, labels)
            loss.backward()
            gradient[first : first + len(table)] = table.grad
            total += float(loss.detach())
        if rows == len(work.table):
            work.table.grad = gradient
        return total

    return run


def fastest_rotate_chunk(work: Work, compile: bool = False) -> int:
    """Return the fastest of some numbers of candidates at once."""
    sizes = sorted({min(size, rotate_rows(work)) for size in CHUNKS})
    runs = [part_of_rotate_bce(work, size, compile) for size in sizes]
    return sizes[runs.index(fastest(runs, work.table.device.type))]


def dense_logits(queries: Tensor, table: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return cross entropy as it is usually written."""
    return functional.cross_entropy(queries @ table.T, targets, label_smoothing=smoothing)


def dense_cross_entropy(work: Work, compile: bool = False) -> Run:
    """Return cross entropy with the logits of all rows at once, eager or by torch.compile."""
    loss_of = compiled(dense_logits, compile)
    given = work.targets[:, 0], work.smoothing
    return backward(work, lambda: loss_of(work.queries, work.table, *given))


def dense_cross_entropy_bf16(work: Work) -> Run:
    """Return the same by torch's autocast to bfloat16: products round what they take and give."""

    def loss() -> Tensor:
        with torch.autocast(work.table.device.type, torch.bfloat16):
            return dense_logits(work.queries, work.table, work.targets[:, 0], work.smoothing)

    return backward(work, loss)


def three_products(work: Work) -> Run:
    """Return the scores, and what a gradient of them makes of table and queries: no loss."""

    def run() -> float:
        with torch.no_grad():
            scores = work.queries @ work.table.T
            of_queries, _ = scores @ work.table, scores.T @ work.queries
            return of_queries[0, 0].item()

    return run


def linear_cross_entropy(work: Work) -> Run:
    """Return torch's own cross entropy of a head, which holds parts of the logits at a time."""
    given, options = work.targets[:, 0], {"label_smoothing": work.smoothing}
    head = functional.linear_cross_entropy
    return backward(work, lambda: head(work.queries, work.table, given, **options))


def sampled_contenders(work: Work, per_query: int | None, compile: bool) -> dict[str, Run]:
    """Return contenders of pairwise, or ``per_query`` indexed, scores with a given gradient."""
    generator = torch.Generator().manual_seed(1)
    batch, device = len(work.queries), work.table.device
    gradient = torch.randn(batch, per_query or len(work.table), generator=generator).to(device)
    index = None
    if per_query is not None:
        index = torch.randint(len(work.table), (batch, per_query), generator=generator).to(device)

    def ours() -> float:
        work.queries.grad = work.table.grad = None
        found = (
            ops.pairwise_scores(work.queries, work.table, score="rotate")
            if index is None
            else ops.indexed_scores(work.queries, work.table, index, "rotate")
        )
        found.backward(gradient)
        return found.detach()[0, 0].item()

    runs: dict[str, Run] = {"kgfast": ours}
    for name in ("eager", "compile")[: 1 + compile]:
        scores = compiled(_scores_of_some, name == "compile")
        sizes = sorted({min(size, batch) for size in QUERY_CHUNKS})
        tried = [_in_chunks(work, index, gradient, scores, size) for size in sizes]
        runs[name] = fastest(tried, device.type)
    return runs


def _scores_of_some(queries: Tensor, candidates: Tensor) -> Tensor:
    return rotate_scores(queries[:, None], candidates, TINY)


def _in_chunks(
    work: Work,
    index: Tensor | None,
    gradient: Tensor,
    scores: Callable[[Tensor, Tensor], Tensor],
    chunk: int,
) -> Run:
    """Return the scores of some queries at a time, and what a gradient of them makes."""

    def run() -> float:
        table, first = work.table.detach(), 0.0
        work.queries.grad = torch.empty_like(work.queries)
        total = torch.zeros_like(table)
        shared = table.detach().requires_grad_()
        shared.grad = total  # to which each backward adds
        for start in range(0, len(work.queries), chunk):
            # Leaves of their own: the gradient of a slice is as large as the whole.
            part = slice(start, start + chunk)
            own = work.queries.detach()[part].requires_grad_()
            ids = None if index is None else index[part]
            rows = shared if ids is None else table[ids].requires_grad_()
            found = scores(own, rows)
            found.backward(gradient[part])
            work.queries.grad[part] = own.grad
            if ids is not None:
                total.index_add_(0, ids.flatten(), rows.grad.flatten(0, 1))
            first = first or found.detach()[0, 0].item()
        work.table.grad = total
        return first

    return run

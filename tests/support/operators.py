"""Differentiable operators: operands, a call and a dense formula of each, by its name."""

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels.scores import get_score
from kgfast.ops.registry import OPERATORS
from support import oracles

B, N, DIVISOR = 5, 23, 7.0
POSITIVES = [[22, 3], [0], [5, 9, 5, 22], [3, 3], [1]]  # in no order, some twice
TARGETS = torch.tensor([22, 0, 5, 3, 3])
INDEX = torch.randint(N, (B, 7), generator=torch.Generator().manual_seed(3))  # many ids twice
INDEX[:, 0] = N - 1
LABELS = 0.9, 0.1 / N
SCORED, LOSSES = ("pairwise_scores", "indexed_scores"), ("bce", "cross_entropy")
TOTALS = ("bce_total", "cross_entropy_total")
NAMES = (*SCORED, *LOSSES, *TOTALS)


def operands(
    name: str, score: str = "rotate", *, batch: int = B, rows: int = N, dim: int = 17
) -> list[Tensor]:
    """Make float32 queries, table and bias that require gradients, and a factor for moved queries.

    A query equals a row.
    """
    generator, facts = torch.Generator().manual_seed(1), get_score(score)
    shapes = (batch, dim * facts.planes), (rows, dim * facts.planes), (rows,)
    tensors = [torch.randn(*shape, generator=generator) / 3 for shape in shapes]
    if not facts.is_rscf:
        tensors[1][-1] = tensors[0][0]
    else:
        parts = [tensors[0], 1 + 0.2 * torch.randn(*shapes[0], generator=generator)]
        if name in SCORED:
            parts.append(3 * torch.randn(batch, dim, generator=generator))
            tensors.append(1 + 0.1 * torch.randn(rows, dim, generator=generator))
        tensors[0] = torch.cat(parts, 1)
    return [it.requires_grad_() for it in tensors]


def csr(batch: int = B) -> tuple[Tensor, Tensor]:
    """Return the positives of the first queries."""
    lengths = torch.tensor([0] + [len(ids) for ids in POSITIVES[:batch]])
    ids = [id for ids in POSITIVES[:batch] for id in ids]
    return lengths.cumsum(0), torch.tensor(ids, dtype=torch.int64)


def served(
    name: str,
    tensors: list[Tensor],
    score: str = "rotate",
    dims: list[int] | None = None,
    divisor: float = DIVISOR,
    **options: object,
) -> Tensor:
    """Call an operator, with labels or an index of as many queries as are given."""
    queries, table, *others = tensors
    bias, factor = (*others, None, None)[:2]
    batch = len(queries)
    if name in SCORED:
        index = [INDEX[:batch]] if name == "indexed_scores" else []
        options |= {"bias": bias, "factor": factor, "dims": dims}
        return getattr(ops, name)(queries, table, *index, score, **options)
    labels = (*csr(batch), *LABELS) if name.startswith("bce") else (TARGETS[:batch], 0.1)
    if name in TOTALS:
        options |= {"divisor": divisor}
    call = getattr(ops, name.removesuffix("_total"))
    return call(queries, table, bias, *labels, score, **options)


def dense(
    name: str, tensors: list[Tensor], score: str = "rotate", dims: list[int] | None = None
) -> Tensor:
    """Return an operator's result by dense torch, of all queries."""
    queries, *others = tensors
    if name == "indexed_scores":
        others = [it[INDEX] for it in others]
    rows, bias, factor = (*others, None, None)[:3]
    options = {"bias": bias, "factor": factor}
    each = [
        oracles.dense_scores(queries[:, None], rows, score, dim=dim, **options)
        for dim in dims or [None]
    ]
    if name in SCORED:
        return each[0] if dims is None else torch.stack(each)
    if name.startswith("bce"):
        result = oracles.binary_cross_entropy(each[0], POSITIVES, *LABELS)
    else:
        result = oracles.softmax_cross_entropy(each[0], TARGETS, 0.1)
    return result.sum() / DIVISOR if name in TOTALS else result


def doubles(tensors: list[Tensor]) -> list[Tensor]:
    return [it.detach().double().requires_grad_() for it in tensors]


def gradients(result: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Differentiate a weighted sum of a result."""
    weights = torch.linspace(1, 2, result.numel(), dtype=result.dtype).view(result.shape)
    return torch.autograd.grad(result, tensors, weights)


def opcheck(name: str, *args: object) -> None:
    """Let torch test an operator, with arguments of the body."""
    values = tuple(OPERATORS[name].flat(*args))
    torch.library.opcheck(getattr(torch.ops.kgfast, name), values)

"""Slow, obvious answers: plain Python floats (IEEE float64, nothing fused), dense torch."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def planes_of(score: str, row: Sequence[float]) -> list[tuple[float, ...]]:
    """The features of a row: reals, or pairs re, im."""
    if score == "rotate":
        half = len(row) // 2
        return list(zip(row[:half], row[half:], strict=True))
    if score == "rotate_interleaved":
        return list(zip(row[0::2], row[1::2], strict=True))
    return [(value,) for value in row]


def canonical(
    query: Sequence[float],
    row: Sequence[float],
    score: str,
    bias: float | None = None,
    dim: int | None = None,
) -> float:
    """The canonical score of one pair, feature after feature."""
    features = list(zip(planes_of(score, query), planes_of(score, row), strict=True))[:dim]
    total = 0.0
    for q, c in features:
        if score == "dot":
            total += q[0] * c[0]
        elif score == "l1":
            total += abs(q[0] - c[0])
        elif score == "l2":
            total += (q[0] - c[0]) * (q[0] - c[0])
        elif score.startswith("rotate"):
            re, im = q[0] - c[0], q[1] - c[1]
            total += math.sqrt(re * re + im * im)
        else:
            raise ValueError(score)
    if score == "l2":
        total = math.sqrt(total)
    value = total if score == "dot" else -total
    return value if bias is None else value + bias


def rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    excluded: Sequence[Iterable[int]],
    score: str,
    *,
    bias: Tensor | None = None,
    dim: int | None = None,
    candidate_ids: Iterable[int] | None = None,
) -> list[tuple[int, int, int, int]]:
    """Greater, equal, and both of the excluded, per query, by comparing every pair."""
    table = candidates.double().tolist()
    biases = [None] * len(table) if bias is None else bias.double().expand(len(table)).tolist()
    allowed = set(range(len(table)) if candidate_ids is None else candidate_ids)
    counts = []
    for query, target, known in zip(
        queries.double().tolist(), targets.tolist(), excluded, strict=True
    ):
        threshold = canonical(query, table[target], score, biases[target], dim)
        row = [0, 0, 0, 0]
        for n in allowed - {target}:
            value = canonical(query, table[n], score, biases[n], dim)
            greater, equal = value > threshold or math.isnan(threshold), value == threshold
            row[0] += greater
            row[1] += equal
            if n in set(known):
                row[2] += greater
                row[3] += equal
        counts.append((row[0], row[1], row[2], row[3]))
    return counts


def dense_scores(
    queries: Tensor,
    rows: Tensor,
    score: str,
    *,
    bias: Tensor | None = None,
    dim: int | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Scores by broadcasting ``queries [..., F]`` with ``rows [..., G]``; torch differentiates.

    Torch's norms have gradient 0 at 0, as ours.
    """
    if score.startswith("rscf"):
        x, score = _moved(queries, rows, factor, dim, score)
    else:
        q, c = (_planes(it, score)[..., :dim] for it in (queries, rows))  # [..., planes, D]
        x = q * c if score == "dot" else q - c
    if score == "dot":
        result = x.sum((-1, -2))
    elif score == "l2":
        result = -torch.linalg.vector_norm(x, dim=(-1, -2))
    elif score == "l1" or score.startswith("rotate"):
        result = -torch.linalg.vector_norm(x, dim=-2).sum(-1)
    else:
        raise ValueError(score)
    return result if bias is None else result + bias


def _planes(rows: Tensor, score: str) -> Tensor:
    if score == "rotate_interleaved":
        return rows.unflatten(-1, (-1, 2)).transpose(-1, -2)
    return rows.unflatten(-1, (2 if score == "rotate" else 1, -1))


def _moved(
    queries: Tensor, rows: Tensor, factor: Tensor | None, dim: int | None, score: str
) -> tuple[Tensor, str]:
    """Differences of moved queries ``[q | w | a]`` and rows, by the equations of the paper."""
    planes = 2 if score == "rscf_rotate" else 1
    width = rows.shape[-1] // planes
    q, c = (it.unflatten(-1, (-1, width))[..., :dim] for it in (queries, rows))
    x, w = q[..., :planes, :], q[..., planes : 2 * planes, :]
    if factor is not None:
        a, b = q[..., 2 * planes, :], factor[..., :dim]
        if planes == 2:
            turned = torch.complex(x[..., 0, :], x[..., 1, :]) * torch.exp(1j * a * b)
            x = torch.view_as_real(turned).transpose(-1, -2)
        else:
            x = x + (a * b)[..., None, :]
    return x - w * c, {"rscf_rotate": "rotate", "rscf_l1": "l1", "rscf_l2": "l2"}[score]


def binary_cross_entropy(
    scores: Tensor, positives: Sequence[Iterable[int]], a: float, c: float
) -> Tensor:
    """Row losses by the definition, with the dense labels ``a y + c``."""
    labels = torch.full_like(scores, c, requires_grad=False)
    for row, ids in enumerate(positives):
        labels[row, sorted(set(ids))] += a
    log_sigmoid = torch.nn.functional.logsigmoid
    return -(labels * log_sigmoid(scores) + (1 - labels) * log_sigmoid(-scores)).sum(-1)


def softmax_cross_entropy(scores: Tensor, targets: Tensor, eps: float) -> Tensor:
    """Row losses by the definition, with the smoothed labels of torch."""
    labels = torch.full_like(scores, eps / scores.shape[-1], requires_grad=False)
    labels[torch.arange(len(scores)), targets] += 1 - eps
    return -(labels * scores.log_softmax(-1)).sum(-1)


def assert_accurate(got: Tensor, exact: Tensor, dense: Tensor | None = None) -> None:
    """Within 1e-5 of float64, or twice the error of dense float32, relative to the largest."""
    assert got.shape == exact.shape
    if not exact.numel():
        return
    allowed = 1e-5 * exact.abs().max()
    if dense is not None:
        allowed = torch.maximum(allowed, 2 * (dense.double() - exact).abs().max())
    error = (got.double() - exact).abs().max()
    assert error <= allowed, f"error {error:.3g} > {allowed:.3g}"


def topk(
    queries: Tensor,
    candidates: Tensor,
    k: int,
    excluded: Sequence[Iterable[int]],
    score: str,
    *,
    bias: Tensor | None = None,
    dim: int | None = None,
    candidate_ids: Iterable[int] | None = None,
) -> list[list[tuple[float, int]]]:
    """The best ``k`` (score, id) of each query, by sorting all; -inf and -1 where too few."""
    table = candidates.double().tolist()
    biases = [None] * len(table) if bias is None else bias.double().expand(len(table)).tolist()
    allowed = set(range(len(table)) if candidate_ids is None else candidate_ids)
    best = []
    for query, known in zip(queries.double().tolist(), excluded, strict=True):
        row = [(canonical(query, table[n], score, biases[n], dim), n) for n in allowed - set(known)]
        numbers = sorted((-value, n) for value, n in row if not math.isnan(value))
        rest = sorted(n for value, n in row if math.isnan(value))
        ordered = [(-value, n) for value, n in numbers] + [(math.nan, n) for n in rest]
        best.append((ordered + [(-math.inf, -1)] * k)[:k])
    return best

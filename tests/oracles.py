"""Slow, obvious answers, in plain Python floats (IEEE float64, nothing fused)."""

import math
from collections.abc import Iterable, Sequence

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
        else:
            re, im = q[0] - c[0], q[1] - c[1]
            total += math.sqrt(re * re + im * im)
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

"""Ranks as they are defined: canonical float64 scores of every pair, compared and counted.

Cost model: D passes of a few elementwise float64 operations over ``[b, n]`` tiles of at most
``TILE`` pairs; about 1 GB/s of candidates, whatever the score. Memory: six such tiles.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..checks import check_finite
from ..ieee import ieee_arithmetic
from ..scores import get_score
from .trig import cos_sin

TILE = 1 << 19  # pairs scored at once: 4 MiB per float64 temporary


def canonical_scores(
    queries: Tensor,
    rows: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Canonical scores, broadcast over the leading axes of all operands.

    Parameters
    ----------
    queries, rows : Tensor
        ``[..., F]`` and ``[..., G]``, any floating dtype, leading axes that broadcast.
    score : str
        A name from :data:`kgfast.kernels.scores.SCORES`.
    bias : Tensor, optional
        Added last; broadcasts against the result.
    factor : Tensor, optional
        ``[..., D]``, that of the rows.

    Returns
    -------
    Tensor
        float64, the broadcast leading axes.
    """
    shape = torch.broadcast_shapes(queries.shape[:-1], rows.shape[:-1])
    total = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    for q, c in planes_of(queries, rows, score, factor):
        total = total + term(score, q, c)
    if is_root(score):
        total = rounded_sqrt(total)
    total = total if score == "dot" else -total
    return total if bias is None else total + bias.double()


def planes_of(
    queries: Tensor,
    rows: Tensor,
    score: str,
    factor: Tensor | None,
    num_features: int | None = None,
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """For each feature, in order, the query's planes and the candidate's, its factor last."""
    facts = get_score(score)
    width = rows.shape[-1]
    q_starts, step = facts.columns(queries.shape[-1], facts.query_planes(factor is not None))
    c_starts, _ = facts.columns(width)
    for feature in range(facts.num_features(width) if num_features is None else num_features):
        q = [queries[..., start + step * feature].double() for start in q_starts]
        c = [rows[..., start + step * feature].double() for start in c_starts]
        yield q, c if factor is None else [*c, factor[..., feature].double()]


def term(score: str, q: list[Tensor], c: list[Tensor]) -> Tensor:
    """One feature's share of a score; every operation rounds on its own."""
    if score == "dot":
        return q[0] * c[0]
    x = differences(score, q, c)
    if len(x) == 2:
        return rounded_sqrt(x[0] * x[0] + x[1] * x[1])
    return x[0] * x[0] if is_root(score) else x[0].abs()


def differences(score: str, q: list[Tensor], c: list[Tensor]) -> list[Tensor]:
    """What a distance takes the length of: the parts of query minus candidate."""
    if not get_score(score).is_rscf:
        return [a - b for a, b in zip(q, c, strict=True)]
    if score == "rscf_rotate":
        moved = list(turned(q, c)) if len(c) == 3 else q[:2]
        return [moved[i] - q[2 + i] * c[i] for i in (0, 1)]
    moved = [q[0] + q[2] * c[1]] if len(c) == 2 else q[:1]
    return [moved[0] - q[1] * c[0]]


def turned(q: list[Tensor], c: list[Tensor]) -> tuple[Tensor, Tensor]:
    """``rscf_rotate``: the query after its turn by ``a b``."""
    cosine, sine = cos_sin(q[4] * c[2])
    return q[0] * cosine - q[1] * sine, q[0] * sine + q[1] * cosine


def is_root(score: str) -> bool:
    """Whether the score is the root of the sum of its terms."""
    return score in ("l2", "rscf_l2")


def rounded_sqrt(values: Tensor) -> Tensor:
    """Correctly rounded square root of float64 values, whatever their device.

    On the CPU ``torch.sqrt`` may call a vector library that is one ulp off (in 0.9 % of uniform
    values, measured).
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.asarray(np.sqrt(values.numpy())))
    return values.sqrt()


def crop(rows: Tensor, score: str, dim: int | None, planes: int | None = None) -> Tensor:
    """Rows ``[..., G]`` cut to their first ``dim`` features, in the same layout.

    ``planes``: of rows of so many; those of a candidate by default.
    """
    if dim is None:
        return rows
    starts, step = get_score(score).columns(rows.shape[-1], planes)
    if step == 1:
        return torch.cat([rows[..., start : start + dim] for start in starts], -1)
    return rows[..., : step * dim]


def rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    nan_worst: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The specification of :func:`kgfast.ops.rank_counts`; see there."""
    crops = [None] if dims is None else list(dims)
    pairs = _excluded_pairs(targets, exclude_indptr, exclude_indices, candidate_ids)
    with ieee_arithmetic(len(queries) * candidates.numel()):
        results = []
        for dim in crops:
            operands = Operands(queries, candidates, bias, factor, score, dim, nan_worst)
            target_scores = operands.pairs(_places(targets), targets)
            raw = _count_candidates(operands, target_scores, targets, candidate_ids)
            excluded = _count_pairs(operands, target_scores, *pairs)
            results.append((*raw, *excluded))
    stacked = [torch.stack(column) for column in zip(*results, strict=True)]
    greater, equal, greater_excluded, equal_excluded = (
        column[0] if dims is None else column for column in stacked
    )
    return greater, equal, greater_excluded, equal_excluded


class Operands:
    """The operands of one crop, scored in tiles of rows that are read (and checked) in place."""

    def __init__(
        self,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        factor: Tensor | None,
        score: str,
        dim: int | None,
        nan_worst: bool,
    ) -> None:
        planes = get_score(score).query_planes(factor is not None)
        self.queries, self.candidates = crop(queries, score, dim, planes), candidates
        self.score, self.dim, self.nan_worst = score, dim, nan_worst
        self.factor = factor
        self.bias = None if bias is None else bias.expand(len(candidates))
        if not nan_worst:
            check_finite("queries", self.queries)

    def tile(self, rows: slice, ids: Tensor) -> Tensor:
        """Scores of a slice of queries against candidates ``ids``: ``[b, n]``."""
        return self._scores(self.queries[rows, None, :], ids)

    def pairs(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Scores of queries ``rows[P]`` with candidates ``ids[P]``, ``[P]``."""
        step = max(1, TILE // max(1, self.candidates.shape[1]))
        parts = [
            self._scores(self.queries[rows[i : i + step]], ids[i : i + step])
            for i in range(0, len(ids), step)
        ]
        return torch.cat(parts) if parts else ids.new_empty(0, dtype=torch.float64)

    def _scores(self, queries: Tensor, ids: Tensor) -> Tensor:
        table = crop(self.candidates[ids], self.score, self.dim)
        factor = None if self.factor is None else self.factor[ids, : self.dim]
        if not self.nan_worst:
            check_finite("candidates", table, ids)
            if factor is not None:
                check_finite("factor", factor, ids)
        bias = None if self.bias is None else self.bias[ids]
        return canonical_scores(queries, table, self.score, bias, factor)


def _count_candidates(
    operands: Operands, target_scores: Tensor, targets: Tensor, candidate_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """How many candidates other than the target score above it, and how many equal it."""
    if candidate_ids is None:
        candidate_ids = _places(operands.candidates)
    greater, equal = torch.zeros_like(targets), torch.zeros_like(targets)
    width = max(1, operands.candidates.shape[1])
    columns = max(1, min(len(candidate_ids), TILE // width))
    rows = max(1, TILE // columns)
    for i in range(0, len(targets), rows):
        block = slice(i, i + rows)
        threshold = target_scores[block, None]
        for j in range(0, len(candidate_ids), columns):
            ids = candidate_ids[j : j + columns]
            scores = operands.tile(block, ids)  # [b, n]
            other = ids != targets[block, None]
            greater[block] += (_beats(scores, threshold) & other).sum(1)
            equal[block] += ((scores == threshold) & other).sum(1)
    return greater, equal


def _beats(scores: Tensor, threshold: Tensor) -> Tensor:
    """Candidates that rank above the target: all of them where the target's score is NaN."""
    return (scores > threshold) | threshold.isnan()


def _count_pairs(
    operands: Operands, target_scores: Tensor, rows: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The same two counts over explicit (query, candidate) pairs."""
    scores, threshold = operands.pairs(rows, ids), target_scores[rows]
    zeros = rows.new_zeros(len(target_scores))
    greater = zeros.index_add(0, rows, _beats(scores, threshold).long())
    equal = zeros.index_add(0, rows, (scores == threshold).long())
    return greater, equal


def _excluded_pairs(
    targets: Tensor, indptr: Tensor, indices: Tensor, candidate_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Distinct (query, known id) pairs that are candidates and not the query's target."""
    rows = torch.repeat_interleave(_places(targets), indptr[1:] - indptr[:-1])
    pairs = torch.stack([rows, indices[int(indptr[0]) : int(indptr[-1])]], 1).unique(dim=0)
    rows, ids = pairs[:, 0], pairs[:, 1]
    keep = ids != targets[rows]
    if candidate_ids is not None:
        keep &= torch.isin(ids, candidate_ids)
    return rows[keep], ids[keep]


def _places(rows: Tensor) -> Tensor:
    """The number of each of the rows, ``[R]``, on their device."""
    return torch.arange(len(rows), dtype=torch.int64, device=rows.device)

"""Canonical scores, by which ranks are defined, and slopes: float64, term by term.

To add a term, extend :func:`_length` and :func:`_length_slopes`; everything else derives from the
facts of a score.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..scores import Moves, Score, Term
from .trig import cos_sin


def canonical_scores(
    queries: Tensor,
    rows: Tensor,
    score: Score,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Return canonical float64 scores, broadcast over the leading axes of all operands.

    ``queries [..., F]``, ``rows [..., G]`` and their ``factor [..., D]`` have any floating dtype;
    the bias broadcasts against the result and is added last.
    """
    width = score.num_features(rows.shape[-1])
    total = crop_scores(queries, rows, score, [width], factor)[0]
    return total if bias is None else total + bias.double()


def crop_scores(
    queries: Tensor,
    rows: Tensor,
    score: Score,
    crops: list[int],
    factor: Tensor | None = None,
) -> Tensor:
    """Return canonical scores without bias at every crop, float64 ``[C, ...]``."""
    sums = _running_sums(queries, rows, score, crops, factor)
    if score.root:
        sums = rounded_sqrt(sums)
    return -sums if score.monotone else sums


def crop_gradients(
    place: int,
    grad: Tensor,
    operands: tuple[Tensor, Tensor, Tensor | None],
    score: Score,
    crops: list[int],
) -> Iterator[tuple[int, Tensor]]:
    """Yield columns of operand ``place`` (0 queries, 1 rows, 2 factor) and gradients.

    A gradient is ``d scores / d operand[column]`` times ``grad [C, ...]``, summed over the crops.
    If a distance takes the length of 0, the gradient is 0.
    """
    queries, rows, factor = operands
    coefficients = -grad.double() if score.monotone else grad.double()
    if score.root:
        norms = rounded_sqrt(_running_sums(queries, rows, score, crops, factor))
        coefficients = _over(coefficients, norms)
    operand = operands[place]
    assert operand is not None
    width = operand.shape[-1]
    planes = (score.query_planes(factor is not None), score.planes, 1)[place]
    starts, step = score.columns(width, planes)
    for feature, (q, c) in enumerate(_features(queries, rows, score, factor, max(crops))):
        inside = [crop for crop, dim in enumerate(crops) if dim > feature]
        coefficient = coefficients[inside].sum(0)
        for start, slope in zip(starts, slopes(place, score, q, c), strict=True):
            yield start + step * feature, coefficient * slope


def _running_sums(
    queries: Tensor, rows: Tensor, score: Score, crops: list[int], factor: Tensor | None
) -> Tensor:
    """Sum the terms of features ``0 .. d-1``, in order, for every ``d`` of the crops."""
    shape = torch.broadcast_shapes(queries.shape[:-1], rows.shape[:-1])
    total = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    sums = torch.zeros(len(crops), *shape, dtype=torch.float64, device=rows.device)
    for feature, (q, c) in enumerate(_features(queries, rows, score, factor, max(crops))):
        total = total + term(score, q, c)
        for crop, dim in enumerate(crops):
            if dim == feature + 1:
                sums[crop] = total
    return sums


def _features(
    queries: Tensor, rows: Tensor, score: Score, factor: Tensor | None, num_features: int
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    q_starts, step = score.columns(queries.shape[-1], score.query_planes(factor is not None))
    c_starts, _ = score.columns(rows.shape[-1])
    for feature in range(num_features):
        q = [queries[..., start + step * feature].double() for start in q_starts]
        c = [rows[..., start + step * feature].double() for start in c_starts]
        yield q, c if factor is None else [*c, factor[..., feature].double()]


def term(score: Score, q: list[Tensor], c: list[Tensor]) -> Tensor:
    """Return one feature's share of a score; every operation rounds separately."""
    if not score.monotone:
        return q[0] * c[0]
    return _length(score, _differences(score, q, c))


def _length(score: Score, x: list[Tensor]) -> Tensor:
    if score.term is Term.MAGNITUDE:
        return x[0].abs()
    if score.term is Term.SQUARE:
        return x[0] * x[0]
    if score.term is Term.MODULUS:
        return rounded_sqrt(x[0] * x[0] + x[1] * x[1])
    raise ValueError(f"score: the reference has no term of {score.name!r}: {score.equation}")


def _length_slopes(score: Score, x: list[Tensor]) -> list[Tensor]:
    """Return derivatives of :func:`_length` by each part; half of these for roots."""
    if score.term is Term.MAGNITUDE:
        return [x[0].sign()]
    if score.term is Term.SQUARE:
        return x
    if score.term is Term.MODULUS:
        modulus = _length(score, x)
        return [_over(number, modulus) for number in x]
    raise ValueError(f"score: the reference has no slopes of {score.name!r}: {score.equation}")


def _differences(score: Score, q: list[Tensor], c: list[Tensor]) -> list[Tensor]:
    planes = score.planes
    if not score.is_rscf:
        return [a - b for a, b in zip(q, c, strict=True)]
    moved = q[:planes]
    if len(c) > planes and score.moves is Moves.PHASE:
        moved = list(_turned(q, c))
    elif len(c) > planes:
        moved = [q[0] + q[2] * c[1]]
    return [moved[i] - q[planes + i] * c[i] for i in range(planes)]


def _turned(q: list[Tensor], c: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Turn the query by the angle ``a b``."""
    cosine, sine = cos_sin(q[4] * c[2])
    return q[0] * cosine - q[1] * sine, q[0] * sine + q[1] * cosine


def slopes(place: int, score: Score, q: list[Tensor], c: list[Tensor]) -> list[Tensor]:
    """Return derivatives of one feature's term by each plane (root: times the norm)."""
    if not score.monotone:
        return c if place == 0 else q
    x = _length_slopes(score, _differences(score, q, c))
    if not score.is_rscf:
        return x if place == 0 else [-slope for slope in x]
    if place == 1:
        return [-slope * q[score.planes + i] for i, slope in enumerate(x)]
    by_query, by_move = _slopes_by_query(score, x, q, c)
    if place == 2:
        assert by_move is not None
        return [by_move * q[-1]]
    by_query += [-slope * c[i] for i, slope in enumerate(x)]
    return by_query if by_move is None else [*by_query, by_move * c[-1]]


def _slopes_by_query(
    score: Score, x: list[Tensor], q: list[Tensor], c: list[Tensor]
) -> tuple[list[Tensor], Tensor | None]:
    """Return slopes by the query and by the move ``a b``, given slopes by differences."""
    if len(c) == score.planes:
        return list(x), None
    if score.moves is Moves.SHIFT:
        return list(x), x[0]
    re, im = _turned(q, c)
    cosine, sine = cos_sin(q[4] * c[2])
    by_query = [x[0] * cosine + x[1] * sine, x[1] * cosine - x[0] * sine]
    return by_query, x[1] * re - x[0] * im


def _over(values: Tensor, lengths: Tensor) -> Tensor:
    """Divide; 0 where the length is 0."""
    return torch.where(lengths == 0, 0.0, values / lengths)


def rounded_sqrt(values: Tensor) -> Tensor:
    """Return the correctly rounded square root of float64 values, on any device.

    On the CPU ``torch.sqrt`` may call a vector library that is one ulp off (in 0.9 % of uniform
    values, measured).
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.asarray(np.sqrt(values.numpy())))
    return values.sqrt()


def crop(rows: Tensor, score: Score, dim: int | None, planes: int | None = None) -> Tensor:
    """Cut rows ``[..., G]`` to the first ``dim`` features, in the given layout.

    ``planes`` is the number of planes of rows; by default that of a candidate.
    """
    planes = planes or score.planes
    if dim in (None, rows.shape[-1] // planes):
        return rows
    starts, step = score.columns(rows.shape[-1], planes)
    if step == 1:
        return torch.cat([rows[..., start : start + dim] for start in starts], -1)
    return rows[..., : step * dim]

"""Slow, obvious answers: canonical scores, ranks and the best k in numpy, losses in dense torch.

The first half is written from docs/explanation/exactness.md alone and shares no line
with the package.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
# Planes of a query (without factor), of a candidate, and whether they alternate.
LAYOUTS = {
    "dot": (1, 1, False),
    "l1": (1, 1, False),
    "l2": (1, 1, False),
    "rotate": (2, 2, False),
    "rotate_interleaved": (2, 2, True),
    "rscf_rotate": (4, 2, False),
    "rscf_l1": (2, 1, False),
    "rscf_l2": (2, 1, False),
}
_PI_OVER_2 = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21)
_SINE = (-0.16666666666666632, 8.33333333332249e-03, -1.984126982985795e-04,
         2.7557313707070068e-06, -2.5050760253406863e-08, 1.5896909952115501e-10)  # fmt: skip
_COSINE = (0.0416666666666666, -1.388888888887411e-03, 2.480158728947673e-05,
           -2.7557314351390663e-07, 2.087572321298175e-09, -1.1359647557788195e-11)  # fmt: skip


def numbers(values: Tensor) -> Floats:
    """Convert stored values to float64, exactly."""
    return values.detach().double().resolve_neg().contiguous().numpy().copy()


def planes(rows: Any, count: int, interleaved: bool) -> list[Any]:
    """Split rows of numpy or torch into planes ``[..., D]``."""
    if interleaved:
        return [rows[..., plane::count] for plane in range(count)]
    width = rows.shape[-1] // count
    return [rows[..., plane * width : (plane + 1) * width] for plane in range(count)]


def sine_cosine(x: Floats) -> tuple[Floats, Floats]:
    """Compute the sine and cosine of the definition: NaN beyond 2^20."""
    turns = np.rint(x * 0.6366197723675814)
    r = x
    for part in _PI_OVER_2:
        r = r - turns * part
    r = np.where(np.abs(x) > 2.0**20, np.nan, r)
    z = r * r
    sine, cosine = np.full_like(z, _SINE[-1]), np.full_like(z, _COSINE[-1])
    for s, c in zip(_SINE[-2::-1], _COSINE[-2::-1], strict=True):
        sine, cosine = sine * z + s, cosine * z + c
    sine, cosine = r + (r * z) * sine, (1.0 - 0.5 * z) + (z * z) * cosine
    quadrant = np.mod(turns, 4.0)
    odd = (quadrant == 1) | (quadrant == 3)
    re, im = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    re = np.where((quadrant == 1) | (quadrant == 2), -re, re)
    return np.where(quadrant >= 2, -im, im), re


def canonical_scores(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dim: int | None = None,
) -> Floats:
    """Compute the canonical score of every query with every candidate, ``[B, N]``."""
    of_query, of_candidate, interleaved = LAYOUTS[score]
    of_query += factor is not None
    q = [plane[:, None, :dim] for plane in planes(numbers(queries), of_query, interleaved)]
    c = [plane[None, :, :dim] for plane in planes(numbers(table), of_candidate, interleaved)]
    b = None if factor is None else numbers(factor)[None]
    total = np.zeros((len(queries), len(table)))
    with np.errstate(all="ignore"):
        for d in range(c[0].shape[-1]):
            at = [plane[..., d] for plane in q]
            of = [plane[..., d] for plane in c]
            total = total + _term(score, at, of, None if b is None else b[..., d])
        if score in ("l2", "rscf_l2"):
            total = np.sqrt(total)
        total = total if score == "dot" else -total
        return total if bias is None else total + numbers(bias.expand(len(table)))[None]


def unit_rows(table: Tensor) -> Floats:
    """Divide rows by their lengths, whose squares are added by halves."""
    found = numbers(table)
    for row in found:
        row /= np.abs(row).max()
        squares = row * row
        while len(squares) > 1:
            half = -(-len(squares) // 2)
            squares = squares[:half] + np.append(squares[half:], np.zeros(len(squares) % 2))
        row /= np.sqrt(squares[0])
    return found


def _term(score: str, q: list[Floats], c: list[Floats], b: Floats | None) -> Floats:
    if score == "dot":
        return q[0] * c[0]
    if score in ("l1", "l2"):
        difference = q[0] - c[0]
    elif score in ("rscf_l1", "rscf_l2"):
        moved = q[0] if b is None else q[0] + q[2] * b
        difference = moved - q[1] * c[0]
    else:
        return _modulus(score, q, c, b)
    return difference * difference if score.endswith("l2") else np.abs(difference)


def _modulus(score: str, q: list[Floats], c: list[Floats], b: Floats | None) -> Floats:
    if score != "rscf_rotate":
        re, im = q[0] - c[0], q[1] - c[1]
        return np.sqrt(re * re + im * im)
    re, im = q[0], q[1]
    if b is not None:
        sine, cosine = sine_cosine(q[4] * b)
        re, im = q[0] * cosine - q[1] * sine, q[0] * sine + q[1] * cosine
    re, im = re - q[2] * c[0], im - q[3] * c[1]
    return np.sqrt(re * re + im * im)


def counts(
    values: Floats,
    targets: Sequence[int],
    known: Sequence[Sequence[int]],
    subset: Sequence[int] | None = None,
) -> list[list[int]]:
    """Count greater and equal candidates, and those among the known answers, ``[4][B]``."""
    candidate = np.zeros(values.shape[1], dtype=bool)
    candidate[list(range(values.shape[1]) if subset is None else subset)] = True
    result: list[list[int]] = [[], [], [], []]
    for row, (target, answers) in enumerate(zip(targets, known, strict=True)):
        threshold = values[row, target]
        other = candidate.copy()
        other[target] = False
        greater = (values[row] > threshold) | np.isnan(threshold)
        equal = values[row] == threshold
        excluded = np.zeros_like(other)
        excluded[list(answers)] = True
        excluded &= other
        for place, counted in enumerate(
            (greater & other, equal & other, greater & excluded, equal & excluded)
        ):
            result[place].append(int(counted.sum()))
    return result


def best(
    values: Floats, k: int, known: Sequence[Sequence[int]], subset: Sequence[int] | None = None
) -> tuple[list[list[int]], Floats]:
    """Find ids (-1: none) and canonical scores of the best k, the lowest id first among equals."""
    ids = np.full((len(values), k), -1)
    found = np.full((len(values), k), -np.inf)
    for row, answers in enumerate(known):
        allowed = set(range(values.shape[1]) if subset is None else subset) - set(answers)
        places = np.array(sorted(allowed), dtype=np.int64)
        own = values[row, places]
        is_nan = np.isnan(own)
        order = np.lexsort((places, np.where(is_nan, 0.0, -own), is_nan))[:k]
        ids[row, : len(order)] = places[order]
        found[row, : len(order)] = own[order]
    return ids.tolist(), found


def dense_scores(
    queries: Tensor,
    rows: Tensor,
    score: str,
    *,
    bias: Tensor | None = None,
    dim: int | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Score ``queries [..., F]`` with ``rows [..., G]`` by broadcasting; torch differentiates.

    At distance 0 the gradient of torch's norms is 0, as ours.
    """
    if score.startswith("rscf"):
        x, score = _moved(queries, rows, factor, dim, score)
    else:
        _, count, interleaved = LAYOUTS[score]
        q, c = (
            torch.stack(planes(it, count, interleaved), -2)[..., :dim] for it in (queries, rows)
        )  # [..., planes, D]
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


def _moved(
    queries: Tensor, rows: Tensor, factor: Tensor | None, dim: int | None, score: str
) -> tuple[Tensor, str]:
    """Subtract rows from moved queries ``[q | w | a]``, by the equations of the paper."""
    planes = 2 if score == "rscf_rotate" else 1
    width = rows.shape[-1] // planes
    q, c = (it.unflatten(-1, (-1, width))[..., :dim] for it in (queries, rows))
    x, w = q[..., :planes, :], q[..., planes : 2 * planes, :]
    if factor is not None:
        a, b = q[..., 2 * planes, :], factor[..., :dim]
        if planes == 2:
            turned = torch.complex(x[..., 0, :], x[..., 1, :]) * torch.exp(1j * a * b)
            x = torch.stack([turned.real, turned.imag], -2)
        else:
            x = x + (a * b)[..., None, :]
    return x - w * c, {"rscf_rotate": "rotate", "rscf_l1": "l1", "rscf_l2": "l2"}[score]


def softplus(x: Tensor) -> Tensor:
    """Compute ``log(1 + exp(x))``; torch's own is off by 2e-9 from 20 on."""
    return torch.logaddexp(x, torch.zeros_like(x))


def binary_cross_entropy(
    scores: Tensor, positives: Sequence[Iterable[int]], a: float, c: float
) -> Tensor:
    """Compute ``sum softplus(x) - c sum x - a sum of positives``, each positive once."""
    labels = torch.full_like(scores, c, requires_grad=False)
    for row, ids in enumerate(positives):
        labels[row, sorted(set(ids))] += a
    return (softplus(scores) - labels * scores).sum(-1)


def softmax_cross_entropy(scores: Tensor, targets: Tensor, eps: float) -> Tensor:
    """Compute ``logsumexp(x) - (1 - eps) x_target - eps / N sum x``."""
    own = scores.gather(-1, targets[:, None])[:, 0]
    return scores.logsumexp(-1) - (1 - eps) * own - eps * scores.mean(-1)


def assert_accurate(got: Tensor, exact: Tensor, dense: Tensor | None = None) -> None:
    """Allow 1e-5 of the largest number, or twice the error of dense float32."""
    assert got.shape == exact.shape
    if not exact.numel():
        return
    allowed = 1e-5 * exact.abs().max()
    if dense is not None:
        allowed = torch.maximum(allowed, 2 * (dense.double() - exact).abs().max())
    error = (got.double() - exact).abs().max()
    assert error <= allowed, f"error {error:.3g} > {allowed:.3g}"

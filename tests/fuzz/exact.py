"""The oracle of ranks and of the best k: canonical float64 scores of every pair, in numpy.

Written from docs/exactness.md alone; it shares no line with the package.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
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
    """The stored values, exactly, as float64."""
    return values.detach().double().resolve_neg().contiguous().numpy().copy()


def stacked(columns: Sequence[Floats]) -> Floats:
    """Columns ``[B]`` side by side, ``[B, C]``."""
    return np.stack(columns, 1)


def planes(rows: Floats, count: int, interleaved: bool) -> list[Floats]:
    """The planes ``[*, D]`` of rows."""
    if interleaved:
        return [rows[:, plane::count] for plane in range(count)]
    width = rows.shape[1] // count
    return [rows[:, plane * width : (plane + 1) * width] for plane in range(count)]


def sine_cosine(x: Floats) -> tuple[Floats, Floats]:
    """The sine and cosine of the definition: NaN beyond 2^20."""
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


def scores(
    queries: Tensor,
    table: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dim: int | None = None,
) -> Floats:
    """The canonical score of every query with every candidate, ``[B, N]``."""
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
    """Greater, equal, and both of the known answers, ``[4][B]``."""
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
    values: Floats,
    k: int,
    known: Sequence[Sequence[int]],
    subset: Sequence[int] | None = None,
) -> tuple[list[list[int]], Floats]:
    """Ids (-1: none) and canonical scores of the best k, the lowest id first among equals."""
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

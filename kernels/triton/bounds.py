"""The error of a float32 sweep against the canonical score, and the thresholds that it gives.

With u = 2**-24, from standard rounding analysis; derivations in docs/exactness.md. A sum runs over
at most 64 features and is then folded into a total, so that a term meets ``min(D, 64) +
ceil(D / 64)`` additions, in whatever order lanes are combined. Contracting a product and a sum
only removes a rounding. Denormals may be flushed anywhere in the sweep.

``tl.sqrt`` is ``sqrt.approx.ftz.f32`` on NVIDIA, whose maximum relative error over the positive
finite numbers is 2**-23 (PTX ISA, 9.7.3, sqrt), and ``v_sqrt_f32``, 1 ulp, on AMD; twice that is
assumed. Both take denormals for zero. The interpreter's root is exact.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..scores import Score

UNIT = 2.0**-24
SUM_BLOCK = 64  # as in sweep.py and pairs.py
SQRT_ERROR = 2.0**-22
ROUND_UP = 1 + 16 * UNIT  # an error is rounded four times in float32: (1 - u)**-4 < 1 + 16 u
LEAST = 2.0**-120  # above all that denormals can take from a threshold


@dataclass(frozen=True)
class ErrorBound:
    """How far a swept distance can be from the canonical one.

    ``|swept - canonical| <= rel * |canonical| + absolute + per_norm * norm(c)
    + (per_query + per_pair * norm(c)) * norm(q)``
    """

    rel: float
    absolute: float
    per_query: float = 0.0
    per_pair: float = 0.0
    per_norm: float = 0.0
    norm: int = 0  # 0: no norm is needed, 1: sum of magnitudes, 2: Euclidean


def error_bound(score: Score, num_features: int, rounded_inputs: bool) -> ErrorBound:
    """The bound of a score; ``rounded_inputs``: float64 operands are rounded before the sweep."""
    d = float(num_features)
    steps = min(d, SUM_BLOCK) + math.ceil(d / SUM_BLOCK) + score.term_ulps
    gamma = steps * UNIT / (1 - steps * UNIT) if steps * UNIT < 0.5 else math.inf
    canonical = (d + 8) * 2.0**-52
    if score.name == "dot":
        return ErrorBound(
            rel=8 * UNIT,
            absolute=d * 2.0**-124,
            per_query=math.sqrt(d) * 2.0**-125,  # flushed denormals
            per_pair=(gamma + (3 * UNIT if rounded_inputs else 0) + canonical) * (1 + 2.0**-10),
            per_norm=math.sqrt(d) * 2.0**-125,
            norm=2,
        )
    if score.name == "l1":
        rel, absolute = gamma + canonical, d * 2.0**-124
    elif score.name == "l2":  # of the squares; the root halves it and adds its own
        rel, absolute = gamma + SQRT_ERROR + canonical, math.sqrt(d) * 2.0**-61
    else:
        rel, absolute = (1 + SQRT_ERROR) * (1 + gamma) - 1 + canonical, d * 2.0**-61
    rounding = 1.01 * UNIT if rounded_inputs else 0.0
    norm = (2 if score.name == "l2" else 1) if rounded_inputs else 0
    return ErrorBound(rel + 8 * UNIT, absolute, rounding, 0.0, rounding, norm)


def thresholds(
    bound: ErrorBound,
    target_scores: Tensor,
    query_norms: Tensor | None,
    bias_magnitude: Tensor | None,
) -> Tensor:
    """What decides a query's pairs: ``[3, B]`` float32.

    Rows: minus the target's score, NaN where there is none; ``base``; ``slope``. With
    ``tau = bias + row 0`` and ``err = rel * |tau| + base + slope * norm(c)``, a distance below
    ``tau - err`` beats the target, one above ``tau + err`` does not.
    """
    size = target_scores.abs().nan_to_num(0.0)
    base = 4 * UNIT * (size if bias_magnitude is None else size + bias_magnitude) + bound.absolute
    slope = torch.full_like(base, bound.per_norm)
    if query_norms is not None:
        norms = query_norms.double()
        base = base + bound.per_query * norms
        slope = slope + bound.per_pair * norms
    rows = [-target_scores, base * ROUND_UP + LEAST, slope * ROUND_UP + LEAST]
    return torch.stack(rows).float()

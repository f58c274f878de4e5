"""Error of a float32 sweep against the canonical score, and thresholds from this error.

The bounds come from standard rounding analysis with u = 2**-24; derivations in
docs/explanation/exactness.md. A sum runs over at most 64 features and is then folded into a total,
so that a term meets ``min(D, 64) + ceil(D / 64)`` additions, in whatever order lanes are combined.
Contracting a product and a sum only removes a rounding. Denormals may be flushed anywhere in the
sweep.

``tl.sqrt`` is ``sqrt.approx.ftz.f32`` on NVIDIA, with a maximum relative error of 2**-23 over the
positive finite numbers (PTX ISA, 9.7.3, sqrt). On AMD it is ``v_sqrt_f32``, 1 ulp. Twice that error
is assumed. Both take denormals for zero. The interpreter's root is exact.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...scores import Score, Term
from ..device.arguments import Norm
from .views import term_of

UNIT = 2.0**-24
SUM_BLOCK = 64  # same number as in device/sweep.py and known.py
SQRT_ERROR = 2.0**-22
ROUND_UP = 1 + 16 * UNIT  # an error is rounded four times in float32: (1 - u)**-4 < 1 + 16 u
SCALE_ULPS = 4  # a scaled candidate errs by 3 u of the query and 4 u of the difference
SHIFTED_ULPS, TURNED_ULPS = 10, 32  # ulps of the query's size: shifted or not moved; turned
SHIFT_ULPS, PHASE_ULPS = 20, 16  # ulps of |a| (|b - 1| + 1), or of the phase times the query's size
VANISHED = 2.0**-124  # four numbers below float32's smallest normal one
LEAST = 2.0**-120  # above all that denormals can take from a threshold
_BOUNDED = Term.PRODUCT, Term.MAGNITUDE, Term.SQUARE, Term.MODULUS  # terms with a derived bound


@dataclass(frozen=True)
class ErrorBound:
    """Bound on the distance of a swept sum from the canonical sum.

    ``|swept - canonical| <= rel * |canonical| + absolute + per_norm * norm(c)
    + (per_query + per_pair * norm(c)) * norm(q) + per_move * norm(a) * norm(c)``

    Rscf scores take the sizes of device/moved_queries.py for ``norm(q)``, of the moved query, and
    ``norm(a)``; ``norm(c)`` is then the largest ``|b - 1|``.
    """

    rel: float
    absolute: float
    per_query: float = 0.0
    per_pair: float = 0.0
    per_norm: float = 0.0
    norm: Norm = Norm.NONE
    per_move: float = 0.0


def error_bound(
    score: Score, num_features: int, rounded_inputs: bool, has_factor: bool = False
) -> ErrorBound:
    """Return the bound of a score; ``rounded_inputs``: the sweep rounds float64 operands.

    The bound of a term without a derivation is infinite: canonical scores decide every pair.
    """
    d, term = float(num_features), term_of(score)
    if term not in _BOUNDED:
        return ErrorBound(rel=0.0, absolute=math.inf)
    folds = math.ceil(num_features / SUM_BLOCK)
    if score.is_rscf:
        steps = min(d, SUM_BLOCK) + folds + score.term_ulps + SCALE_ULPS
        return _rscf_bound(score, d, _gamma(steps), has_factor)
    gamma = _gamma(min(d, SUM_BLOCK) + folds + score.term_ulps)
    canonical = (d + 8) * 2.0**-52
    if term is Term.PRODUCT:
        return ErrorBound(
            rel=8 * UNIT,
            absolute=d * 2.0**-124,
            per_query=math.sqrt(d) * 2.0**-125,  # flushed denormals
            per_pair=(gamma + (3 * UNIT if rounded_inputs else 0) + canonical) * (1 + 2.0**-10),
            per_norm=math.sqrt(d) * 2.0**-125,
            norm=Norm.EUCLIDEAN,
        )
    norm = Norm.SUM
    if term is Term.MAGNITUDE:
        rel, absolute = gamma + canonical, d * 2.0**-124
    elif term is Term.SQUARE:  # bound of the squares; the root halves it and adds its own error
        rel, absolute = gamma + SQRT_ERROR + canonical, math.sqrt(d) * 2.0**-61
        norm = Norm.EUCLIDEAN
    else:
        rel, absolute = (1 + SQRT_ERROR) * (1 + gamma) - 1 + canonical, d * 2.0**-61
    if not rounded_inputs:
        return ErrorBound(rel + 8 * UNIT, absolute)
    return ErrorBound(rel + 8 * UNIT, absolute, 1.01 * UNIT, 0.0, 1.01 * UNIT, norm)


def _gamma(steps: float) -> float:
    return steps * UNIT / (1 - steps * UNIT) if steps * UNIT < 0.5 else math.inf


def _rscf_bound(score: Score, d: float, gamma: float, has_factor: bool) -> ErrorBound:
    """Bound an rscf score, also of operands that are rounded before the sweep."""
    canonical = (d + 24) * 2.0**-52
    if score.term is Term.MAGNITUDE:
        rel, absolute = gamma + canonical, d * 2.0**-120
    else:
        rel, absolute = gamma + SQRT_ERROR * (1 + gamma) + canonical, d * 2.0**-61
    is_phase = score.planes == 2 and has_factor
    per_query = (TURNED_ULPS if is_phase else SHIFTED_ULPS) * UNIT * (1 + gamma)
    per_move = (PHASE_ULPS if is_phase else SHIFT_ULPS) * UNIT * (1 + gamma) if has_factor else 0.0
    return ErrorBound(
        rel + 8 * UNIT,
        absolute,
        per_query,
        per_norm=d * VANISHED,
        norm=Norm.FACTOR if has_factor else Norm.NONE,
        per_move=per_move,
    )


def thresholds(
    bound: ErrorBound,
    target_scores: Tensor,
    query_norms: Tensor | None,
    bias_magnitude: Tensor | None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Return the numbers that decide a query's pairs: ``[3, B]`` float32; rscf scores ``[4, B]``.

    ``sizes`` are those of the queries of an rscf score, ``[4, B]`` (device/moved_queries.py).

    The rows are minus the target's score (NaN for none), ``base`` and ``slope``. With ``tau = bias
    + row 0`` and ``err = rel * |tau| + base + slope * norm(c)``, a distance below ``tau - err``
    beats the target, one above ``tau + err`` does not. The fourth is the largest move ``|a|``.
    """
    size = target_scores.abs().nan_to_num(0.0)
    base = 4 * UNIT * (size if bias_magnitude is None else size + bias_magnitude) + bound.absolute
    slope = torch.full_like(base, bound.per_norm)
    if query_norms is not None:
        norms = query_norms.double()
        base = base + bound.per_query * norms
        slope = slope + bound.per_pair * norms
    if sizes is not None:
        of_q, of_a, of_w, _ = sizes
        base = base + bound.per_query * of_q + VANISHED * of_w
        if bound.per_move:
            base = base + 2.0**-50 * of_a  # the canonical a b is rounded, too
            slope = slope + bound.per_move * of_a + VANISHED * of_q
    rows = [-target_scores, base * ROUND_UP + LEAST, slope * ROUND_UP + LEAST]
    if sizes is not None:
        rows.append(sizes[3] * ROUND_UP)
    return torch.stack(rows).float()


def tiled(thresholds: Tensor, queries: int) -> Tensor:
    """Return ``[R, B]`` as ``[tiles, R, queries]``; places past the last query have no target."""
    rows, count = thresholds.shape
    padded = torch.nn.functional.pad(thresholds, (0, -count % queries))
    padded[0, count:] = torch.nan
    return padded.view(rows, -1, queries).transpose(0, 1).contiguous()

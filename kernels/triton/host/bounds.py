"""Error of a float32 sweep against the canonical score, and the margins of thresholds.

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
from typing import NamedTuple

from ...scores import Score, Term
from ..device import sweep
from ..device.arguments import Norm
from .views import term_of

UNIT = 2.0**-24
SUM_BLOCK: int = sweep.SUM_BLOCK.value
SQRT_ERROR = 2.0**-22
ROUND_UP = 1 + 16 * UNIT  # an error is rounded four times in float32: (1 - u)**-4 < 1 + 16 u
SCALE_ULPS = 4  # a scaled candidate errs by 3 u of the query and 4 u of the difference
SHIFTED_ULPS, TURNED_ULPS = 10, 32  # ulps of the query's size: shifted or not moved; turned
SHIFT_ULPS, PHASE_ULPS = 20, 16  # ulps of |a| (|b - 1| + 1), or of the phase times the query's size
VANISHED = 2.0**-124  # four numbers below float32's smallest normal one
_BOUNDED = Term.PRODUCT, Term.MAGNITUDE, Term.SQUARE, Term.MODULUS  # terms with a derived bound


class ErrorBound(NamedTuple):
    """Bound on the distance of a swept sum from the canonical sum.

    ``|swept - canonical| <= rel * |canonical| + base + slope * norm(c)``, where base and slope are
    constants plus factors times ``norm(q)``. Rscf scores have the sizes of device/moved_queries.py
    in place of ``norm(q)``, and a third row, the largest move; ``norm(c)`` is then the largest
    ``|b - 1|``.
    """

    rel: float
    norm: Norm
    margins: tuple[float, ...]  # of each row a constant, and a factor of each norm


def rounded(*numbers: float) -> tuple[float, ...]:
    """Return the numbers, increased so that a kernel's float32 of each is no smaller."""
    return tuple(number * (1 + 2 * UNIT) for number in numbers)


def error_bound(
    score: Score, num_features: int, rounded_inputs: bool, has_factor: bool = False
) -> ErrorBound:
    """Return the bound of a score; ``rounded_inputs``: the sweep rounds float64 operands.

    The bound of a term without a derivation is infinite: canonical scores decide every pair.
    """
    d, term = float(num_features), term_of(score)
    if term not in _BOUNDED:
        others = 14 if score.is_rscf else 1  # margins are a base and a slope, or three with factors
        return ErrorBound(0.0, Norm.NONE, (math.inf, *[0.0] * others))
    folds = math.ceil(num_features / SUM_BLOCK)
    if score.is_rscf:
        steps = min(d, SUM_BLOCK) + folds + score.term_ulps + SCALE_ULPS
        return _rscf_bound(score, d, _gamma(steps), has_factor)
    gamma = _gamma(min(d, SUM_BLOCK) + folds + score.term_ulps)
    canonical = (d + 8) * 2.0**-52
    if term is Term.PRODUCT:
        vanished = math.sqrt(d) * 2.0**-125  # flushed denormals
        of_pair = (gamma + (3 * UNIT if rounded_inputs else 0) + canonical) * (1 + 2.0**-10)
        margins = rounded(d * 2.0**-124, vanished, vanished, of_pair)
        return ErrorBound(8 * UNIT, Norm.EUCLIDEAN, margins)
    norm = Norm.SUM
    if term is Term.MAGNITUDE:
        rel, absolute = gamma + canonical, d * 2.0**-124
    elif term is Term.SQUARE:  # bound of the squares; the root halves it and adds its own error
        rel, absolute = gamma + SQRT_ERROR + canonical, math.sqrt(d) * 2.0**-61
        norm = Norm.EUCLIDEAN
    else:
        rel, absolute = (1 + SQRT_ERROR) * (1 + gamma) - 1 + canonical, d * 2.0**-61
    if not rounded_inputs:
        return ErrorBound(rel + 8 * UNIT, Norm.NONE, rounded(absolute, 0.0))
    return ErrorBound(rel + 8 * UNIT, norm, rounded(absolute, 1.01 * UNIT, 1.01 * UNIT, 0.0))


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
    base, slope = (absolute, per_query, 0.0, VANISHED, 0.0), (d * VANISHED, 0.0, 0.0, 0.0, 0.0)
    if has_factor:  # the canonical a b is rounded, too
        per_move = (PHASE_ULPS if is_phase else SHIFT_ULPS) * UNIT * (1 + gamma)
        base, slope = (*base[:2], 2.0**-50, *base[3:]), (slope[0], VANISHED, per_move, 0.0, 0.0)
    norm = Norm.FACTOR if has_factor else Norm.NONE
    return ErrorBound(rel + 8 * UNIT, norm, rounded(*base, *slope, 0.0, 0.0, 0.0, 0.0, 1.0))

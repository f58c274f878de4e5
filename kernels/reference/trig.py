"""Sine and cosine that are equal on every device: no mathematical library, only arithmetic.

With ``n = rint(x 2/pi)`` and ``r = x - n pi/2`` (pi/2 in three parts of 33 bits, so that the first
two products are exact), sine is ``r + r z S(z)`` and cosine ``(1 - z/2) + z z C(z)`` for ``z = r
r``, S and C in Horner form with the coefficients of fdlibm (``__kernel_sin``, ``__kernel_cos``).
``n mod 4`` selects sine or cosine, and the sign. Every operation is a float64 operation that rounds
separately.

Cost model: about forty elementwise passes.
"""

import torch
from torch import Tensor

LARGEST_PHASE = 2.0**20  # a larger n pi/2 would need more parts: NaN
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21)
_SINE = (
    1.5896909952115501e-10,
    -2.5050760253406863e-08,
    2.7557313707070068e-06,
    -1.984126982985795e-04,
    8.33333333332249e-03,
    -0.16666666666666632,
)
_COSINE = (
    -1.1359647557788195e-11,
    2.087572321298175e-09,
    -2.7557314351390663e-07,
    2.480158728947673e-05,
    -1.388888888887411e-03,
    0.0416666666666666,
)


def cos_sin(phases: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of float64 radians, within three units in the last place.

    Beyond ``LARGEST_PHASE`` in magnitude the result is NaN.
    """
    turns = (phases * _TWO_OVER_PI).round()
    r = phases
    for piece in _HALF_PI:
        r = r - turns * piece
    r = torch.where(phases.abs() > LARGEST_PHASE, torch.nan, r)
    z = r * r
    sine = r + (r * z) * _horner(z, _SINE)
    cosine = (1.0 - 0.5 * z) + (z * z) * _horner(z, _COSINE)
    quadrant = turns - 4.0 * (turns * 0.25).floor()
    swapped = (quadrant == 1.0) | (quadrant == 3.0)
    real, imaginary = torch.where(swapped, sine, cosine), torch.where(swapped, cosine, sine)
    real = torch.where((quadrant == 1.0) | (quadrant == 2.0), -real, real)
    return real, torch.where(quadrant >= 2.0, -imaginary, imaginary)


def _horner(z: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = torch.full_like(z, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * z + coefficient
    return total

"""The canonical sine and cosine, and the canonical terms that take them.

``kernels/reference/trig.py``, operation by operation; to be compiled without fusion.
"""

import triton
import triton.language as tl

from .terms import RSCF_L1, RSCF_ROTATE

_LARGEST_PHASE: tl.constexpr = tl.constexpr(1048576.0)
_ROUNDER: tl.constexpr = tl.constexpr(6755399441055744.0)  # 1.5 * 2**52: rounds to even, as rint
_TWO_OVER_PI: tl.constexpr = tl.constexpr(0.6366197723675814)
_HALF_PI_1: tl.constexpr = tl.constexpr(1.5707963267341256)
_HALF_PI_2: tl.constexpr = tl.constexpr(6.077100506303966e-11)
_HALF_PI_3: tl.constexpr = tl.constexpr(2.0222662487111665e-21)
_S: tl.constexpr = tl.constexpr(
    (
        1.5896909952115501e-10,
        -2.5050760253406863e-08,
        2.7557313707070068e-06,
        -1.984126982985795e-04,
        8.33333333332249e-03,
        -0.16666666666666632,
    )
)
_C: tl.constexpr = tl.constexpr(
    (
        -1.1359647557788195e-11,
        2.087572321298175e-09,
        -2.7557314351390663e-07,
        2.480158728947673e-05,
        -1.388888888887411e-03,
        0.0416666666666666,
    )
)


@triton.jit
def canonical_cos_sin(phase):
    """Cosine and sine of float64 radians; NaN beyond 2**20."""
    turns = (phase * _TWO_OVER_PI + _ROUNDER) - _ROUNDER
    r = phase - turns * _HALF_PI_1
    r = r - turns * _HALF_PI_2
    r = r - turns * _HALF_PI_3
    r = tl.where(tl.abs(phase) > _LARGEST_PHASE, float("nan"), r)
    z = r * r
    s = ((((z * _S[0] + _S[1]) * z + _S[2]) * z + _S[3]) * z + _S[4]) * z + _S[5]
    c = ((((z * _C[0] + _C[1]) * z + _C[2]) * z + _C[3]) * z + _C[4]) * z + _C[5]
    sine = r + (r * z) * s
    cosine = (1.0 - 0.5 * z) + (z * z) * c
    quadrant = turns - 4.0 * tl.floor(turns * 0.25)
    swapped = (quadrant == 1.0) | (quadrant == 3.0)
    real = tl.where(swapped, sine, cosine)
    imaginary = tl.where(swapped, cosine, sine)
    real = tl.where((quadrant == 1.0) | (quadrant == 2.0), -real, real)
    return real, tl.where(quadrant >= 2.0, -imaginary, imaginary)


@triton.jit
def canonical_filtered_term(
    q_re, q_im, w_re, w_im, a, c_re, c_im, b, SCORE: tl.constexpr, HAS_FACTOR: tl.constexpr
):
    """One feature's share of a canonical score: float64, every operation rounds on its own."""
    if SCORE == RSCF_ROTATE:
        re = q_re
        im = q_im
        if HAS_FACTOR:
            cosine, sine = canonical_cos_sin(a * b)
            re = q_re * cosine - q_im * sine
            im = q_re * sine + q_im * cosine
        x = re - w_re * c_re
        y = im - w_im * c_im
        return tl.sqrt(x * x + y * y)
    x = q_re
    if HAS_FACTOR:
        x = x + a * b
    x = x - w_re * c_re
    if SCORE == RSCF_L1:
        return tl.abs(x)
    return x * x

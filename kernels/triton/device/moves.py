"""Moves of queries, by ``a`` of the query and ``b`` of the factor: sines and cosines of a b.

If terms are moduli the move is a phase, else a shift. A move is computed in one of four ways:

    STILL   no factor: no sine
    NEAR    the sweep, ``q`` moved as by a factor of 1 and ``b - 1`` packed, |a (b - 1)| <= pi/2
    FAR     the sweep, any phase: less the nearest multiple of pi
    PLAIN   ``q, a, b`` as they are stored; the product in two parts, or canonical in float64

Cost model (issue slots): 10 for the two polynomials of NEAR, 21 with the reduction of FAR. The
polynomials err by less than 8 u each on 0 .. 1.62, rounding included
(docs/explanation/exactness.md). The canonical sine and cosine are those of
``kernels/reference/trig.py``, operation by operation, and must be compiled without fusion.
"""

import triton
import triton.language as tl

STILL: tl.constexpr = tl.constexpr(0)
NEAR: tl.constexpr = tl.constexpr(1)
FAR: tl.constexpr = tl.constexpr(2)
PLAIN: tl.constexpr = tl.constexpr(3)

NEAREST: tl.constexpr = tl.constexpr(1.5707)  # rounded products of NEAR stay below REACH
_REACH: tl.constexpr = tl.constexpr(1.62)
_INV_PI: tl.constexpr = tl.constexpr(0.3183098861837907)
_PI: tl.constexpr = tl.constexpr(3.1415927410125732)  # float32
_PI_LOW: tl.constexpr = tl.constexpr(-8.742277657347586e-08)
_ROUNDER: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2**23: the last bit is a unit
_C1: tl.constexpr = tl.constexpr(-0.4999992251396179)
_C2: tl.constexpr = tl.constexpr(0.041663698852062225)
_C3: tl.constexpr = tl.constexpr(-0.001385356648825109)
_C4: tl.constexpr = tl.constexpr(2.3137981770560145e-05)
_S1: tl.constexpr = tl.constexpr(-0.16666655242443085)
_S2: tl.constexpr = tl.constexpr(0.008332972414791584)
_S3: tl.constexpr = tl.constexpr(-0.00019803417671937495)
_S4: tl.constexpr = tl.constexpr(2.593088765934226e-06)

_LARGEST_PHASE: tl.constexpr = tl.constexpr(1048576.0)
_EVEN: tl.constexpr = tl.constexpr(6755399441055744.0)  # 1.5 * 2**52: rounds to even, as rint
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
def near_cos_sin(r):
    """Return float32 cosine and sine of ``|r| <= 1.62``."""
    z = r * r
    cosine = 1.0 + z * (_C1 + z * (_C2 + z * (_C3 + z * _C4)))
    sine = r * (1.0 + z * (_S1 + z * (_S2 + z * (_S3 + z * _S4))))
    return cosine, sine


@triton.jit
def flip(values, sign):
    """Return float32 values, with the sign bit flipped where ``sign`` is negative."""
    return (values.to(tl.uint32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def far_cos_sin(phase, low):
    """Return float32 cosine and sine of ``phase + low``.

    The error is that of ``near_cos_sin`` and of a phase error of at most 8 u |phase|. A phase too
    large to be reduced is clamped: the result is then arbitrary, but of about unit size.
    """
    rounded = tl.fma(phase, _INV_PI, _ROUNDER)
    n = rounded - _ROUNDER
    r = tl.fma(-n, _PI_LOW, tl.fma(-n, _PI, phase)) + low
    r = tl.minimum(tl.maximum(r, -_REACH), _REACH)
    cosine, sine = near_cos_sin(r)
    sign = rounded.to(tl.uint32, bitcast=True) << 31
    return flip(cosine, sign), flip(sine, sign)


@triton.jit
def move_cos_sin(a, b, MOVE: tl.constexpr):
    """Return cosine and sine of ``a b``, canonical ones of float64."""
    phase = a * b
    if a.dtype == tl.float64:
        cosine, sine = canonical_cos_sin(phase)
    elif MOVE == NEAR:
        cosine, sine = near_cos_sin(phase)
    elif MOVE == FAR:
        cosine, sine = far_cos_sin(phase, phase * 0.0)
    else:
        tl.static_assert(MOVE == PLAIN, "no sine of this move")
        cosine, sine = far_cos_sin(phase, tl.fma(a, b, -phase))
    return cosine, sine


@triton.jit
def canonical_cos_sin(phase):
    """Return cosine and sine of float64 radians; NaN beyond 2**20."""
    turns = (phase * _TWO_OVER_PI + _EVEN) - _EVEN
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

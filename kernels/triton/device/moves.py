"""The terms of the filtering scores: ``rscf_rotate``, ``rscf_l1``, ``rscf_l2``.

A query brings a scale ``w`` of the candidate and, where there is a factor ``b``, a move ``a``:
``q e^{iab} - w c`` or ``q + a b - w c``. How far a query moves is taken in one of four ways:

    STILL   no factor: no sine
    NEAR    the sweep, ``q`` with ``a`` folded in and ``b - 1`` packed, |a (b - 1)| <= pi/2
    FAR     the sweep, any angle: less the nearest multiple of pi
    PLAIN   ``q, a, b`` as they are stored; the product in two parts

Cost model (rscf_rotate, issue slots an element without loads): STILL 8, NEAR 21 (a product, 10 for
the two polynomials, 4 for the turn, 2 for the scale, 4 as rotate), FAR 32, PLAIN 34. Compiled for
sm_90 with loads: 7.9, 23.6, 34.8.

The polynomials err by less than 8 u each on 0 .. 1.62, rounding included (docs/exactness.md).
"""

import triton
import triton.language as tl

from .operands import widen
from .terms import RSCF_L1, RSCF_ROTATE

STILL: tl.constexpr = tl.constexpr(0)
NEAR: tl.constexpr = tl.constexpr(1)
FAR: tl.constexpr = tl.constexpr(2)
PLAIN: tl.constexpr = tl.constexpr(3)

NEAREST: tl.constexpr = tl.constexpr(1.5707)  # rounded products of what is NEAR stay below REACH
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


@triton.jit
def near_cos_sin(r):
    """Float32 cosine and sine of ``|r| <= 1.62``."""
    z = r * r
    cosine = 1.0 + z * (_C1 + z * (_C2 + z * (_C3 + z * _C4)))
    sine = r * (1.0 + z * (_S1 + z * (_S2 + z * (_S3 + z * _S4))))
    return cosine, sine


@triton.jit
def flip(values, sign):
    """Float32 values with the sign bit exchanged where that of ``sign`` is set."""
    return (values.to(tl.uint32, bitcast=True) ^ sign).to(tl.float32, bitcast=True)


@triton.jit
def far_cos_sin(angle, low):
    """Float32 cosine and sine of ``angle + low``.

    Their error is that of ``near_cos_sin`` and an angle of 8 u |angle| at most. An angle too large
    to be reduced is clamped: then the result, though arbitrary, is a number of about unit size.
    """
    rounded = tl.fma(angle, _INV_PI, _ROUNDER)
    n = rounded - _ROUNDER
    r = tl.fma(-n, _PI_LOW, tl.fma(-n, _PI, angle)) + low
    r = tl.minimum(tl.maximum(r, -_REACH), _REACH)
    cosine, sine = near_cos_sin(r)
    sign = rounded.to(tl.uint32, bitcast=True) << 31
    return flip(cosine, sign), flip(sine, sign)


@triton.jit
def move_cos_sin(a, b, MOVE: tl.constexpr):
    """Float32 cosine and sine of ``a b``."""
    angle = a * b
    if MOVE == NEAR:
        return near_cos_sin(angle)
    low = angle * 0.0
    if MOVE == PLAIN:
        low = tl.fma(a, b, -angle)
    return far_cos_sin(angle, low)


@triton.jit
def filtered_difference(
    q_re, q_im, w_re, w_im, a, n_re, n_im, b, SCORE: tl.constexpr, MOVE: tl.constexpr
):
    """What the term takes the length of, in float32; one number twice for real rows.

    ``n`` is minus the candidate: negated before it is broadcast, that costs nothing.
    """
    if SCORE != RSCF_ROTATE:
        x = q_re
        if MOVE != STILL:
            x = x + a * b
        x = x + w_re * n_re
        return x, x
    re = q_re
    im = q_im
    if MOVE != STILL:
        cosine, sine = move_cos_sin(a, b, MOVE)
        re = q_re * cosine - q_im * sine
        im = q_re * sine + q_im * cosine
    return re + w_re * n_re, im + w_im * n_im


@triton.jit
def add_filtered(
    total, q_re, q_im, w_re, w_im, a, n_re, n_im, b, SCORE: tl.constexpr, MOVE: tl.constexpr
):
    """``total`` plus the term of one feature."""
    x, y = filtered_difference(q_re, q_im, w_re, w_im, a, n_re, n_im, b, SCORE, MOVE)
    if SCORE == RSCF_ROTATE:
        return total + tl.sqrt(x * x + y * y)
    if SCORE == RSCF_L1:
        return total + tl.abs(x)
    return total + x * x


@triton.jit
def load_query(p_query, plane_stride, mask, PLANES: tl.constexpr, HAS_FACTOR: tl.constexpr):
    """The planes of a filtering query where they are stored; the missing ones are others."""
    q_re = widen(tl.load(p_query, mask=mask, other=0.0))
    w_re = widen(tl.load(p_query + PLANES * plane_stride, mask=mask, other=0.0))
    q_im = q_re
    w_im = w_re
    a = q_re
    if PLANES == 2:
        q_im = widen(tl.load(p_query + plane_stride, mask=mask, other=0.0))
        w_im = widen(tl.load(p_query + 3 * plane_stride, mask=mask, other=0.0))
    if HAS_FACTOR:
        a = widen(tl.load(p_query + 2 * PLANES * plane_stride, mask=mask, other=0.0))
    return q_re, q_im, w_re, w_im, a


@triton.jit
def load_candidate(p_table, plane_stride, p_factor, mask, PLANES: tl.constexpr, HAS_FACTOR):
    """The planes of a candidate and its factor where they are stored."""
    c_re = widen(tl.load(p_table, mask=mask, other=0.0))
    c_im = c_re
    b = c_re
    if PLANES == 2:
        c_im = widen(tl.load(p_table + plane_stride, mask=mask, other=0.0))
    if HAS_FACTOR:
        b = widen(tl.load(p_factor, mask=mask, other=0.0))
    return c_re, c_im, b


@triton.jit
def add_stored(
    total,
    p_query,
    q_plane_stride,
    m_query,
    p_table,
    c_plane_stride,
    p_factor,
    m_pair,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
):
    """``total`` plus the terms of operands read in place."""
    q_re, q_im, w_re, w_im, a = load_query(p_query, q_plane_stride, m_query, PLANES, HAS_FACTOR)
    c_re, c_im, b = load_candidate(p_table, c_plane_stride, p_factor, m_pair, PLANES, HAS_FACTOR)
    return add_filtered(
        total,
        q_re.to(tl.float32),
        q_im.to(tl.float32),
        w_re.to(tl.float32),
        w_im.to(tl.float32),
        a.to(tl.float32),
        -c_re.to(tl.float32),
        -c_im.to(tl.float32),
        b.to(tl.float32),
        SCORE,
        PLAIN if HAS_FACTOR else STILL,
    )


@triton.jit
def add_packed(
    part,
    p_query,
    p_panel,
    first,
    stop,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    MOVE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """``part [M, N]`` plus the terms of packed features ``first .. stop - 1``."""
    HAS_FACTOR: tl.constexpr = MOVE != STILL
    Q_PLANES: tl.constexpr = 2 * PLANES + HAS_FACTOR
    C_PLANES: tl.constexpr = PLANES + HAS_FACTOR
    p_q = p_query + tl.arange(0, BLOCK_M)
    p_c = p_panel + tl.arange(0, BLOCK_N)
    for k in range(first, stop):
        p_row = p_q + k * (Q_PLANES * BLOCK_M)
        q_re = tl.load(p_row)[:, None]
        q_im = q_re
        w_re = tl.load(p_row + PLANES * BLOCK_M)[:, None]
        w_im = w_re
        a = q_re
        p_row_c = p_c + k * (C_PLANES * BLOCK_N)
        c_re = tl.load(p_row_c)[None, :]
        c_im = c_re
        b = c_re
        if PLANES == 2:
            q_im = tl.load(p_row + BLOCK_M)[:, None]
            w_im = tl.load(p_row + 3 * BLOCK_M)[:, None]
            c_im = tl.load(p_row_c + BLOCK_N)[None, :]
        if HAS_FACTOR:
            a = tl.load(p_row + 2 * PLANES * BLOCK_M)[:, None]
            b = tl.load(p_row_c + PLANES * BLOCK_N)[None, :]
        part = add_filtered(part, q_re, q_im, w_re, w_im, a, -c_re, -c_im, b, SCORE, MOVE)
    return part


@triton.jit
def add_swept(
    part,
    p_query,
    p_panel,
    first,
    stop,
    is_near,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """As ``add_packed``, of folded queries: the cheaper loop where every angle is near."""
    if HAS_FACTOR and SCORE == RSCF_ROTATE:
        if is_near:
            part = add_packed(
                part, p_query, p_panel, first, stop, SCORE, PLANES, NEAR, BLOCK_M, BLOCK_N
            )
        else:
            part = add_packed(
                part, p_query, p_panel, first, stop, SCORE, PLANES, FAR, BLOCK_M, BLOCK_N
            )
    elif HAS_FACTOR:
        part = add_packed(
            part, p_query, p_panel, first, stop, SCORE, PLANES, NEAR, BLOCK_M, BLOCK_N
        )
    else:
        part = add_packed(
            part, p_query, p_panel, first, stop, SCORE, PLANES, STILL, BLOCK_M, BLOCK_N
        )
    return part

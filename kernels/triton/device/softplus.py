"""Numbers in losses of one score: softplus, and weights of self-adversarial sampling."""

import triton
import triton.language as tl

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def log1p_of(e):
    """Return ``log(1 + e)`` of ``0 <= e <= 1``, to 3e-7 relative: a polynomial, nine slots."""
    tail = -0.029505213722586632 + e * 0.0052326880395412445
    tail = -0.13663242757320404 + e * (0.07822591066360474 + e * tail)
    tail = -0.2484298199415207 + e * (0.19106005132198334 + e * tail)
    tail = -0.4999949336051941 + e * (0.3331909775733948 + e * tail)
    return e * (0.9999999403953552 + e * tail)


@triton.jit
def softplus_of(x):
    """Return ``log(1 + exp(x))``; NaN for NaN."""
    return tl.where(x < 0.0, 0.0, x) + log1p_of(tl.exp(-tl.abs(x)))


@triton.jit
def weight_of(x, peak, alpha):
    """Return ``exp(alpha (x - peak))``; a difference below float32 is clamped, NaN stays."""
    below = x - peak
    return tl.exp(alpha * tl.where(below < LOWEST, LOWEST, below))

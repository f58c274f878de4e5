"""One scorer per score: what one feature adds to a pair, in float32 and as it is defined.

A sweep accumulates a *distance*, lower is better, so that one comparison serves every score; for
``dot`` the packed queries are negated. Both forms are called by every kernel that scores.

Cost model (issue slots an element, without loads): dot 1, l1 2, l2 2, rotate 6: two subtractions,
a product, a fused multiply-add, one square root (``MUFU.SQRT``) and an addition.
"""

import triton
import triton.language as tl

from ...scores import Score

DOT: tl.constexpr = tl.constexpr(0)
L1: tl.constexpr = tl.constexpr(1)
L2: tl.constexpr = tl.constexpr(2)
ROTATE: tl.constexpr = tl.constexpr(3)

RSCF_ROTATE: tl.constexpr = tl.constexpr(4)  # from here on: filtering scores, filtered.py
RSCF_L1: tl.constexpr = tl.constexpr(5)
RSCF_L2: tl.constexpr = tl.constexpr(6)

_CODES = {
    **{"dot": 0, "l1": 1, "l2": 2, "rotate": 3, "rotate_interleaved": 3},
    **{"rscf_rotate": 4, "rscf_l1": 5, "rscf_l2": 6},
}


def score_code(score: Score) -> int:
    """The kernels' number for a score; layouts are in the strides."""
    return _CODES[score.name]


def takes_root(score: Score) -> bool:
    """Whether the score is the root of the sum of its terms."""
    return score.name in ("l2", "rscf_l2")


@triton.constexpr_function
def query_planes(SCORE, PLANES, HAS_FACTOR):
    """Planes of a packed query."""
    return 2 * PLANES + HAS_FACTOR if SCORE >= 4 else PLANES


@triton.constexpr_function
def is_root(SCORE):
    """Whether a score is the root of a sum of squares."""
    return SCORE in (2, 6)


@triton.jit
def add_term(total, q_re, q_im, c_re, c_im, SCORE: tl.constexpr):
    """``total`` plus the term of one feature, in float32; operands broadcast."""
    if SCORE == DOT:
        return total + q_re * c_re
    x = q_re - c_re
    if SCORE == L1:
        return total + tl.abs(x)
    if SCORE == L2:
        return total + x * x
    y = q_im - c_im
    return total + tl.sqrt(x * x + y * y)


@triton.jit
def distance_of(total, SCORE: tl.constexpr):
    """The distance that a float32 sum stands for."""
    if is_root(SCORE):
        return tl.sqrt(total)
    return total


@triton.jit
def canonical_term(q_re, q_im, c_re, c_im, SCORE: tl.constexpr):
    """One feature's share of a canonical score: float64, every operation rounds on its own."""
    if SCORE == DOT:
        return q_re * c_re
    x = q_re - c_re
    if SCORE == L1:
        return tl.abs(x)
    if SCORE == L2:
        return x * x
    y = q_im - c_im
    return tl.sqrt(x * x + y * y)


@triton.jit
def canonical_score(total, bias, SCORE: tl.constexpr, HAS_BIAS: tl.constexpr):
    """A canonical score from its float64 sum; the bias comes last."""
    score = total
    if is_root(SCORE):
        score = tl.sqrt(score)
    if SCORE != DOT:
        score = -score
    if HAS_BIAS:
        score = score + bias
    return score

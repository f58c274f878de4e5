"""Scorer per score: the term of a feature in float32 and as defined, and slopes.

A sweep accumulates a *distance*, lower is better, so that one comparison serves every score; for
``dot`` the packed queries are negated. Every kernel that scores calls these functions.

The candidate of an ``rscf_*`` score is scaled by ``w`` of the query, and the query may move:
``q e^{iab} - w c`` where rows are complex, ``q + a b - w c`` elsewhere (moves.py).

Cost model (issue slots per element, without loads): dot 1, l1 2, l2 2, rotate 6: two subtractions,
a product, a fused multiply-add, one square root (``MUFU.SQRT``) and an addition. rscf_rotate: 8
without a factor, 21 where phases are near, 32 where they are far, 34 as stored.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ...scores import Term
from .arguments import is_finite, load_as, plane_at
from .moves import PLAIN, STILL, move_cos_sin

PRODUCT: tl.constexpr = tl.constexpr(Term.PRODUCT.number)
MAGNITUDE: tl.constexpr = tl.constexpr(Term.MAGNITUDE.number)
SQUARE: tl.constexpr = tl.constexpr(Term.SQUARE.number)
MODULUS: tl.constexpr = tl.constexpr(Term.MODULUS.number)
# the host refuses all other terms
WRITTEN = Term.PRODUCT, Term.MAGNITUDE, Term.SQUARE, Term.MODULUS

LEAST_NORMAL: tl.constexpr = tl.constexpr(1.1754943508222875e-38)


class Query(NamedTuple):
    """Feature of queries: complex, the scale of the candidate, the move.

    A member that a form lacks is a copy of another member and is never used.
    """

    re: Any
    im: Any
    w_re: Any
    w_im: Any
    a: Any


class Candidate(NamedTuple):
    """Feature of candidates: complex, the factor."""

    re: Any
    im: Any
    b: Any


@triton.constexpr_function
def member_of(form, plane):
    """Return the place in a :class:`Query` of a plane of its rows."""
    return plane if form.planes == 2 else 2 * plane


@triton.jit
def pointers_of(views, query, row, FORM: tl.constexpr):
    """Return pointers to rows of the queries, and to a row's candidates and factors."""
    p_q = views.queries.ptr + query * views.queries.row
    p_c = views.table.ptr + row * views.table.row
    p_f = p_c
    if FORM.has_factor:
        p_f = views.factor.ptr + row * views.factor.row
    return p_q, p_c, p_f


@triton.jit
def is_finite_query(q):
    """Return False for queries that hold NaN or infinities; missing members are copies."""
    is_good = is_finite(q.re) & is_finite(q.im) & is_finite(q.w_re) & is_finite(q.w_im)
    return is_good & is_finite(q.a)


@triton.constexpr_function
def stored_move(form):
    """Return the move for queries that are read as stored."""
    return PLAIN.value if form.has_factor else STILL.value


@triton.jit
def load_query(p_row, rows, k, mask, FORM: tl.constexpr, DTYPE: tl.constexpr):
    """Load features ``k`` of queries in place, by the row's pointer and the rows' strides."""
    o = k * rows.step
    re = load_as(p_row + o, mask, DTYPE)
    im = re
    w_re = re
    w_im = re
    a = re
    if FORM.planes == 2:
        im = load_as(p_row + rows.plane + o, mask, DTYPE)
    if FORM.is_rscf:
        w_re = load_as(p_row + plane_at(rows, FORM.planes) + o, mask, DTYPE)
        w_im = w_re
        if FORM.planes == 2:
            w_im = load_as(p_row + plane_at(rows, 3) + o, mask, DTYPE)
    if FORM.has_factor:
        a = load_as(p_row + plane_at(rows, 2 * FORM.planes) + o, mask, DTYPE)
    return Query(re, im, w_re, w_im, a)


@triton.jit
def load_candidate(p_row, p_factor, views, k, mask, FORM: tl.constexpr, DTYPE: tl.constexpr):
    """Load features ``k`` of candidates and factors in place, by the rows' pointers."""
    o = k * views.table.step
    re = load_as(p_row + o, mask, DTYPE)
    im = re
    b = re
    if FORM.planes == 2:
        plane = views.table.plane
        # A loop keeps the pointers of a row's planes, unless an rscf score needs the registers.
        im = load_as(p_row + o + plane if FORM.is_rscf else p_row + plane + o, mask, DTYPE)
    if FORM.has_factor:
        b = load_as(p_factor + k * views.factor.step, mask, DTYPE)
    return Candidate(re, im, b)


@triton.jit
def moved(q, b, FORM: tl.constexpr, MOVE: tl.constexpr):
    """Return the query as a factor ``b`` moves it, and the phase's cosine and sine.

    The second is junk for real rows, and the last two are junk without a phase.
    """
    re = q.re
    im = q.im
    cosine = re
    sine = re
    if MOVE != STILL:
        if FORM.planes == 2:
            cosine, sine = move_cos_sin(q.a, b, MOVE)
            re = q.re * cosine - q.im * sine
            im = q.re * sine + q.im * cosine
        else:
            re = re + q.a * b
    return re, im, cosine, sine


@triton.jit
def term_of(q, c, FORM: tl.constexpr, MOVE: tl.constexpr):
    """Return the term of one feature, which operands may broadcast.

    In float64, if all operations round separately, this is a share of a canonical score.
    """
    if FORM.term == PRODUCT:
        term = q.re * c.re
    else:
        re, im, _, _ = moved(q, c.b, FORM, MOVE)
        if FORM.is_rscf:  # negated before the broadcast, a candidate costs nothing
            x = re + q.w_re * -c.re
            y = im + q.w_im * -c.im
        else:
            x = re - c.re
            y = im - c.im
        if FORM.term == MAGNITUDE:
            term = tl.abs(x)
        elif FORM.term == SQUARE:
            term = x * x
        else:
            tl.static_assert(FORM.term == MODULUS, "no form of this term")
            term = tl.sqrt(x * x + y * y)
    return term


@triton.jit
def distance_of(total, FORM: tl.constexpr):
    """Return the distance of a sum."""
    distance = total
    if FORM.is_root:
        distance = tl.sqrt(total)
    return distance


@triton.jit
def score_of(total, FORM: tl.constexpr):
    """Return the score of a sum; for ``dot``, the sum of the stored products."""
    return total if FORM.term == PRODUCT else -distance_of(total, FORM)


@triton.jit
def canonical_score(total, bias, FORM: tl.constexpr):
    """Return a canonical score from the float64 sum; the bias comes last."""
    score = score_of(total, FORM)
    if FORM.has_bias:
        score = score + bias
    return score


@triton.jit
def weighted_direction(weight, x, y, FORM: tl.constexpr):
    """Return ``weight`` times the slopes of a term by ``x`` and ``y``; the term is their length.

    A modulus below 2**-54 fades: the square has 2**-126 added, which makes the direction 0 at 0
    without a select.
    """
    if FORM.term == MODULUS:
        scaled = weight * tl.rsqrt(x * x + (y * y + LEAST_NORMAL))
        u = scaled * x
        v = scaled * y
    elif FORM.term == MAGNITUDE:
        u = tl.where(x > 0, weight, tl.where(x < 0, -weight, 0.0))
        v = u
    else:
        tl.static_assert(FORM.term == SQUARE, "no slopes of this term")
        u = weight * x
        v = u
    return u, v


@triton.jit
def slopes_of_both(weight, q, c, FORM: tl.constexpr):
    """Return ``weight`` times slopes of a score: minus the query's slopes, and the row's.

    A score that is a root is divided by the root elsewhere. Only numbers that are not yet broadcast
    are negated, which costs nothing.
    """
    if FORM.term == PRODUCT:
        u = weight * -c.re
        v = weight * q.re
        of_query = Query(u, u, u, u, u)
        of_row = Candidate(v, v, v)
    elif FORM.is_rscf:
        re, im, cosine, sine = moved(q, c.b, FORM, stored_move(FORM))
        u, v = weighted_direction(weight, re - q.w_re * c.re, im - q.w_im * c.im, FORM)
        by_re = u
        by_im = v
        by_move = u
        if FORM.has_factor and FORM.planes == 2:
            by_re = u * cosine + v * sine
            by_im = v * cosine - u * sine
            by_move = v * re - u * im
        of_query = Query(by_re, by_im, u * -c.re, v * -c.im, by_move * c.b)
        of_row = Candidate(u * q.w_re, v * q.w_im, by_move * -q.a)
    else:
        u, v = weighted_direction(weight, q.re - c.re, q.im - c.im, FORM)
        of_query = Query(u, v, u, u, u)
        of_row = Candidate(u, v, u)
    return of_query, of_row


@triton.jit
def plus_query(a, b):
    """Return the sum of two queries' numbers."""
    return Query(a.re + b.re, a.im + b.im, a.w_re + b.w_re, a.w_im + b.w_im, a.a + b.a)


@triton.jit
def plus_candidate(a, b):
    """Return the sum of two candidates' numbers."""
    return Candidate(a.re + b.re, a.im + b.im, a.b + b.b)

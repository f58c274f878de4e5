"""Facts of a score that every backend must know.

A score reduces the feature axis of one (query, candidate) pair. Ranks are defined by the
*canonical* value of a score. It takes the stored values as exact numbers and evaluates the equation
in IEEE float64: features in order ``0 .. D-1`` from ``0.0``, without fused multiply-add, with a
correctly rounded square root. The bias is added last.

The ``rscf_*`` scores (Kim et al. 2025) scale the candidate by a vector of the query, ``w``, and may
move the query by ``a b``: ``a`` of the query, ``b`` the candidate's row of a *factor* ``[N, D]``.
The move is a shift, or the angle of a turn. Queries of these scores hold ``q | w | a``, or ``q |
w`` without a factor, each plane as wide as a plane of the candidate. The canonical sine and cosine
of ``a b`` are those of :mod:`kgfast.kernels.reference.trig`: the remainder of ``n pi/2`` in three
parts, fdlibm's kernel polynomials in Horner form, every operation rounded separately.
"""

from dataclasses import dataclass, field
from enum import Enum


class Term(Enum):
    """Share of one feature in the sum of a score.

    A sum of products is the score. Every other sum is a distance between the query and the
    candidate, which only grows; the score is minus the sum, or minus the root of the sum. Each term
    has the number that Triton's kernels know, its planes (stored reals per feature), and whether
    the square root of the sum is taken.
    """

    PRODUCT = 0, 1, False  # q c
    MAGNITUDE = 1, 1, False  # |q - c|
    SQUARE = 2, 1, True  # (q - c)^2
    MODULUS = 3, 2, False  # |q - c|, complex

    def __init__(self, number: int, planes: int, root: bool) -> None:
        self.number, self.planes, self.root = number, planes, root


class Moves(Enum):
    """Move of a score's query by ``a b``."""

    NONE = 0
    SHIFT = 1
    PHASE = 2


@dataclass(frozen=True, eq=False)
class Score:
    """Facts of one score, from which everything else about the score is derived."""

    name: str  # name that operators take
    # number in the extension, the `id` of the functor in csrc/scores; layouts share a number
    code: int
    equation: str  # equation of query q and candidate c; higher is better
    term: Term
    # Rounding errors of one float32 term, in units of u = 2**-24, beyond the errors of
    # accumulation. Derivations: docs/explanation/exactness.md.
    term_ulps: int
    moves: Moves = Moves.NONE  # not NONE for the rscf_* scores
    interleaved: bool = False  # complex rows are re0 im0 re1 ... instead of re | im

    planes: int = field(init=False)  # stored reals per feature of a candidate
    root: bool = field(init=False)  # the square root of the sum is taken
    monotone: bool = field(init=False)  # minus a sum that only grows, or minus the root of the sum
    is_rscf: bool = field(init=False)  # queries scale candidates, and a factor may be given

    def __post_init__(self) -> None:
        facts = {
            "planes": self.term.planes,
            "root": self.term.root,
            "monotone": self.term is not Term.PRODUCT,
            "is_rscf": self.moves is not Moves.NONE,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def num_features(self, width: int) -> int:
        """Count the features in a candidate row of ``width`` stored reals."""
        return width // self.planes

    def query_planes(self, has_factor: bool) -> int:
        """Count the stored reals per feature of a query."""
        return 2 * self.planes + has_factor if self.is_rscf else self.planes

    def query_width(self, width: int, has_factor: bool) -> int:
        """Count the stored reals of a query for candidate rows of ``width``."""
        return self.query_planes(has_factor) * self.num_features(width)

    def columns(self, width: int, planes: int | None = None) -> tuple[tuple[int, ...], int]:
        """Return the first column of each plane, and the step between two features.

        ``planes`` is the number of planes of a row; by default that of a candidate.
        """
        planes = planes or self.planes
        if self.interleaved:
            return tuple(range(planes)), planes
        return tuple(range(0, width, width // planes)), 1


_ROTATE = "- sum_k abs(q_k - c_k), complex"

SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("dot", 0, "sum_d q_d c_d", Term.PRODUCT, term_ulps=2),
        Score("l1", 1, "- sum_d abs(q_d - c_d)", Term.MAGNITUDE, term_ulps=2),
        Score("l2", 2, "- sqrt(sum_d (q_d - c_d)^2)", Term.SQUARE, term_ulps=4),
        Score("rotate", 3, _ROTATE, Term.MODULUS, term_ulps=4),
        Score("rotate_interleaved", 3, _ROTATE, Term.MODULUS, term_ulps=4, interleaved=True),
        Score(
            "rscf_rotate",
            4,
            "- sum_k abs(q_k exp(i a_k b_k) - w_k * c_k), w_k * c_k by parts",
            Term.MODULUS,
            term_ulps=4,
            moves=Moves.PHASE,
        ),
        Score(
            "rscf_l1",
            5,
            "- sum_d abs(q_d + a_d b_d - w_d c_d)",
            Term.MAGNITUDE,
            term_ulps=2,
            moves=Moves.SHIFT,
        ),
        Score(
            "rscf_l2",
            6,
            "- sqrt(sum_d (q_d + a_d b_d - w_d c_d)^2)",
            Term.SQUARE,
            term_ulps=4,
            moves=Moves.SHIFT,
        ),
    )
}


def get_score(name: str) -> Score:
    """Return the score of a name; a ValueError names all scores."""
    if not isinstance(name, str) or name not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}; got {name!r}")
    return SCORES[name]

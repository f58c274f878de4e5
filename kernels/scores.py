"""What every backend must know of a score: its name, its operands, their layout, its error.

A score reduces the feature axis of one (query, candidate) pair. Its *canonical* value, the one
that ranks are defined by, takes the stored values as exact numbers and evaluates the equation in
IEEE float64, features in order ``0 .. D-1`` from ``0.0``, without fused multiply-add, with a
correctly rounded square root, and adds the bias last.

The ``rscf_*`` scores (Kim et al. 2025) filter the candidate by a vector of the query, ``w``, and
may move or turn the query by ``a b``: ``a`` of the query, ``b`` the candidate's row of a *factor*
``[N, D]``. Their queries hold ``q | w | a``, or ``q | w`` where there is no factor, each plane as
wide as a plane of the candidate. The canonical sine and cosine of ``a b`` are those of
:mod:`kgfast.kernels.reference.trig`: the remainder of ``n pi/2`` in three parts, fdlibm's kernel
polynomials in Horner form, every operation rounded on its own.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """The facts of one score.

    Attributes
    ----------
    name : str
        The name that operators take.
    equation : str
        Score of query ``q`` and candidate ``c``; higher is better.
    planes : int
        Stored reals per feature: 1 for real rows, 2 for complex ones.
    interleaved : bool
        Complex rows are ``re0 im0 re1 im1 ...`` instead of ``re | im``.
    term_ulps : int
        Rounding errors, in units of ``u = 2**-24``, that one float32 term carries beyond those of
        the accumulation. Derivations: docs/exactness.md.
    filters : bool
        The query brings a scale of the candidate, and a factor may be given.
    """

    name: str
    equation: str
    planes: int
    interleaved: bool
    term_ulps: int
    filters: bool = False

    def num_features(self, width: int) -> int:
        """Features in a candidate row of ``width`` stored reals."""
        return width // self.planes

    def query_planes(self, has_factor: bool) -> int:
        """Stored reals per feature of a query."""
        return 2 * self.planes + has_factor if self.filters else self.planes

    def query_width(self, width: int, has_factor: bool) -> int:
        """Stored reals of a query for candidate rows of ``width``."""
        return self.query_planes(has_factor) * self.num_features(width)

    def columns(self, width: int, planes: int | None = None) -> tuple[tuple[int, ...], int]:
        """First column of each plane, and the column step between two features.

        ``planes``: of a row of so many; those of a candidate by default.
        """
        planes = planes or self.planes
        if self.interleaved:
            return tuple(range(planes)), planes
        return tuple(plane * (width // planes) for plane in range(planes)), 1


SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("dot", "sum_d q_d c_d", planes=1, interleaved=False, term_ulps=2),
        Score("l1", "- sum_d abs(q_d - c_d)", planes=1, interleaved=False, term_ulps=2),
        Score("l2", "- sqrt(sum_d (q_d - c_d)^2)", planes=1, interleaved=False, term_ulps=4),
        Score("rotate", "- sum_k abs(q_k - c_k), complex", 2, interleaved=False, term_ulps=4),
        Score("rotate_interleaved", "- sum_k abs(q_k - c_k), complex", 2, True, term_ulps=4),
        Score(
            "rscf_rotate",
            "- sum_k abs(q_k exp(i a_k b_k) - w_k * c_k), w_k * c_k by parts",
            planes=2,
            interleaved=False,
            term_ulps=4,
            filters=True,
        ),
        Score(
            "rscf_l1",
            "- sum_d abs(q_d + a_d b_d - w_d c_d)",
            planes=1,
            interleaved=False,
            term_ulps=2,
            filters=True,
        ),
        Score(
            "rscf_l2",
            "- sqrt(sum_d (q_d + a_d b_d - w_d c_d)^2)",
            planes=1,
            interleaved=False,
            term_ulps=4,
            filters=True,
        ),
    )
}


def get_score(name: str) -> Score:
    """Look a score up by name.

    Raises
    ------
    ValueError
        If there is no score of that name.

    Examples
    --------
    >>> get_score("rotate").planes
    2
    """
    if not isinstance(name, str) or name not in SCORES:
        raise ValueError(f"score must be one of {', '.join(SCORES)}; got {name!r}")
    return SCORES[name]

"""What every backend must know of a score: its name, its operands, their layout, its error.

A score reduces the feature axis of one (query, candidate) pair. Its *canonical* value, the one
that ranks are defined by, takes the stored values as exact numbers and evaluates the equation in
IEEE float64, features in order ``0 .. D-1`` from ``0.0``, without fused multiply-add, with a
correctly rounded square root, and adds the bias last.
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
    """

    name: str
    equation: str
    planes: int
    interleaved: bool
    term_ulps: int

    def num_features(self, width: int) -> int:
        """Features in a row of ``width`` stored reals."""
        return width // self.planes

    def columns(self, width: int) -> tuple[tuple[int, ...], int]:
        """First column of each plane, and the column step between two features."""
        if self.planes == 1:
            return (0,), 1
        return ((0, 1), 2) if self.interleaved else ((0, width // 2), 1)


SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("dot", "sum_d q_d c_d", planes=1, interleaved=False, term_ulps=2),
        Score("l1", "- sum_d abs(q_d - c_d)", planes=1, interleaved=False, term_ulps=2),
        Score("l2", "- sqrt(sum_d (q_d - c_d)^2)", planes=1, interleaved=False, term_ulps=4),
        Score("rotate", "- sum_k abs(q_k - c_k), complex", 2, interleaved=False, term_ulps=4),
        Score("rotate_interleaved", "- sum_k abs(q_k - c_k), complex", 2, True, term_ulps=4),
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
    try:
        return SCORES[name]
    except KeyError:
        raise ValueError(f"score must be one of {', '.join(SCORES)}; got {name!r}") from None

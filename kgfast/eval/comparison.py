"""Comparison of two models, or of runs with several seeds, by ranks of the same triples."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.intervals import check_bootstrap, draws, means_of, percentiles, shares_of
from kgfast.eval.metrics import HITS, cell, metric_named, metrics_with
from kgfast.eval.ranks import Ranks, RankType
from kgfast.graph import Vocabulary
from kgfast.graph.named import relation_names
from kgfast.text import escaped, text_table


class Difference(NamedTuple):
    """Metric of a and b, the difference b - a, and how sure the difference is."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float


class Comparison(dict[str, Difference]):
    """Differences of all metrics; prints as a table.

    Attributes
    ----------
    better, equal, worse : int
        Number of ranks of b that are lower than, equal to, and higher than the ranks of a.
    confidence : float
        Confidence of the intervals ``low .. high`` of differences.
    names : tuple of str
        Names of a and b.
    """

    def __init__(
        self,
        differences: dict[str, Difference],
        counts: tuple[int, int, int],
        confidence: float,
        names: tuple[str, str],
    ) -> None:
        super().__init__(differences)
        self.better, self.equal, self.worse = counts
        self.confidence, self.names = confidence, names

    def __repr__(self) -> str:
        a, b = self.names
        title = escaped(
            f"{b} against {a}: of {self.better + self.equal + self.worse:,} ranks "
            f"{self.better:,} better, {self.worse:,} worse, {self.equal:,} the same"
        )
        rows = []
        for name, row in self.items():
            digits = metric_named(name).decimals
            change, low, high = (f"{value:+,.{digits}f}" for value in row[2:5])
            cells = cell(name, row.a), cell(name, row.b), change, f"[{low}, {high}]"
            rows.append((name, [*cells, f"{row.p_value:.4f}"]))
        columns = [a, b, f"{b} - {a}", f"{self.confidence:.0%} interval", "p"]
        return f"{title}\n{text_table(columns, rows)}"


def compare(
    a: Ranks | Sequence[Ranks],
    b: Ranks | Sequence[Ranks],
    *,
    rank_type: RankType = "realistic",
    confidence: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
    hits: Sequence[int] = HITS,
    names: tuple[str, str] = ("a", "b"),
) -> Comparison:
    """Compare two rankings of the same triples, or those of several seeds each.

    The p-value comes from the paired randomisation test (Fisher 1935; for rankings Smucker, Allan
    and Carterette, CIKM 2007). If the models were equal, the ranks of a triple could have come from
    either model. So the test flips the sign of each triple's difference at random. The p-value is
    two-sided. The observed differences count as one of the samples (Phipson and Smyth 2010), so the
    p-value is never 0. Intervals of differences are percentiles of a paired bootstrap. Test and
    bootstrap treat a triple with all its sides as one unit.

    Sequences of ranks, from runs with several seeds, compare two ways to train. Interval and
    p-value of the difference of means are then those of Welch's t-test (Biometrika 1947), with a
    run as the unit; better, equal and worse count mean ranks over the runs.

    Parameters
    ----------
    a, b : Ranks, or sequence of Ranks
        Ranks of the same triples in the same order, on the same sides, among equally many
        candidates; or two or more of such ranks each. Triples are compared by names if all ranks
        have them, else by ids.
    rank_type : {"optimistic", "realistic", "pessimistic"}
    confidence : float
        Confidence of the intervals.
    samples : int
        Samples of the test, and of the bootstrap.
    seed : int
        The same seed gives the same result.
    hits : sequence of int
        The k of each ``hits@k``.
    names : pair of str
        Names of a and b in the table.

    Returns
    -------
    Comparison
        A dict of metric to :class:`Difference`.

    Raises
    ------
    ValueError
        If a and b are ranks of different triples, sides or candidates: the message names the first
        such triple. If there are no triples.

    Examples
    --------
    >>> from kgfast import TransE, rank
    >>> triples = [(0, 0, 1), (1, 0, 2), (2, 0, 0)]
    >>> one, other = (TransE.init(3, 1, 4, seed=seed) for seed in (0, 1))
    >>> compare(rank(one, triples), rank(other, triples))["mrr"].p_value > 0.05
    True
    """
    check_bootstrap(confidence, samples)
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        raise TypeError("a and b must be ranks, or lists of ranks; got groups: compare one of each")
    if not (isinstance(a, Ranks) or isinstance(b, Ranks)):
        return _of_runs([a, b], rank_type, confidence, hits, names)
    _check_same(a, b)
    assert isinstance(a, Ranks)
    assert isinstance(b, Ranks)
    a, b = a._ranked(), b._ranked()  # both leave out the same triples
    _check_some(a)
    metrics = [metric for metric in metrics_with(hits) if metric.is_mean]
    cells = [ranks._cells(rank_type) for ranks in (a, b)]
    shares = [shares_of(ranks, metrics) for ranks in cells]
    difference = shares[1] - shares[0]  # [T, M]
    drawn = [means_of(ids, difference) for ids in draws(len(a), samples, seed)]
    bounds = percentiles(torch.cat(drawn), confidence)
    p_values = _randomisation(difference, samples, seed)
    columns = [*(share.mean(0) for share in shares), difference.mean(0), *bounds.T, p_values]
    rows = torch.stack(columns, 1).tolist()
    differences = {metric.name: Difference(*row) for metric, row in zip(metrics, rows, strict=True)}
    return Comparison(differences, _counts(*cells), confidence, names)


def _check_some(ranks: Ranks) -> None:
    if not len(ranks):
        raise ValueError("there are no triples to compare: none has candidates on every side")


def _counts(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    """Return how many ranks of b are lower than, equal to, and higher than those of a."""
    return int((b < a).sum()), int((b == a).sum()), int((b > a).sum())


def _of_runs(
    groups: Sequence[Sequence[Ranks]],
    rank_type: RankType,
    confidence: float,
    hits: Sequence[int],
    names: tuple[str, str],
) -> Comparison:
    """Compare two groups of runs by Welch's t-test."""
    for name, runs in zip("ab", groups, strict=True):
        if len(runs) < 2:
            raise ValueError(f"{name} must have the ranks of two runs or more; got {len(runs)}")
        for ranks in runs:
            _check_same(groups[0][0], ranks)
    groups = [[ranks._ranked() for ranks in runs] for runs in groups]  # equal triples are left
    _check_some(groups[0][0])
    cells = [torch.stack([ranks._cells(rank_type) for ranks in runs]).mean(0) for runs in groups]
    metrics = [[ranks.metrics(rank_type, hits=hits) for ranks in runs] for runs in groups]
    differences = {}
    for metric in (metric for metric in metrics_with(hits) if metric.is_mean):
        values = [[row[metric.name] for row in rows] for rows in metrics]
        means = [statistics.mean(of) for of in values]
        terms = [statistics.variance(of) / len(of) for of in values]
        error, change = math.sqrt(sum(terms)), means[1] - means[0]
        square = sum(term**2 / (len(of) - 1) for term, of in zip(terms, values, strict=True))
        freedom = sum(terms) ** 2 / square if square else 1.0
        reach, p_value = _student(freedom, confidence, abs(change) / error if error else math.inf)
        low, high = change - reach * error, change + reach * error
        p_value = p_value if change or error else 1.0
        differences[metric.name] = Difference(means[0], means[1], change, low, high, p_value)
    return Comparison(differences, _counts(*cells), confidence, names)


def _student(freedom: float, confidence: float, t: float) -> tuple[float, float]:
    """Return the quantile of an interval and the two-sided p-value of t, by Student's distribution.

    With ``t = sqrt(freedom) tan(x)``, the density of x is ``cos(x) ** (freedom - 1)``.
    """
    x = torch.linspace(0, math.pi / 2, 1 << 20, dtype=torch.float64, device="cpu")
    inside = torch.cumulative_trapezoid(x.cos() ** (freedom - 1), x)
    inside = torch.nn.functional.pad(inside / inside[-1], (1, 0))
    place = min(int(torch.searchsorted(inside, confidence)), len(x) - 2)
    at = int(torch.searchsorted(x, math.atan(t / math.sqrt(freedom))))
    return math.sqrt(freedom) * math.tan(float(x[place])), 1.0 - float(inside[min(at, len(x) - 1)])


def _check_same(a: Any, b: Any) -> None:
    for name, ranks in (("a", a), ("b", b)):
        if not isinstance(ranks, Ranks):
            raise TypeError(f"{name} must be Ranks; got {type(ranks).__name__}")
    if a.sides != b.sides:
        raise ValueError(f"a has the sides {', '.join(a.sides)}, b {', '.join(b.sides)}")
    if len(a) != len(b):
        raise ValueError(f"a has {len(a):,} triples, b {len(b):,}: rank the same ones with both")
    for what, one, other in (
        ("triple", a.triples.cpu(), _by_ids_of(a, b)),
        ("number of candidates", a.num_candidates.cpu(), b.num_candidates.cpu()),
    ):
        differs = (one != other).any(1).nonzero()
        if len(differs):
            row = int(differs[0])
            raise ValueError(
                f"row {row}: the {what} is {one[row].tolist()} in a, {other[row].tolist()} in b: "
                "rank the same triples in the same order, with the same known= and candidate_ids="
            )


def _by_ids_of(a: Ranks, b: Ranks) -> Tensor:
    """Return the triples of b by the ids of a, where both have names; -1 for a name a lacks."""
    columns = list(b.triples.cpu().T)
    names = [_names_of_columns(ranks) for ranks in (a, b)]
    for i, (column, one, other) in enumerate(zip(columns, *names, strict=False)):
        if one is not None and other is not None and one != other:
            id_of = {name: place for place, name in enumerate(one)}
            ids = [id_of.get(name, -1) for name in other.names_of(column)]
            columns[i] = torch.tensor(ids, dtype=torch.int64, device="cpu")
    return torch.stack(columns, 1)


def _names_of_columns(ranks: Ranks) -> tuple[Vocabulary | None, ...]:
    entities, relations = ranks._vocabularies
    if ranks.triples.shape[1] == 3:
        return entities, relations, entities
    relations, times = relation_names(relations)
    return entities, relations, entities, times


def _randomisation(difference: Tensor, samples: int, seed: int) -> Tensor:
    """Return two-sided p-values of differences ``[T, M]``, by random signs of rows."""
    # tolerance, since sums in another order round otherwise
    observed = difference.sum(0).abs() * (1 - 1e-12)
    as_extreme = torch.zeros(difference.shape[1], dtype=torch.float64, device="cpu")
    for ones in draws(len(difference), samples, seed, 2):
        as_extreme += ((2 * ones - 1).double() @ difference).abs().ge(observed).sum(0)
    return (1 + as_extreme) / (1 + samples)

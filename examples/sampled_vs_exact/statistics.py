"""Bias, spread, rank correlation and flips of sampled metrics against exact ones."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean, pstdev
from typing import Any


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of two lists of values; None if one list is constant.

    Source: Kendall, "The treatment of ties in ranking problems", Biometrika 33, 1945.

    Examples
    --------
    >>> kendall_tau([1, 2, 3], [10, 30, 20])
    0.3333333333333333
    """
    pairs = [
        (_sign(first[i] - first[j]), _sign(second[i] - second[j]))
        for i, j in combinations(range(len(first)), 2)
    ]
    untied = [sum(abs(pair[side]) for pair in pairs) for side in (0, 1)]
    if not all(untied):
        return None
    agreement: int = sum(a * b for a, b in pairs)
    return float(agreement / (untied[0] * untied[1]) ** 0.5)


def bias_and_spread(exact: float, draws: Sequence[float]) -> dict[str, float]:
    """Return the mean difference from the exact value, and the standard deviation over draws."""
    return {
        "mean": fmean(draws),
        "bias": fmean(draws) - exact,
        "spread": pstdev(draws),
        "low": min(draws),
        "high": max(draws),
    }


def order_of(
    exact: Mapping[str, float], draws: Mapping[str, Sequence[float]]
) -> dict[str, float | int | None]:
    """Compare the order of models by each draw with the exact order.

    Parameters
    ----------
    exact
        The exact metric of each model.
    draws
        The same models: the metric of each draw.

    Returns
    -------
    dict
        Mean and least tau over draws; numbers of pairs of models, of pairs that some draw flips,
        and of pairs that most draws flip; the mean share of flipped pairs in a draw.
    """
    names = list(exact)
    count = len(next(iter(draws.values())))
    taus = [
        kendall_tau([exact[name] for name in names], [draws[name][draw] for name in names])
        for draw in range(count)
    ]
    known = [tau for tau in taus if tau is not None]
    shares = [pair["share"] for pair in flips(exact, draws)]
    pairs = len(names) * (len(names) - 1) // 2
    return {
        "tau": fmean(known) if known else None,
        "tau_low": min(known) if known else None,
        "pairs": pairs,
        "flipped_in_some": len(shares),
        "flipped_in_most": sum(share > 0.5 for share in shares),
        "flipped_share": sum(shares) / pairs if pairs else 0.0,
    }


def flips(exact: Mapping[str, float], draws: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """List pairs of models whose order some draw flips, with the share of such draws.

    Examples
    --------
    >>> flips({"a": 0.3, "b": 0.2}, {"a": [0.5, 0.4], "b": [0.4, 0.6]})
    [{'better': 'a', 'worse': 'b', 'exact_gap': 0.09999999999999998, 'share': 0.5}]
    """
    found = []
    for one, other in combinations(exact, 2):
        gap = exact[one] - exact[other]
        better, worse = (one, other) if gap >= 0 else (other, one)
        drawn = zip(draws[better], draws[worse], strict=True)
        share = fmean(high < low for high, low in drawn) if gap else 0.0
        if share:
            found.append({"better": better, "worse": worse, "exact_gap": abs(gap), "share": share})
    return sorted(found, key=lambda pair: -float(pair["share"]))


def other_choices(exact: Sequence[float], draws: Sequence[Sequence[float]]) -> float:
    """Return the share of draws whose best checkpoint is not the exact best.

    Parameters
    ----------
    exact
        The exact metric of each checkpoint.
    draws
        For each checkpoint the metric of each draw.

    Examples
    --------
    >>> other_choices([0.1, 0.3], [[0.4, 0.6], [0.5, 0.5]])
    0.5
    """
    best = max(range(len(exact)), key=exact.__getitem__)
    return fmean(
        max(range(len(exact)), key=lambda it: values[it]) != best
        for values in zip(*draws, strict=True)
    )


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)

"""The table of metrics: what each is made of, which way is better, and how it is shown."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgfast.text import shown, text_table

HITS = (1, 3, 10)  # k of the hits@k that metrics have by default
_AT_ONCE = 1 << 16  # ranks with shares in memory


class Chance(NamedTuple):
    """A mean of shares set against the shares of ranks drawn evenly from 1 to some n.

    ``moments`` gives mean and variance of such a share, given the n of each rank. ``adjust`` is a
    function of the mean share, of its expectation, and of its standard deviation.
    """

    moments: Callable[[Tensor], tuple[Tensor, Tensor]]
    adjust: Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metric:
    """A metric of ranks: the mean of each rank's ``share``; without a share, the median."""

    name: str
    share: Callable[[Tensor], Tensor] | None = None
    chance: Chance | None = None
    lower_is_better: bool = False
    decimals: int = 4
    title: str = ""  # in tables, if not the name
    in_tables: bool = True  # False: beside those of tables and intervals

    @property
    def is_mean(self) -> bool:
        """True if the metric is the mean of shares, which chance does not change."""
        return self.share is not None and self.chance is None


def moments_of_ranks(n: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of a rank."""
    return (n + 1) / 2, (n * n - 1) / 12


def _moments_of_reciprocals(n: Tensor) -> tuple[Tensor, Tensor]:
    """Return moments by the sums of 1 / i and of 1 / i^2 from 1 to n."""
    mean = torch.where(n == 1, 1.0, (torch.digamma(n + 1) + np.euler_gamma) / n)
    square = torch.where(n == 1, 1.0, (math.pi**2 / 6 - torch.special.zeta(2.0, n + 1)) / n)
    return mean, square - mean * mean


def _moments_of_hits(k: int, n: Tensor) -> tuple[Tensor, Tensor]:
    mean = (k / n).clamp_(max=1)
    return mean, mean * (1 - mean)


def _ratio(mean: Tensor, expected: Tensor, _: Tensor) -> Tensor:
    return mean / expected


def _index(mean: Tensor, expected: Tensor, _: Tensor) -> Tensor:
    """Return 0 for random ranks, and 1 for the best ranks."""
    return _over(mean - expected, 1 - expected)


def _z(mean: Tensor, expected: Tensor, deviation: Tensor) -> Tensor:
    return _over(mean - expected, deviation)


def _negated_z(mean: Tensor, expected: Tensor, deviation: Tensor) -> Tensor:
    return _over(expected - mean, deviation)


def _over(values: Tensor, others: Tensor) -> Tensor:
    """Divide; 0 over 0 is 0, as in PyKEEN: ranks that could not differ."""
    return torch.where(others == 0, 0.0, values / others)


def _is_within(k: int, ranks: Tensor) -> Tensor:
    return (ranks <= k).double()


def hits_at(k: int) -> Metric:
    """Return hits@k, the share of ranks of at most ``k``."""
    return Metric(f"hits@{k}", partial(_is_within, k))


def _hits_by_chance(name: str, adjust: Callable[..., Tensor], decimals: int, k: int) -> Metric:
    chance, share = Chance(partial(_moments_of_hits, k), adjust), partial(_is_within, k)
    return Metric(f"{name}@{k}", share, chance, decimals=decimals, in_tables=False)


_OF_HITS: dict[str, Callable[[int], Metric]] = {
    "hits": hits_at,
    "ahits": partial(_hits_by_chance, "ahits", _index, 4),
    "z_hits": partial(_hits_by_chance, "z_hits", _z, 1),
}
METRICS: tuple[Metric, ...] = (
    Metric("mrr", torch.reciprocal),
    Metric("mr", torch.clone, lower_is_better=True, decimals=1),
    Metric("median_rank", lower_is_better=True, decimals=1, title="median"),
    *map(hits_at, HITS),
    # Berrendorf et al. 2020, arXiv 2002.06914, equations 5 and 6
    Metric("amr", torch.clone, Chance(moments_of_ranks, _ratio), lower_is_better=True),
    Metric("amri", torch.clone, Chance(moments_of_ranks, _index)),
    # Hoyt et al. 2022, arXiv 2203.07544, section 3
    Metric("amrr", torch.reciprocal, Chance(_moments_of_reciprocals, _index), in_tables=False),
    *map(_OF_HITS["ahits"], HITS),
    Metric("z_mr", torch.clone, Chance(moments_of_ranks, _negated_z), decimals=1, in_tables=False),
    Metric(
        "z_mrr", torch.reciprocal, Chance(_moments_of_reciprocals, _z), decimals=1, in_tables=False
    ),
    *map(_OF_HITS["z_hits"], HITS),
)
"""All metrics in the order of tables; a line here reaches every table, interval and config."""


def metrics_with(hits: Sequence[int] = HITS) -> list[Metric]:
    """Return all metrics, with ``hits`` as the k of hits@k."""
    chosen = check_hits(hits)
    if chosen == HITS:
        return list(METRICS)
    metrics = []
    for metric in METRICS:
        kind, at, k = metric.name.partition("@")
        if not at:
            metrics.append(metric)
        elif int(k) == HITS[0]:
            metrics += map(_OF_HITS[kind], chosen)
    return metrics


def metric_named(name: str) -> Metric:
    """Return a metric by its name, which may be hits@k of any k.

    Raises
    ------
    ValueError
        If there is no such metric.
    """
    for metric in METRICS:
        if metric.name == name:
            return metric
    of_any_k = re.fullmatch(r"(hits|ahits|z_hits)@([1-9]\d{0,8})", name)
    if of_any_k:
        return _OF_HITS[of_any_k[1]](int(of_any_k[2]))
    names = ", ".join(metric.name for metric in METRICS if "@" not in metric.name)
    raise ValueError(f"must be {names} or hits@K, such as hits@10")


def check_hits(hits: Any) -> tuple[int, ...]:
    """Check the k of each ``hits@k``; return every k once."""
    if isinstance(hits, str) or not hasattr(hits, "__iter__"):
        raise TypeError(f"hits must be a sequence of int, such as (1, 5); got {shown(hits)}")
    hits = tuple(hits)
    for k in hits:
        if isinstance(k, bool) or not hasattr(k, "__index__"):
            raise TypeError(f"hits: k must be an int; got {shown(k)}")
        if k < 1:
            raise ValueError(f"hits: k must be at least 1; got {k}")
    return tuple(dict.fromkeys(k.__index__() for k in hits))


def values_of(metrics: Iterable[Metric], ranks: Tensor, sizes: Tensor) -> dict[str, float]:
    """Compute metrics of ranks ``[n]``, which have ``sizes [n]`` as their numbers of candidates.

    Without ranks, every metric is NaN.
    """
    if not len(ranks):
        return {metric.name: float("nan") for metric in metrics}
    values = {}
    for metric in metrics:
        if metric.share is None:
            middle = [(len(ranks) - 1) // 2, len(ranks) // 2]
            values[metric.name] = float(np.partition(ranks.cpu().numpy(), middle)[middle].mean())
            continue
        mean = _mean(metric.share(some) for some in ranks.split(_AT_ONCE))
        if metric.chance is not None:
            moments, adjust = metric.chance
            some_moments = (torch.stack(moments(some.double())) for some in sizes.split(_AT_ONCE))
            expected, variance = _mean(some_moments)
            mean = adjust(mean, expected, (variance / len(ranks)).sqrt())
        values[metric.name] = float(mean)
    return values


def _mean(parts: Iterable[Tensor]) -> Tensor:
    """Return the mean over the last axis of all tensors together."""
    sums = [(some.sum(-1), some.shape[-1]) for some in parts]
    return torch.stack([some for some, _ in sums]).sum(0).cpu() / sum(count for _, count in sums)


def in_tables(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that tables show."""
    return {of: values[of] for of in values if of == "count" or metric_named(of).in_tables}


def table_of(rows: Mapping[Any, Mapping[str, float]]) -> str:
    """Return metrics as a table of text."""
    names = list(in_tables(next(iter(rows.values()), {})))
    titles = [name if name == "count" else metric_named(name).title or name for name in names]
    cells = [(str(label), [cell(name, row[name]) for name in names]) for label, row in rows.items()]
    return text_table(titles, cells)


def cell(name: str, value: float) -> str:
    """Return a metric as text."""
    if name == "count":
        return f"{int(value):,}"
    return f"{value:,.{metric_named(name).decimals}f}"

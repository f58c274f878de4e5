"""The table of metrics: what each is made of, which way is better, and how it is shown."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.text import shown, text_table

HITS = (1, 3, 10)  # k of the hits@k that metrics have by default
_AT_ONCE = 1 << 16  # ranks with shares in memory


@dataclass(frozen=True)
class Metric:
    """A metric of ranks, which has a formula of one of three kinds.

    ``share`` gives each rank's share: the metric is the mean of shares. ``adjusted`` is a function
    of the mean rank and of the mean rank of random scores. A metric without either is the median.
    """

    name: str
    share: Callable[[Tensor], Tensor] | None = None
    adjusted: Callable[[Tensor, Tensor], Tensor] | None = None
    lower_is_better: bool = False
    decimals: int = 4
    title: str = ""  # in tables, if not the name


def _is_within(k: int, ranks: Tensor) -> Tensor:
    return (ranks <= k).double()


def hits_at(k: int) -> Metric:
    """Return hits@k, the share of ranks of at most ``k``."""
    return Metric(f"hits@{k}", partial(_is_within, k))


METRICS: tuple[Metric, ...] = (
    Metric("mrr", torch.reciprocal),
    Metric("mr", torch.clone, lower_is_better=True, decimals=1),
    Metric("median_rank", lower_is_better=True, decimals=1, title="median"),
    *map(hits_at, HITS),
    # Berrendorf et al. 2020, arXiv 2002.06914, equations 5 and 6
    Metric("amr", adjusted=lambda mean, random: mean / random, lower_is_better=True),
    Metric("amri", adjusted=lambda mean, random: 1 - (mean - 1) / (random - 1)),
)
"""All metrics in the order of tables; a line here reaches every table, interval and config."""


def metrics_with(hits: Sequence[int] = HITS) -> list[Metric]:
    """Return all metrics, with ``hits`` as the k of hits@k."""
    chosen = check_hits(hits)
    if chosen == HITS:
        return list(METRICS)
    others = [metric for metric in METRICS if not metric.name.startswith("hits@")]
    return [*others[:3], *map(hits_at, chosen), *others[3:]]


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
    if re.fullmatch(r"hits@[1-9]\d{0,8}", name):
        return hits_at(int(name.removeprefix("hits@")))
    names = ", ".join(metric.name for metric in METRICS if not metric.name.startswith("hits@"))
    raise ValueError(f"must be {names} or hits@K, such as hits@10; got {shown(name)}")


def check_hits(hits: Any) -> tuple[int, ...]:
    """Check the k of each ``hits@k``; return every k once."""
    if isinstance(hits, str) or not hasattr(hits, "__iter__"):
        raise TypeError(f"hits must be a sequence of int, such as (1, 5); got {shown(hits)}")
    for k in hits:
        if isinstance(k, bool) or not hasattr(k, "__index__"):
            raise TypeError(f"hits: k must be an int; got {shown(k)}")
        if k < 1:
            raise ValueError(f"hits: k must be at least 1; got {k}")
    return tuple(dict.fromkeys(k.__index__() for k in hits))


def values_of(metrics: Iterable[Metric], ranks: Tensor, random: Tensor) -> dict[str, float]:
    """Compute metrics of ranks ``[n]``; ``random`` is the mean rank of random scores.

    Without ranks, every metric is NaN.
    """
    if not len(ranks):
        return {metric.name: float("nan") for metric in metrics}
    mean, values = ranks.mean().cpu(), {}
    for metric in metrics:
        if metric.share is not None:
            parts = [metric.share(some).sum() for some in ranks.split(_AT_ONCE)]
            values[metric.name] = float(torch.stack(parts).sum()) / len(ranks)
        elif metric.adjusted is not None:
            values[metric.name] = float(metric.adjusted(mean, random))
        else:
            middle = [(len(ranks) - 1) // 2, len(ranks) // 2]
            values[metric.name] = float(np.partition(ranks.cpu().numpy(), middle)[middle].mean())
    return values


def table_of(rows: Mapping[Any, Mapping[str, float]]) -> str:
    """Return metrics as a table of text."""
    names = list(next(iter(rows.values()), ()))
    titles = [name if name == "count" else metric_named(name).title or name for name in names]
    return text_table(
        titles,
        [(str(label), [cell(name, row[name]) for name in names]) for label, row in rows.items()],
    )


def cell(name: str, value: float) -> str:
    """Return a metric as text."""
    if name == "count":
        return f"{int(value):,}"
    return f"{value:,.{metric_named(name).decimals}f}"

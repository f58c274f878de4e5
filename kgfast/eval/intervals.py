"""Bootstrap of metrics, over triples with all their ranks.

The sides of a triple are not independent, so a triple is drawn with all its sides (bootstrap of
clusters). Intervals are percentiles (Efron and Tibshirani 1993, chapter 13). Draws depend on a seed
alone. Memory is some 200 bytes per triple, however many samples are drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgfast.eval.metrics import Metric, cell, in_tables, metric_named
from kgfast.text import text_table

_DRAWN = 1 << 16  # triples that are drawn at once


class Interval(NamedTuple):
    """Metric with a confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


class Intervals(dict[str, Interval]):
    """An interval for each metric; prints as a table.

    Attributes
    ----------
    confidence : float
    samples : int
        Number of bootstrap samples.
    """

    def __init__(self, values: dict[str, Interval], confidence: float, samples: int) -> None:
        super().__init__(values)
        self.confidence, self.samples = confidence, samples

    def __repr__(self) -> str:
        rows = [(name, [cell(name, end) for end in interval]) for name, interval in self.items()]
        title = f"{self.confidence:.0%} intervals of {self.samples:,} bootstrap samples"
        return f"{title}\n{text_table(['value', 'low', 'high'], rows)}"


def intervals_of(
    values: Mapping[str, float], cells: Tensor, sizes: Tensor, bootstrap: tuple[float, int, int]
) -> Intervals:
    """Return intervals of metrics, given ranks ``[T, C]`` and their numbers of candidates.

    ``bootstrap`` has confidence, samples and seed.
    """
    confidence, samples, seed = bootstrap
    check_bootstrap(confidence, samples)
    values = in_tables(values)
    bounds = [[float("nan")] * 2] * len(values)
    if len(cells):
        metrics = list(map(metric_named, values))
        drawn = _metrics_of_draws(cells, sizes.cpu().double(), metrics, samples, seed)
        bounds = percentiles(drawn, confidence).tolist()
    both = zip(values.items(), bounds, strict=True)
    intervals = {name: Interval(value, *ends) for (name, value), ends in both}
    return Intervals(intervals, confidence, samples)


def check_bootstrap(confidence: float, samples: int) -> None:
    """Check the arguments of a bootstrap."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1; got {confidence}")
    if not isinstance(samples, int) or samples < 2:
        raise ValueError(f"samples must be an integer of at least 2; got {samples}")


def draws(total: int, samples: int, seed: int, kinds: int | None = None) -> Iterator[Tensor]:
    """Yield T draws for each of n samples, int64 ``[n, T]``: triples, or 0 .. ``kinds`` - 1."""
    generator = torch.Generator("cpu").manual_seed(seed)
    most, at_once = kinds or total, max(1, _DRAWN // total)
    for first in range(0, samples, at_once):
        shape = min(at_once, samples - first), total
        yield torch.randint(most, shape, generator=generator, dtype=torch.int64, device="cpu")


def means_of(drawn: Tensor, shares: Tensor) -> Tensor:
    """Return the means of shares ``[T, M]`` over the triples of samples ``[n, T]``, ``[n, M]``."""
    times = torch.zeros(drawn.shape, dtype=torch.float64, device="cpu")
    one = torch.ones((), dtype=torch.float64, device="cpu")
    return times.scatter_add_(1, drawn, one.expand_as(drawn)) @ shares / len(shares)


def shares_of(cells: Tensor, metrics: Sequence[Metric]) -> Tensor:
    """Return the shares of triples with ranks ``[T, C]`` in metrics that are means, ``[T, M]``."""
    means = [metric.share for metric in metrics if metric.share is not None]
    shares = torch.empty(len(cells), len(means), dtype=torch.float64, device="cpu")
    for column, share in enumerate(means):
        shares[:, column] = share(cells).mean(1)
    return shares


def percentiles(values: Tensor, confidence: float) -> Tensor:
    """Return the bounds of the middle of each column of ``[samples, M]``, ``[M, 2]``."""
    outside = (1 - confidence) / 2
    bounds = torch.tensor([outside, 1 - outside], dtype=torch.float64, device="cpu")
    return values.quantile(bounds, dim=0).T


def _metrics_of_draws(
    cells: Tensor, sizes: Tensor, metrics: Sequence[Metric], samples: int, seed: int
) -> Tensor:
    """Return metrics of each sample, float64 ``[samples, M]``."""
    shares = shares_of(cells, metrics)
    chances = [metric.chance for metric in metrics if metric.chance is not None]
    moments = [moment.mean(1) for chance in chances for moment in chance.moments(sizes)]
    by_chance = torch.stack(moments, 1)
    # one tensor: small ones between large ones would keep the C library from giving memory back
    values = torch.empty(samples, len(metrics), dtype=torch.float64, device="cpu")
    first = 0
    for drawn in draws(len(cells), samples, seed):
        means = list(means_of(drawn, shares).unbind(1))
        random = list(means_of(drawn, by_chance).unbind(1))
        rows = slice(first, first + len(drawn))
        for column, metric in enumerate(metrics):
            if metric.share is not None:
                mean = means.pop(0)
                if metric.chance is not None:
                    expected, variance = random.pop(0), random.pop(0)
                    deviation = (variance / cells.numel()).sqrt()
                    mean = metric.chance.adjust(mean, expected, deviation)
                values[rows, column] = mean
            else:
                ranks_drawn = cells[drawn].flatten(1).numpy()
                middle = np.median(ranks_drawn, axis=1, overwrite_input=True)
                values[rows, column] = torch.from_numpy(middle)
        first = rows.stop
    return values

"""Bootstrap intervals of metrics, over triples with all their ranks.

The sides of a triple are not independent, so a triple is drawn with all its sides (bootstrap of
clusters). Intervals are percentiles (Efron and Tibshirani 1993, chapter 13). Draws depend on a seed
alone.

A metric of a sample follows from the number of draws of each distinct rank. Memory is 12 bytes per
rank and 4 bytes per distinct rank; before that, metrics of the ranks themselves take 17 bytes per
rank. All results are written into one tensor: small tensors between large temporary tensors would
keep the C library from giving memory back.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgfast.eval.metrics import Metric, cell, metrics_with
from kgfast.text import text_table

if TYPE_CHECKING:
    from kgfast.eval.ranks import Ranks, RankType

_DRAWN = 1 << 16  # triples that are drawn at once: arrays of 512 KiB


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
        rows = [(name, [cell(name, part) for part in interval]) for name, interval in self.items()]
        title = f"{self.confidence:.0%} intervals of {self.samples:,} bootstrap samples"
        return f"{title}\n{text_table(['value', 'low', 'high'], rows)}"


def intervals_of(
    ranks: "Ranks", rank_type: "RankType", draws: tuple[float, int, int], hits: Sequence[int]
) -> Intervals:
    """Compute the result of :meth:`kgfast.Ranks.intervals`.

    ``draws`` are the confidence, the number of samples, and the seed.
    """
    confidence, samples, seed = draws
    check_draws(confidence, samples)
    metrics, ranks = metrics_with(hits), ranks._ranked()
    values = ranks.metrics(rank_type, hits=hits)
    if not len(ranks):
        nan = float("nan")
        return Intervals(dict.fromkeys(values, Interval(nan, nan, nan)), confidence, samples)
    drawn = _metrics_of_draws(ranks, rank_type, samples, seed, metrics)
    bounds = percentiles(drawn.T, confidence).tolist()
    found = {
        name: Interval(value, low, high)
        for (name, value), (low, high) in zip(values.items(), bounds, strict=True)
    }
    return Intervals(found, confidence, samples)


def check_draws(confidence: float, samples: int) -> None:
    """Check the arguments of a bootstrap."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1; got {confidence}")
    if samples < 2:
        raise ValueError(f"samples must be at least 2; got {samples}")


def expected_ranks(ranks: "Ranks", ids: Tensor | None = None) -> Tensor:
    """Return the mean rank of each triple under random scores, float64 ``[T]``."""
    counts = ranks.num_candidates
    if ids is not None:
        counts = counts.index_select(0, ids.to(counts.device))
    return (counts[:, ranks.pooled_columns].cpu().double() + 1).mean(1) / 2


def statistics(ranks: "Ranks", rank_type: "RankType", metrics: Sequence[Metric]) -> Tensor:
    """Return the share of every triple in metrics that are means, float64 ``[T, M]``."""
    cells = ranks._cells(rank_type)
    shares = [metric.share(cells).mean(1) for metric in metrics if metric.share is not None]
    return torch.stack(shares, 1)


def _metrics_of_draws(
    ranks: "Ranks", rank_type: "RankType", samples: int, seed: int, metrics: Sequence[Metric]
) -> Tensor:
    """Return metrics of each sample, float64 ``[M, samples]``."""
    values, places = _distinct(ranks, rank_type)
    # metrics, then the mean rank, and the mean rank of random scores
    found = torch.zeros(len(metrics) + 2, samples, dtype=torch.float64, device="cpu")
    for part, pieces in _chosen(len(ranks), samples, seed):
        drawn = found[:, part]
        size = part.stop - part.start
        times = torch.zeros(size, len(values), dtype=places.dtype, device="cpu")
        for ids in pieces:
            drawn[-1] += expected_ranks(ranks, ids.view(-1)).view(size, -1).sum(1)
            cells = places.index_select(0, ids.view(-1)).long().view(size, -1)
            times.scatter_add_(1, cells, torch.ones_like(cells, dtype=times.dtype))
        _add_metrics(drawn, values, times, places.numel(), metrics)
        del times  # free before the next is made
    found[-1] /= len(ranks)
    for row, metric in enumerate(metrics):
        if metric.adjusted is not None:
            found[row] = metric.adjusted(found[-2], found[-1])
    return found[:-2]


def _add_metrics(
    drawn: Tensor, values: Tensor, times: Tensor, count: int, metrics: Sequence[Metric]
) -> None:
    """Add metrics of samples, from how often each distinct rank was drawn, ``[part, V]``."""
    for columns in _slices(len(values)):
        own, often = values[columns], times[:, columns].double()
        drawn[-2] += often @ own / count
        for row, metric in enumerate(metrics):
            if metric.share is not None:
                drawn[row] += often @ metric.share(own) / count
    middle = torch.tensor(
        [[(count - 1) // 2, count // 2]] * len(times), dtype=times.dtype, device="cpu"
    )
    medians = values[torch.searchsorted(times.cumsum_(1), middle, right=True)].mean(1)
    for row, metric in enumerate(metrics):
        if metric.share is None and metric.adjusted is None:
            drawn[row] += medians


def drawn_means(shares: Tensor, samples: int, seed: int) -> Tensor:
    """Return the means of shares ``[T, M]`` over drawn triples, ``[samples, M]``."""
    found = torch.empty(samples, shares.shape[1], dtype=torch.float64, device="cpu")
    first = 0
    for times in draws(len(shares), samples, seed):
        found[first : first + len(times)] = times @ shares
        first += len(times)
    return found / len(shares)


def _distinct(ranks: "Ranks", rank_type: "RankType") -> tuple[Tensor, Tensor]:
    """Return the distinct ranks, float64 ``[V]`` ascending, and the place of each, ``[T, S]``."""
    ordered = ranks._cells(rank_type).numpy().ravel()
    ordered.sort()  # in place, unlike np.unique
    distinct, last = 0, math.nan
    # in place: each distinct rank overwrites a place that was read
    for part in _slices(ordered.size):
        own = ordered[part]
        own = own[np.append(own[:1] != last, own[1:] != own[:-1])]
        last, end = ordered[part][-1], distinct + own.size
        ordered[distinct:end], distinct = own, end
    values = torch.from_numpy(ordered[:distinct])
    shape = len(ranks), ordered.size // len(ranks)
    dtype = torch.int32 if ordered.size < 1 << 31 else torch.int64  # also counts the draws of ranks
    places = torch.empty(shape, dtype=dtype, device="cpu")
    for rows in _slices(len(ranks)):
        places[rows] = torch.searchsorted(values, ranks._part(rows)._cells(rank_type))
    return values, places


def draws(total: int, samples: int, seed: int) -> Iterator[Tensor]:
    """Yield how often each triple is drawn, float64 ``[part, T]``; a sample has T draws."""
    for part, pieces in _chosen(total, samples, seed):
        shape = part.stop - part.start, total
        times = torch.zeros(shape, dtype=torch.float64, device="cpu")
        for ids in pieces:
            times.scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float64))
        yield times


def _chosen(total: int, samples: int, seed: int) -> Iterator[tuple[slice, Iterator[Tensor]]]:
    """Yield the samples of a part, and the triples of each sample, ``[part, n]``, in pieces."""
    generator = torch.Generator("cpu").manual_seed(seed)

    def pieces(size: int) -> Iterator[Tensor]:
        for own in _slices(total):
            shape = size, own.stop - own.start
            yield torch.randint(total, shape, generator=generator, dtype=torch.int64, device="cpu")

    at_once = max(1, _DRAWN // total)
    for first in range(0, samples, at_once):
        part = slice(first, min(first + at_once, samples))
        yield part, pieces(part.stop - part.start)


def _slices(count: int) -> Iterator[slice]:
    for first in range(0, count, _DRAWN):
        yield slice(first, min(first + _DRAWN, count))


def percentiles(values: Tensor, confidence: float) -> Tensor:
    """Return the bounds of the middle part of columns of ``[samples, M]``, ``[M, 2]``."""
    outside = (1 - confidence) / 2
    bounds = torch.tensor([outside, 1 - outside], dtype=torch.float64, device="cpu")
    return values.quantile(bounds, dim=0).T

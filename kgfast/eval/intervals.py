"""How far metrics would move had other triples been drawn: the bootstrap of ranks.

What is drawn again are triples with all their ranks, as the two sides of a triple are not
independent (the bootstrap of clusters). Intervals are percentiles (Efron and Tibshirani 1993,
chapter 13). Draws come from a seed alone, in parts that bound the memory.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from kgfast.display import text_table

if TYPE_CHECKING:
    from kgfast.eval.ranks import Ranks, RankType

MEANS = ("mrr", "mr", "hits@1", "hits@3", "hits@10")
_DRAWN = 1 << 20  # triples that are drawn at once: 8 MiB an array of them


class Interval(NamedTuple):
    """A metric and its confidence interval."""

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
        How often triples were drawn.
    """

    def __init__(self, values: dict[str, Interval], confidence: float, samples: int) -> None:
        super().__init__(values)
        self.confidence, self.samples = confidence, samples

    def __repr__(self) -> str:
        rows = [
            (name, [_shown(name, part) for part in interval]) for name, interval in self.items()
        ]
        title = f"{self.confidence:.0%} intervals of {self.samples:,} bootstrap samples"
        return f"{title}\n{text_table(['value', 'low', 'high'], rows)}"


def _shown(metric: str, value: float) -> str:
    return f"{value:,.1f}" if metric in ("mr", "median_rank") else f"{value:.4f}"


def intervals_of(
    ranks: "Ranks", rank_type: "RankType", confidence: float, samples: int, seed: int
) -> Intervals:
    """What :meth:`kgfast.Ranks.intervals` returns."""
    check_draws(confidence, samples)
    values = ranks.metrics(rank_type)
    if not len(ranks):
        nan = float("nan")
        return Intervals(dict.fromkeys(values, Interval(nan, nan, nan)), confidence, samples)
    drawn: dict[str, Tensor] = dict(
        zip(MEANS, _means(ranks, rank_type, samples, seed).T, strict=True)
    )
    drawn["median_rank"] = _medians(ranks, rank_type, samples, seed)
    expected = _drawn_means(expected_ranks(ranks)[:, None], samples, seed)[:, 0]
    drawn["amr"] = drawn["mr"] / expected
    drawn["amri"] = 1 - (drawn["mr"] - 1) / (expected - 1)
    bounds = percentiles(torch.stack([drawn[name] for name in values], 1), confidence).tolist()
    found = {
        name: Interval(value, low, high)
        for (name, value), (low, high) in zip(values.items(), bounds, strict=True)
    }
    return Intervals(found, confidence, samples)


def check_draws(confidence: float, samples: int) -> None:
    """Check what a caller asks of a bootstrap."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1; got {confidence}")
    if samples < 2:
        raise ValueError(f"samples must be at least 2; got {samples}")


def cells_of(ranks: "Ranks", rank_type: "RankType") -> Tensor:
    """The ranks that metrics are made of, float64 ``[T, S]``: those of relations are not pooled."""
    return ranks.ranks(rank_type)[:, ranks.pooled_columns].cpu()


def expected_ranks(ranks: "Ranks") -> Tensor:
    """The mean rank of a triple under random scores, float64 ``[T]``."""
    return (ranks.num_candidates[:, ranks.pooled_columns].cpu().double() + 1).mean(1) / 2


def statistics(ranks: "Ranks", rank_type: "RankType") -> Tensor:
    """The share of every triple in the metrics of ``MEANS``, float64 ``[T, M]``."""
    cells = cells_of(ranks, rank_type)
    shares = [cells.reciprocal(), cells, *((cells <= k).double() for k in (1, 3, 10))]
    return torch.stack([share.mean(1) for share in shares], 1)


def _means(ranks: "Ranks", rank_type: "RankType", samples: int, seed: int) -> Tensor:
    return _drawn_means(statistics(ranks, rank_type), samples, seed)


def _drawn_means(shares: Tensor, samples: int, seed: int) -> Tensor:
    """Means of shares ``[T, M]`` over drawn triples, ``[samples, M]``."""
    total = len(shares)
    return torch.cat([times @ shares for times in draws(total, samples, seed)]) / total


def draws(total: int, samples: int, seed: int) -> Iterator[Tensor]:
    """How often each triple is drawn, float64 ``[part, T]``, in parts; a sample has T draws."""
    generator = torch.Generator("cpu").manual_seed(seed)
    at_once = max(1, _DRAWN // total)
    for first in range(0, samples, at_once):
        count = min(at_once, samples - first)
        shape = count, total
        chosen = torch.randint(total, shape, generator=generator, dtype=torch.int64, device="cpu")
        chosen += torch.arange(count, dtype=torch.int64, device="cpu")[:, None] * total
        times = torch.bincount(chosen.flatten(), minlength=count * total)
        yield times.view(count, total).double()


def _medians(ranks: "Ranks", rank_type: "RankType", samples: int, seed: int) -> Tensor:
    """Medians of the drawn triples' ranks, the mean of the two in the middle, ``[samples]``."""
    cells = cells_of(ranks, rank_type)
    ordered, order = cells.flatten().sort()
    triple_of = order // cells.shape[1]
    middle = (len(order) - 1) // 2, len(order) // 2
    wanted = torch.tensor(middle, dtype=torch.float64, device="cpu")
    found = []
    for times in draws(len(cells), samples, seed):
        ends = times[:, triple_of].cumsum(1)
        place = torch.searchsorted(ends, wanted.expand(len(times), 2).contiguous(), right=True)
        found.append(ordered[place].mean(1))
    return torch.cat(found)


def percentiles(values: Tensor, confidence: float) -> Tensor:
    """The middle part of every column of ``[samples, M]``: ``[M, 2]``."""
    outside = (1 - confidence) / 2
    bounds = torch.tensor([outside, 1 - outside], dtype=torch.float64, device="cpu")
    return values.quantile(bounds, dim=0).T

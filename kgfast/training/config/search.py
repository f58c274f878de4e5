"""The section of a search: the keys that differ between trials, and the budget."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kgfast.training.config.fields import Count, Number, Positive, TwoOrMore
from kgfast.training.config.sections import Section


def _by_key(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, Any] = {}
    for key, inside in value.items():
        is_section = isinstance(inside, Mapping) and bool(inside)
        if is_section and all(isinstance(it, Mapping) for it in inside.values()):
            flat |= {f"{key}.{name}": it for name, it in _by_key(inside).items()}
        else:
            flat[key] = inside
    return flat


class RangeConfig(Section):
    """The values of a key, such as `optim.lr`, in trials.

    Attributes
    ----------
    low, high : float
        Bounds, both included; whole numbers if the key is one.
    log : bool
        Draw the logarithm evenly: as often between 0.001 and 0.01 as between 0.01 and 0.1.
    choices : list, optional
        The values, instead of low and high.
    """

    low: Number | None = None
    high: Number | None = None
    log: bool = False
    choices: Annotated[list[Any], Field(min_length=1)] | None = None


class SearchConfig(Section):
    """The trials of ``kgfast search``; ``kgfast train`` ignores the section.

    Attributes
    ----------
    ranges : mapping of a key to a range
        The keys that trials differ in.
    trials : int, optional
        Number of trials.
    minutes : float, optional
        Minutes of training and evaluations of all trials together.
    first_rung : int, optional
        Number of epochs (of steps, if ``train.steps`` is set) after which trials are first
        compared; the run's divided by ``reduction ** 2`` by default.
    reduction : int
        One of so many trials continues from each rung, and the next rung is so many times as far.
    """

    ranges: Annotated[dict[str, RangeConfig], BeforeValidator(_by_key), Field(min_length=1)]
    trials: Count | None = None
    minutes: Positive | None = None
    first_rung: Count | None = None
    reduction: TwoOrMore = 3


def problems_of_ranges(search: SearchConfig) -> Iterator[str]:
    """Yield a line per range that contradicts itself, beginning with the dotted key."""
    for key, it in search.ranges.items():
        where = f"search.ranges.{key}"
        if it.choices is not None:
            if (it.low, it.high, it.log) != (None, None, False):
                yield f"{where}: has choices; leave low, high and log out"
        elif it.low is None or it.high is None:
            yield f"{where}: needs low and high, or choices"
        elif it.low >= it.high:
            yield f"{where}: low must be less than high; got {it.low:g} and {it.high:g}"
        elif it.log and it.low <= 0:
            yield f"{where}: low must be greater than 0 with log; got {it.low:g}"

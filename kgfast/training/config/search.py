"""What a config says of a search: which keys trials differ in, and for how long they are tried."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kgfast.training.config.fields import Count, Number, Positive, TwoOrMore
from kgfast.training.config.sections import Section


def _by_key(value: Any) -> Any:
    """Ranges by dotted keys; in a file they may stand in sections, as the keys themselves."""
    if not isinstance(value, Mapping):
        return value
    flat: dict[str, Any] = {}
    for key, inside in value.items():
        if isinstance(inside, Mapping) and inside and _holds_sections(inside):
            flat |= {f"{key}.{name}": it for name, it in _by_key(inside).items()}
        else:
            flat[key] = inside
    return flat


def _holds_sections(values: Mapping[str, Any]) -> bool:
    return all(isinstance(it, Mapping) for it in values.values())


class RangeConfig(Section):
    """What a key, such as `optim.lr`, may be in a trial.

    Attributes
    ----------
    low, high : float
        From here to there, both included; whole numbers where the key is one.
    log : bool
        Draw its logarithm evenly: as often between 0.001 and 0.01 as between 0.01 and 0.1.
    choices : list, optional
        Instead of low and high: one of these.
    """

    low: Number | None = None
    high: Number | None = None
    log: bool = False
    choices: Annotated[list[Any], Field(min_length=1)] | None = None


class SearchConfig(Section):
    """What ``kgfast search`` tries; ``kgfast train`` trains the other sections as they stand.

    Attributes
    ----------
    ranges : mapping of a key to a range
        What trials differ in.
    trials : int, optional
        How many are tried.
    minutes : float, optional
        For how long, training and evaluations of all trials together.
    first_rung : int, optional
        After how many epochs (steps, where ``train.steps`` is set) a trial is first compared with
        the others; a ``reduction ** 2``-th of the run by default.
    reduction : int
        One of so many trials goes on from each rung, and the next rung is so many times as far.
    """

    ranges: Annotated[dict[str, RangeConfig], BeforeValidator(_by_key), Field(min_length=1)]
    trials: Count | None = None
    minutes: Positive | None = None
    first_rung: Count | None = None
    reduction: TwoOrMore = 3


def problems_of_ranges(search: SearchConfig) -> Iterator[str]:
    """A line per range that contradicts itself, each beginning with a dotted key and a colon."""
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

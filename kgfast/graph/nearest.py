"""Search for the known names nearest to a wrong name, which error messages quote."""

import heapq
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from kgfast.text import shown

_MOST_NAMES = 200_000  # later names are ignored: half a second
_MOST_CHARACTERS = 64  # later characters of a name are ignored
_SHORTLIST = 64  # names that difflib compares, which takes much longer


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return at most `count` known names that are most like an unknown name, the nearest first.

    Of the first 200,000 names, those are compared that share most characters at both ends. The
    similarity is that of `difflib.get_close_matches` on the first 64 characters, in any case.

    Examples
    --------
    >>> nearest_names("catt", ["dog", "cat", "cats"])
    ['cat', 'cats']
    """
    wanted = _short(name)

    def likeness(known: str) -> int:
        known = _short(known)
        common = _common(wanted, known) + _common(wanted[::-1], known[::-1])
        return common - abs(len(wanted) - len(known))

    promising = heapq.nlargest(_SHORTLIST, islice(names, _MOST_NAMES), key=likeness)
    by_short = {_short(known): known for known in reversed(promising)}
    return [by_short[near] for near in get_close_matches(wanted, by_short, count)]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return ``; did you mean 'cat' or 'cats'?``, or nothing if no name is similar."""
    nearest = nearest_names(name, names) if isinstance(name, str) else []
    return f"; did you mean {' or '.join(map(shown, nearest))}?" if nearest else ""


def _short(name: str) -> str:
    return name[:_MOST_CHARACTERS].casefold()


def _common(one: str, other: str) -> int:
    """Count the characters that two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))

"""What to say of a name that is not known: which known ones are near, and no more than fits."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import islice

_SIMILAR = 0.6  # of difflib's ratio: below it two names have little in common
_LONGEST = 120  # characters of a name that are compared
_LOOKED_AT = 100_000  # names: beyond them a suggestion is not worth the wait
_PARTS = 64  # pairs of characters, and characters, that are looked for
_COMPARED = 40  # names that share most with the one asked for
_SHOWN = 60  # characters of a name in a message


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The known names that are most like an unknown one, the nearest first.

    Upper and lower case count as equal. Names that share the most pairs of characters with the one
    that is asked for are compared by :mod:`difflib`; it alone takes half a minute for 20,000
    names, where this takes a twentieth of a second.

    Parameters
    ----------
    name : str
        The unknown one; its first 120 characters count.
    names : iterable of str
        The known ones; the first 100,000 count.
    count : int
        How many at most.

    Returns
    -------
    list of str
        Empty if none is near.

    Examples
    --------
    >>> nearest_names("An Smith", ["Ann Smith", "Bob Jones", "Anne Smith"])
    ['Ann Smith', 'Anne Smith']
    """
    wanted = name[:_LONGEST].casefold()
    pairs = (wanted[i : i + 2] for i in range(len(wanted) - 1))
    parts = list(dict.fromkeys([*pairs, *wanted]))[:_PARTS]
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)  # what difflib prepares once
    found = []
    for known in nlargest(_COMPARED, _shared(wanted, parts, islice(names, _LOOKED_AT))):
        matcher.set_seq1(known[-1][:_LONGEST].casefold())
        ratio = matcher.ratio()
        if ratio >= _SIMILAR:
            found.append((-ratio, known[-1] != name, known[-1]))
    return [it[-1] for it in sorted(found)[:count]]


def _shared(
    wanted: str, parts: list[str], names: Iterable[str]
) -> Iterator[tuple[float, int, str]]:
    """Of each name of a similar length: how much it shares with the wanted one, place, name."""
    shortest, longest = len(wanted) * _SIMILAR / (2 - _SIMILAR), len(wanted) * (2 / _SIMILAR - 1)
    for place, name in enumerate(names):
        length = min(len(name), _LONGEST)
        if shortest <= length <= longest:
            folded = name[:_LONGEST].casefold()
            yield sum([it in folded for it in parts]) / (len(wanted) + length + 1), -place, name


def shown(name: object) -> str:
    """The repr of a name, cut to what a message can hold.

    Examples
    --------
    >>> shown("ann"), len(shown("a" * 10**6))
    ("'ann'", 88)
    """
    if not isinstance(name, str):
        name = repr(name)
        return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    if len(name) <= _SHOWN:
        return repr(name)
    return f"{name[:_SHOWN]!r}... ({len(name):,} characters)"

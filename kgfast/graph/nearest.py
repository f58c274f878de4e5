"""Search for the known names nearest to a wrong name, which error messages quote.

Cost model of `nearest_names`: one pass over the bytes of the names, 0.3 s for 2,000,000 names of 20
characters, then difflib on the 64 most promising. difflib over all names takes a minute.
"""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice

import numpy as np
import numpy.typing as npt

from kgfast.text import shown

_MOST_NAMES = 2_000_000  # later names are ignored
_BLOCK = 1 << 17  # names compared together: their bytes stay in the cache
_MOST_CHARACTERS = 64  # later characters of a name are ignored
_SHORTLIST = 64
_LEAST_RATIO = 0.6  # default of difflib.get_close_matches


def nearest_names(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most like an unknown name, the nearest first.

    Similarity is that of `difflib.get_close_matches` on the first 64 characters, without regard to
    case. Only the first 2,000,000 names are compared.

    Parameters
    ----------
    name
        The unknown name.
    names
        The known names.
    count
        Maximal number of names to return.

    Examples
    --------
    >>> nearest_names("catt", ["dog", "cat", "cats"])
    ['cat', 'cats']
    """
    name_start = name[:_MOST_CHARACTERS]
    promising: list[tuple[float, int, str]] = []
    at = 0
    for block in _blocks(islice(names, _MOST_NAMES)):
        likeness = _likeness(name_start, block)
        order = np.argsort(-likeness, kind="stable")[:_SHORTLIST]
        promising += [(-float(likeness[i]), at + int(i), block[i]) for i in order]
        promising = sorted(promising)[:_SHORTLIST]
        at += len(block)
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(name_start.casefold())
    similar = []
    for _, index, known in promising:
        matcher.set_seq1(known[:_MOST_CHARACTERS].casefold())
        if matcher.quick_ratio() >= _LEAST_RATIO and matcher.ratio() >= _LEAST_RATIO:
            similar.append((-matcher.ratio(), index, known))
    return [known for _, _, known in sorted(similar)[:count]]


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return ``; did you mean 'cat' or 'cats'?``, or nothing if no name is similar.

    Examples
    --------
    >>> did_you_mean("cta", ["dog", "cat"])
    "; did you mean 'cat'?"
    """
    nearest = (
        [shown(near) for near in nearest_names(str(name), names)] if isinstance(name, str) else []
    )
    if not nearest:
        return ""
    *others, last = nearest
    return f"; did you mean {', '.join(others)} or {last}?" if others else f"; did you mean {last}?"


def _blocks(names: Iterator[str]) -> Iterator[list[str]]:
    while block := list(islice(names, _BLOCK)):
        yield block


def _likeness(name: str, names: list[str]) -> npt.NDArray[np.float64]:
    """Return the share of neighbouring bytes that names share with a name, 0 to about 2."""
    pairs = np.zeros(1 << 16, np.uint8)
    own = _pairs(_framed([name]))
    pairs[own] = 1
    text = _framed(names)
    starts = np.flatnonzero(text == ord("\n"))
    shared = np.add.reduceat(pairs[_pairs(text)], starts[:-1], dtype=np.int64)
    return np.asarray(2 * shared / (len(own) + np.diff(starts)), np.float64)


def _framed(names: list[str]) -> npt.NDArray[np.uint8]:
    """Return the bytes of the names, a line feed before and after each."""
    text = "\n".join(name[:_MOST_CHARACTERS] for name in names)
    if text.count("\n") != len(names) - 1:
        text = "\n".join(name[:_MOST_CHARACTERS].replace("\n", " ") for name in names)
    raw = f"\n{text}\n".encode("utf-8", "replace").lower()
    return np.frombuffer(raw, np.uint8)


def _pairs(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    return np.asarray((text[:-1].astype(np.uint16) << 8) | text[1:], np.uint16)

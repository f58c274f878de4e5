"""Text for people: values and errors in a line, names without control characters, tables."""

import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WIDTH = 80  # columns of a table of text
_LEAST_LABEL = 20  # columns of a label of a wide table
_MOST_SAID = 200  # characters of a library's error message
# Characters C0, C1, separators of lines, marks that turn the direction of text, halves of surrogate
# pairs.
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def text_table(names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return rows of a label and cells; labels that are too long for a screen lose their middle.

    Examples
    --------
    >>> print(text_table(["mrr", "mr"], [("head", ["0.5000", "2.0"]), ("tail", ["1.0000", "1.0"])]))
             mrr   mr
    head  0.5000  2.0
    tail  1.0000  1.0
    """
    table = [("", [escaped(name) for name in names]), *rows]
    columns = zip(*(cells for _, cells in table), strict=True)
    widths = [2 + max(map(len, column)) for column in columns]
    longest = max(len(escaped(label)) for label, _ in table)
    room = min(longest, max(_LEAST_LABEL, WIDTH - sum(widths)))
    return "\n".join(
        f"{shortened(label, room):<{room}}"
        + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for label, cells in table
    )


def escaped(text: str, kept: str = "") -> str:
    r"""Return a text with control characters escaped as in JSON, but for those in ``kept``.

    Names come from files that anybody may have written. A terminal obeys escape sequences in names,
    and these can hide or change text.

    Examples
    --------
    >>> print(escaped("\x1b[2Jann\n"))
    \u001b[2Jann\u000a
    """
    return _CONTROLS.sub(
        lambda match: match[0] if match[0] in kept else f"\\u{ord(match[0]):04x}", text
    )


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` columns without control characters; dots for its middle.

    Examples
    --------
    >>> shortened("/people/person/place_of_birth", 15)
    '/people…f_birth'
    """
    text = escaped(text)
    if len(text) <= width:
        return text
    start = width // 2
    return f"{text[:start]}…{text[len(text) - (width - 1 - start) :]}"


class _Shown(reprlib.Repr):
    """Repr of bounded length."""

    limit = 60
    maxlevel = 4

    def repr_str(self, x: Any, level: int) -> str:
        if len(x) <= self.limit:
            return repr(x)
        what = "characters" if isinstance(x, str) else "bytes"
        return f"{x[: self.limit]!r}... ({len(x):,} {what})"

    repr_bytes = repr_str

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of more than 4,300 digits.
        return super().repr_int(x, level) if x.bit_length() < 1000 else "a huge integer"


def shown(value: Any, limit: int = 60) -> str:
    """Return a repr that fits a line: long text and large containers are cut.

    Examples
    --------
    >>> shown("cat"), shown([[1, 2], "x"])
    ("'cat'", "[[1, 2], 'x']")
    >>> shown("a" * 1000, limit=5)
    "'aaaaa'... (1,000 characters)"
    """
    showing = _Shown()
    showing.limit = limit
    text = showing.repr(value)
    if isinstance(value, str | bytes) or len(text) <= limit + 20:
        return text
    return f"{text[:limit]}..."


@contextmanager
def reading(path: str | os.PathLike[str], problem: str) -> Iterator[None]:
    """Turn a library's error for a file into a ValueError that names the file and the problem.

    An error whose message begins with this path stays unchanged.

    Examples
    --------
    >>> with reading("a.json", "not a JSON object"):
    ...     {}["size"]
    Traceback (most recent call last):
    ValueError: a.json: not a JSON object: KeyError: 'size'
    """
    try:
        yield
    except Exception as error:
        if str(error).startswith(os.fspath(path)):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{os.fspath(path)}: {problem}: {in_a_line(f'{kind}{error}')}") from None


def bad_line(
    path: str | os.PathLike[str], number: int, problem: str, line: str | bytes
) -> ValueError:
    """Return the error for a line of a file, which is quoted as far as space allows."""
    return ValueError(f"{os.fspath(path)}:{number}: {problem}: {shown(line, 80)}")


def each_key_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON as a dict; a key that stands twice is an error, as in YAML here."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{shown(next(key for key in keys if keys.count(key) > 1))} stands twice")
    return mapping


def in_a_line(text: str) -> str:
    r"""Return the message of a library as a line: cut, control characters escaped.

    Examples
    --------
    >>> print(in_a_line("no\n  good \x1b"))
    no good \x1b
    """
    words = " ".join(text[:_MOST_SAID].split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)

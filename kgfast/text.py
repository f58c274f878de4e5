"""Text for people: values and errors in a line, names without control characters, tables."""

import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

WIDTH = 80  # columns of a table of text
_GAP = 2
_MOST_SAID = 200  # characters of a library's error message
_LABEL = 36  # characters of a label; longer labels cost columns
# Characters C0, C1, separators of lines, marks that turn the direction of text, halves of surrogate
# pairs.
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def text_table(
    names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], least: Sequence[str] = ()
) -> str:
    """Return rows of a label and cells, at most 80 columns wide.

    Long labels push out the columns named in ``least``, the least important first; a line below
    names these columns. Labels that are still too long lose their middle.

    Examples
    --------
    >>> print(text_table(["mrr", "mr"], [("head", ["0.5000", "2.0"]), ("tail", ["1.0000", "1.0"])]))
             mrr   mr
    head  0.5000  2.0
    tail  1.0000  1.0
    """
    names = [escaped(name) for name in names]
    rows = [(escaped(label), cells) for label, cells in rows]
    widths = {
        name: max(len(name), *(len(cells[place]) for _, cells in rows))
        for place, name in enumerate(names)
    }
    longest = max(len(label) for label, _ in rows)
    left_out: list[str] = []
    for name in least:
        if min(longest, _LABEL) <= _room(widths):
            break
        if widths.pop(name, None) is not None:
            left_out.append(name)
    room = min(longest, max(8, _room(widths)))
    lines = [" " * room + "".join(f"{name:>{width + _GAP}}" for name, width in widths.items())]
    for label, cells in rows:
        shown = dict(zip(names, cells, strict=True))
        line = "".join(f"{shown[name]:>{width + _GAP}}" for name, width in widths.items())
        lines.append(f"{shortened(label, room):<{room}}{line}")
    if left_out:
        lines.append(f"(metrics() has {', '.join(left_out)} too)")
    return "\n".join(lines)


def _room(widths: dict[str, int]) -> int:
    return WIDTH - sum(width + _GAP for width in widths.values())


def html_table(
    title: str, names: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], note: str = ""
) -> str:
    """Return the table in full, for ``_repr_html_``; everything is escaped."""
    head = "".join(f"<th>{_html(name)}</th>" for name in names)
    body = "".join(
        f'<tr><th style="text-align: left">{_html(label)}</th>'
        + "".join(f"<td>{_html(cell)}</td>" for cell in cells)
        + "</tr>"
        for label, cells in rows
    )
    below = f"<p>{_html(note)}</p>" if note else ""
    return (
        f"<p>{_html(title)}</p><table><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{below}"
    )


def _html(text: str) -> str:
    return escape(escaped(text))


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
        lambda found: found[0] if found[0] in kept else f"\\u{ord(found[0]):04x}", text
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

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.maxlevel = 4
        self.maxlong = 40

    def repr_str(self, x: str, level: int) -> str:
        return _quoted(x, self.limit)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return _quoted(x, self.limit)

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of more than 4,300 digits.
        return super().repr_int(x, level) if x.bit_length() < 1000 else "a huge integer"


def _quoted(value: str | bytes, limit: int) -> str:
    if len(value) <= limit:
        return repr(value)
    what = "characters" if isinstance(value, str) else "bytes"
    return f"{value[:limit]!r}... ({len(value):,} {what})"


def shown(value: Any, limit: int = 60) -> str:
    """Return a repr that fits a line: long text and large containers are cut.

    Examples
    --------
    >>> shown("cat"), shown([[1, 2], "x"])
    ("'cat'", "[[1, 2], 'x']")
    >>> shown("a" * 1000, limit=5)
    "'aaaaa'... (1,000 characters)"
    """
    if isinstance(value, str | bytes):
        return _quoted(value, limit)
    text = _Shown(limit).repr(value)
    return text if len(text) <= limit + 20 else f"{text[:limit]}..."


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
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{shown(next(it for it in keys if keys.count(it) > 1))} stands twice")
    return found


def in_a_line(text: str) -> str:
    r"""Return the message of a library as a line: cut, control characters escaped.

    Examples
    --------
    >>> print(in_a_line("no\n  good \x1b"))
    no good \x1b
    """
    words = " ".join(text[:_MOST_SAID].split())
    return "".join(it if it.isprintable() else ascii(it)[1:-1] for it in words)

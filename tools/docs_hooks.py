"""Hooks for the site of docs/: links that leave docs/ become names, and drawings stand inline."""

import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).resolve().parents[1] / "docs"
_DRAWING = re.compile(r"!\[[^\]]*\]\((\w+\.svg)\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links out of docs/, which the site does not hold, into names, and draw SVG inline.

    A browser follows no links in a drawing that is an image.

    Examples
    --------
    >>> on_page_markdown("see [SECURITY.md](../SECURITY.md) and [results](results.md)")
    'see SECURITY.md (`SECURITY.md`) and [results](results.md)'
    """
    drawn = _DRAWING.sub(lambda it: (_DOCS / it[1]).read_text(encoding="utf-8"), markdown)
    return _OUTSIDE.sub(_named, drawn)


def _named(link: re.Match[str]) -> str:
    return f"{link[1]} (`{link[2].removeprefix('../')}`)"

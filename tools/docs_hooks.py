"""Hooks of the site of docs/: links to files of the tree outside it become their names."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pages are read in the tree, too, where such links lead somewhere; the site holds docs/ alone.

    Examples
    --------
    >>> on_page_markdown("see [SECURITY.md](../SECURITY.md) and [results](results.md)")
    'see SECURITY.md (`SECURITY.md`) and [results](results.md)'
    """
    return _OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    return f"{link[1]} (`{link[2].removeprefix('../')}`)"

"""Hooks for the site of docs/: links that leave docs/ become names, and drawings stand inline."""

import posixpath
import re
from typing import TYPE_CHECKING, Any

from page_map import DOCS

if TYPE_CHECKING:  # tests read this file where mkdocs is not installed
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = DOCS.parent
_DRAWING = re.compile(r"!\[[^\]]*\]\(([\w./-]+\.svg)\)")
_PICTURE = re.compile(r"(!\[[^\]]*\]\()((?:\.\./)+[\w./-]+\.png)\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pictures of benchmarks/results/ that pages show."""
    from mkdocs.structure.files import File

    A browser follows no links in a drawing that is an image.

    Examples
    --------
    >>> shown("see [SECURITY.md](../SECURITY.md), [results](reference/results.md)", "index.md")
    'see SECURITY.md (`SECURITY.md`), [results](reference/results.md)'
    """
    up = "../" * uri.count("/")

    def drawing(link: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link[1]))
        return (ROOT / name).read_text(encoding="utf-8").replace('href="', f'href="{up}')

    def picture(link: re.Match[str]) -> str:
        return f"{link[1]}{up}images/{posixpath.basename(link[2])})"

    def outside(link: re.Match[str]) -> str:
        target = _target(uri, link[2])
        return link[0] if target.startswith("docs/") else f"{link[1]} (`{target}`)"

    return _OUTSIDE.sub(outside, _PICTURE.sub(picture, _DRAWING.sub(drawing, markdown)))


def _target(uri: str, link: str) -> str:
    """Return the path below the root that a link of a page leads to."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))

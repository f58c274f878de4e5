"""Hooks of the site of docs/: pictures from outside it, links out of it, drawings inline."""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # tests read this file where mkdocs is not installed
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_DARK = "@media (prefers-color-scheme: dark)"  # the site knows better where it is dark
_DRAWING = re.compile(r"!\[[^\]]*\]\(([\w./-]+\.svg)\)")
_PICTURE = re.compile(r"(!\[[^\]]*\]\()((?:\.\./)+[\w./-]+\.png)\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)\s]+)\)")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pictures of benchmarks/results/ that pages show."""
    from mkdocs.structure.files import File

    for page in list(files.documentation_pages()):
        for _, link in _PICTURE.findall(page.content_string):
            source = _target(page.src_uri, link)
            name = f"images/{posixpath.basename(source)}"
            if files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: "Page", **_: Any) -> str:
    """Show pictures and drawings, and turn links out of docs/ into names."""
    return shown(markdown, page.file.src_uri)


def shown(markdown: str, uri: str) -> str:
    """Return the text of a page as the site shows it; ``uri`` is its path below docs/.

    A drawing stands inline, because a browser follows no links in an image. Files outside docs/
    are not on the site.

    Examples
    --------
    >>> shown("see [SECURITY.md](../SECURITY.md), [results](reference/results.md)", "index.md")
    'see SECURITY.md (`SECURITY.md`), [results](reference/results.md)'
    """
    up = "../" * uri.count("/")

    def drawing(link: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link[1]))
        text = (ROOT / name).read_text(encoding="utf-8").replace('href="', f'href="{up}')
        return text.replace(_DARK, '[data-md-color-scheme="slate"]')

    def picture(link: re.Match[str]) -> str:
        return f"{link[1]}{up}images/{posixpath.basename(link[2])})"

    def outside(link: re.Match[str]) -> str:
        target = _target(uri, link[2])
        return link[0] if target.startswith("docs/") else f"{link[1]} (`{target}`)"

    return _OUTSIDE.sub(outside, _PICTURE.sub(picture, _DRAWING.sub(drawing, markdown)))


def _target(uri: str, link: str) -> str:
    """Return the path below the root that a link of a page leads to."""
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))

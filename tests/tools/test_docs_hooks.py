"""Pages of docs/ on the site: links out of it, and the map."""

from docs_hooks import on_page_markdown
from page_map import MAP, draw, pages_of_map

from support.paths import ROOT


def test_links_out_of_the_site_become_names():
    page = "a [b c](../configs/x.yaml), [d](results.md#e), [f](https://g.h/../i), ![j](k.png)"
    assert on_page_markdown(page) == page.replace(
        "[b c](../configs/x.yaml)", "b c (`configs/x.yaml`)"
    )


def test_the_map_is_drawn_inline():
    page = (ROOT / "docs" / "which_page.md").read_text()
    assert '<a href="own_tables.html">' in on_page_markdown(page)


def test_the_map_holds_every_page_once():
    pages = {it.stem for it in (ROOT / "docs").glob("*.md")} - {"index", "which_page"}
    assert sorted(pages_of_map()) == sorted(pages)
    assert MAP.read_text(encoding="utf-8") == draw(), "run python tools/page_map.py"

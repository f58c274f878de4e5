"""Pages of docs/ on the site: links out of it, pictures, and the map."""

from docs_hooks import shown
from drawings import DRAWINGS, FOLDER
from page_map import DOCS, MAP, draw, pages_of_map


def test_links_out_of_the_site_become_names():
    page = "a [b c](../../configs/x.yaml), [d](../reference/results.md#e), [f](https://g.h/../i)"
    assert shown(page, "how-to/a.md") == page.replace(
        "[b c](../../configs/x.yaml)", "b c (`configs/x.yaml`)"
    )


def test_pictures_from_outside_are_shown():
    page = "![j](../../benchmarks/results/k.png)"
    assert shown(page, "how-to/a.md") == "![j](../images/k.png)"


def test_the_map_is_drawn_inline():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    assert '<a href="tutorials/own_tables.html">' in shown(page, "index.md")
    assert '<a href="../how-to/' in shown("![map](../images/which_page.svg)", "how-to/a.md")


def test_the_map_holds_every_page_once():
    pages = [str(it.relative_to(DOCS).with_suffix("")) for it in DOCS.glob("*/*.md")]
    assert sorted(pages_of_map()) == sorted(pages)
    assert MAP.read_text(encoding="utf-8") == draw(), "run python tools/page_map.py"


def test_the_drawings_are_up_to_date():
    for name, picture in DRAWINGS.items():
        found = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert found == picture(), "run python tools/drawings.py"
        assert "\n\n" not in found, "a blank line ends the block of HTML in a page"

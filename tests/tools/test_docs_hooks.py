"""Pages of docs/ on the site: links out of it, pictures and drawings."""

from docs_hooks import shown

from support.paths import ROOT


def test_links_out_of_the_site_become_names():
    page = "a [b c](../../configs/x.yaml), [d](../reference/results.md#e), [f](https://g.h/../i)"
    assert shown(page, "how-to/a.md") == page.replace(
        "[b c](../../configs/x.yaml)", "b c (`configs/x.yaml`)"
    )


def test_pictures_from_outside_are_shown():
    page = "![j](../../benchmarks/results/k.png)"
    assert shown(page, "how-to/a.md") == "![j](../images/k.png)"


def test_drawings_stand_inline():
    page = (ROOT / "docs" / "explanation" / "scale.md").read_text(encoding="utf-8")
    assert "<svg" in shown(page, "explanation/scale.md")
    for drawing in (ROOT / "docs" / "images").glob("*.svg"):
        text = drawing.read_text(encoding="utf-8")
        assert "\n\n" not in text, "a blank line ends the block of HTML in a page"

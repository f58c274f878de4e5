"""Links of a page out of docs/, on the site."""

from docs_hooks import on_page_markdown


def test_links_out_of_the_site_become_names():
    page = "a [b c](../configs/x.yaml), [d](results.md#e), [f](https://g.h/../i), ![j](k.png)"
    assert on_page_markdown(page) == page.replace(
        "[b c](../configs/x.yaml)", "b c (`configs/x.yaml`)"
    )

"""The browser of the tests: what it says of pages that are worse than ours."""

import pytest

WORSE = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; font: 16px monospace; } .thin { width: 2em; overflow-wrap: anywhere; }
.over { position: absolute; left: 0; top: 0; }
.box { width: 40px; height: 40px; overflow: hidden; position: absolute; top: 200px; }
@media (prefers-color-scheme: dark) { body { background: rgb(1, 2, 3); } }
</style><p class="over">one below</p><p class="over">above</p>
<p class="thin" style="margin-top: 60px">broken not-all</p>
<div class="box">in<br><br><br><br><br>beyond</div>
<details><summary>shown</summary><p>hidden</p></details>
"""


@pytest.fixture
def opened(browser, tmp_path):
    def open_page(html, **options):
        path = tmp_path / "page.html"
        path.write_text(html)
        return browser.open(path.as_uri(), **options)

    return open_page


def test_words(opened):
    page = opened(WORSE)
    assert page.broken() == ["broken"]
    assert page.overlaps() == [("one", "above"), ("below", "above")]
    shown = {it.text for it in page.words()}
    assert {"in", "shown"} <= shown
    assert not {"beyond", "hidden"} & shown
    assert page.errors == []


def test_errors_and_requests(opened):
    page = opened('<img src="http://127.0.0.1:9/x.png"><script>throw Error("oh")</script>')
    assert any("oh" in it for it in page.errors)
    assert page.requests[1:] == ["http://127.0.0.1:9/x.png"]
    refused = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
    assert any("Content Security" in it for it in opened(refused + "<script>1</script>").errors)


@pytest.mark.parametrize(
    ("scheme", "color"), [("light", "rgba(0, 0, 0, 0)"), ("dark", "rgb(1, 2, 3)")]
)
def test_windows(opened, scheme, color, tmp_path):
    page = opened(WORSE, width=390, scheme=scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == color
    assert page.width() == 390
    assert page.screenshot(tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"
    assert opened('<p style="width: 600px">wide</p>', width=390).width() > 390


def test_mouse_and_keys(opened):
    page = opened(
        '<div style="height: 3000px"></div><input id="name">'
        "<button onclick=\"this.textContent = document.querySelector('#name').value\">go</button>"
    )
    page.write("#name", "Anna & Bob")
    page.click("button")
    page.wait_for("document.querySelector('button').textContent !== 'go'", seconds=10)
    assert page.evaluate("document.querySelector('button').textContent") == "Anna & Bob"

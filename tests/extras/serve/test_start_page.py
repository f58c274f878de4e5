"""The page of a server in a browser: wide and narrow, light and dark."""

import itertools
from dataclasses import replace

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

import kgfast
from kgfast import Vocabulary
from support.serving import engine_of, graph, serving

WINDOWS = list(itertools.product((1280, 390), ("light", "dark")))
MARKUP = "<img src=x onerror=document.title='run'>"
LONG = "derivationally_organized_administration_of_the_republic.n.01_" * 2
ROWS = "document.querySelectorAll('tbody tr')"
TABLE = f"[...{ROWS}].map((it) => [...it.cells].map((cell) => cell.textContent))"


@pytest.fixture(scope="module")
def address(engine):
    types = kgfast.TypeConstraints.from_triples(graph().train)
    with serving(replace(engine, types=types)) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def marked():
    """Yield the address of a server whose names, labels and relations are HTML."""
    names = [f"{MARKUP}{it}" for it in range(150)] + [f"{LONG}{it}" for it in range(150)]
    entities = Vocabulary(names).labelled({it: f"<b>{it}</b>" for it in names[::2]})
    relations = Vocabulary([f"<script>{it}" for it in range(6)])
    with serving(engine_of(names=(entities, relations), known=None)) as port:
        yield f"http://127.0.0.1:{port}/"


def opened(browser, address, **window):
    """Open the page, and wait until it says what is served."""
    shown = browser.open(address, **window)
    shown.wait_for("document.querySelectorAll('dd').length == 7")
    return shown


def predict(shown, **fields):
    for name, text in fields.items():
        shown.evaluate(f"document.querySelector('[name={name}]').value = ''")
        shown.write(f"[name={name}]", text)
    shown.evaluate("found.replaceChildren(); error.textContent = ''")
    shown.click("button")
    shown.wait_for("found.firstChild || error.textContent")
    return shown.evaluate(TABLE)


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_a_query_is_typed_and_answered(browser, address, engine, width, scheme, tmp_path):
    shown = opened(browser, address, width=width, scheme=scheme)
    rows = predict(shown, heads="entity_003", relations="child_of", k="4")
    relations = [engine.names[1]["child_of"]]
    top = kgfast.topk(engine.model, heads=[3], relations=relations, k=4, known=engine.known)
    ids = top.ids[0].tolist()
    assert [it[:2] for it in rows] == [[engine.names[0].names_of([it])[0], str(it)] for it in ids]
    assert [float(it[2]) for it in rows] == pytest.approx(top.scores[0].tolist(), rel=1e-5)
    assert "the tail of (entity_003, child_of, ?), known triples left out" in shown.evaluate(
        "document.querySelector('caption').textContent"
    )
    assert shown.errors == []
    assert {it.rpartition("/")[0] + "/" for it in shown.requests} <= {address, "data:,/"}
    assert shown.width() == width, "the page slides sideways"
    assert shown.broken() == []
    assert shown.overlaps() == []
    assert shown.screenshot(tmp_path / "page.png").stat().st_size > 10_000
    light = (
        shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 248)"
    )
    assert light == (scheme == "light")


def test_it_says_what_is_served(browser, address):
    shown = opened(browser, address)
    facts = "[...document.querySelectorAll('dl div')].map((it) => it.textContent)"
    known = f"known triples {len(graph().known()):,}"
    assert shown.evaluate(facts) == [
        *("model RotatE", "entities 300", "relations 6", known),
        *("names yes", "labels none", "types yes"),
    ]
    shown.wait_for("document.querySelectorAll('option').length == 6")
    options = shown.evaluate("[...document.querySelectorAll('option')].map((it) => it.value)")
    assert sorted(options) == sorted(graph().relations)


def test_heads_relations_and_options(browser, address, engine):
    shown = opened(browser, address)
    columns = {"tails": [3], "relations": [1]}

    def expected(**options):
        top = kgfast.topk(engine.model, **columns, k=10, **options)
        return [str(it) for it in top.ids[0].tolist() if it >= 0]

    assert [it[1] for it in predict(shown, tails="entity_003", relations="#1")] == expected(
        known=engine.known
    )
    shown.click("[name=include_known]")
    shown.evaluate("found.replaceChildren()")
    assert [it[1] for it in predict(shown, tails="#3")] == expected()
    shown.click("[name=types]")
    types = kgfast.TypeConstraints.from_triples(graph().train)
    found = [it[1] for it in predict(shown)]
    assert found == expected(candidate_ids=types, pad=True)
    assert found != expected()
    shown.click("[name=types]")
    shown.evaluate("field.relations.value = ''")
    rows = predict(shown, heads="entity_007")
    assert sorted(it[0] for it in rows) == sorted(engine.names[1])
    assert shown.errors == []


def test_errors_of_the_server_are_shown(browser, address):
    shown = opened(browser, address, width=390)
    assert predict(shown, heads="entity_3", relations="child_of") == []
    said = shown.evaluate("error.textContent")
    assert said.startswith("heads[0]: unknown name 'entity_3'; did you mean 'entity_003'")
    assert shown.overlaps() == []
    assert len(predict(shown, heads="entity_003")) == 10
    assert shown.evaluate("error.textContent") == ""


@pytest.mark.parametrize("width", [1280, 390])
def test_names_are_text(browser, marked, width):
    """Names, labels, relations and errors that hold HTML are shown as they are written."""
    shown = opened(browser, marked, width=width)
    shown.wait_for("document.querySelectorAll('option').length == 6")
    rows = predict(shown, heads=f"{MARKUP}3", relations="<script>2", k="300")
    names = {it[0] for it in rows}
    assert {f"{MARKUP}4", f"{LONG}1"} <= names
    assert {it[1] for it in rows if it[0] == f"{MARKUP}4"} == {f"<b>{MARKUP}4</b>"}
    assert {it[1] for it in rows if it[0] == f"{MARKUP}5"} == {""}
    assert shown.width() == width
    assert shown.overlaps() == []
    assert shown.evaluate("document.querySelectorAll('img, b, main script').length") == 0
    assert shown.errors == []
    predict(shown, heads=MARKUP)
    assert MARKUP in shown.evaluate("error.textContent")
    assert shown.evaluate("document.querySelectorAll('img, b, main script').length") == 0
    assert shown.evaluate("document.title") == "kgfast"


def test_the_policy_refuses_other_scripts(browser, marked):
    shown = opened(browser, marked)
    shown.evaluate(f"document.body.insertAdjacentHTML('beforeend', {MARKUP!r})")
    shown.wait_for("document.querySelector('img').complete")
    assert shown.evaluate("document.title") == "kgfast"
    assert any("Content Security Policy" in it for it in shown.errors)


def test_ids_where_there_are_no_names(browser):
    with serving(engine_of(names=(None, None), known=None), max_k=5) as port:
        shown = opened(browser, f"http://127.0.0.1:{port}/")
        rows = predict(shown, heads="3", relations="2")
        assert [len(it) for it in rows] == [2] * 5  # id and score, of as many as are allowed
        assert shown.errors == []

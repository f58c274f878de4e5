"""The page of a run in a browser: wide and narrow, light and dark."""

import itertools

import pytest
import torch

from kgfast import Vocabulary
from kgfast.datasets import Dataset, synthetic
from kgfast.extras.report import write_report
from kgfast.graph import Triples
from support.small_runs import trainer_of

pytest.importorskip("matplotlib")
WINDOWS = list(itertools.product((1280, 390), ("light", "dark")))
RELATIONS = [  # in the order of browsers
    "_derivationally_related_form",
    "_hypernym",
    "/film/film/release_date_s./film/film_regional_release_date/film_release_region",
    "<b>&amp; _related_",
]
METRICS = "document.querySelector('table').parentElement"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Return a report on a graph with names as long as those of WordNet and Freebase."""
    plain = synthetic(12_000, 4, 20_000, 100, 100)
    entities = [f"derivationally_organized_administration.n.{it}" for it in range(6_000)]
    entities += [f"/m/0{it:05x}" for it in range(6_000)]
    names = Vocabulary(entities), Vocabulary(RELATIONS)
    splits = [
        Triples(it.hrt, entities=names[0], relations=names[1])
        for it in (plain.train, plain.valid, plain.test)
    ]
    data = Dataset("named", *splits, *names)
    run = tmp_path_factory.mktemp("runs") / "run"
    trainer_of(run, data, train={"steps": 6, "eval_every": 3, "log_every": 1}).fit()
    return write_report(run, data=data, samples=20).as_uri()


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_words_stand_whole_and_apart(browser, address, width, scheme, tmp_path):
    shown = browser.open(address, width=width, scheme=scheme)
    assert shown.errors == []
    assert shown.requests == [address]
    assert shown.width() == width, "the page slides sideways"
    assert shown.broken() == []
    assert shown.overlaps() == []
    texts = [it.text for it in shown.words()]
    assert {"derivationally_", "tail", "20" if width == 390 else "12k"} <= set(texts)
    assert not any("wbr" in it for it in texts)
    slides = shown.evaluate(f"{METRICS}.scrollWidth > {METRICS}.clientWidth")
    assert slides == (width == 390), "metrics that have room need not slide"
    assert len(_colors(shown.screenshot(tmp_path / "page.png"))) > 50, "the page is empty"


def test_colours_follow_the_user(browser, address):
    """Text and figures stand out from what they stand on, with a contrast of 4."""
    script = """[...document.querySelectorAll("td, h2, svg text, .asked, .note")].map((it) => {
        const style = getComputedStyle(it);
        return it.closest("svg") ? style.fill : style.color })"""
    ground = "getComputedStyle(document.querySelector('.sheet')).backgroundColor"
    grounds = []
    for scheme in ("light", "dark"):
        shown = browser.open(address, scheme=scheme)
        sheet = _luminance(shown.evaluate(ground))
        grounds.append(sheet)
        for color in set(shown.evaluate(script)):
            low, high = sorted([sheet, _luminance(color)])
            assert (high + 0.05) / (low + 0.05) > 4, (scheme, color)
    assert grounds[0] > 0.9
    assert grounds[1] < 0.1


def test_a_click_sorts(browser, address):
    shown = browser.open(address, width=390)
    table = "[...document.querySelectorAll('h3')].find((it) => it.textContent == 'Relation')"
    shown.evaluate(f"{table}.nextElementSibling.id = 'relations'")

    def column(place):
        rows = "document.querySelectorAll('#relations tbody tr')"
        return shown.evaluate(f"[...{rows}].map((it) => it.cells[{place}].textContent)")

    shown.click("#relations thead th:first-child button")
    assert column(0) == RELATIONS[::-1]
    shown.click("#relations thead th:first-child button")
    assert column(0) == RELATIONS
    before = sorted(map(float, column(2)))
    shown.click("#relations thead th:nth-child(3) button")
    assert [float(it) for it in column(2)] == before[::-1]
    shown.click("#relations thead th:nth-child(3) button")
    assert [float(it) for it in column(2)] == before
    assert column(0) != RELATIONS, "whole rows move"
    assert shown.errors == []


def _luminance(color):
    """Return the relative luminance of a colour as CSS has it, ``rgb(r, g, b)``."""
    parts = [int(it) / 255 for it in color[4:-1].split(",")]
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    return sum(it * weight for it, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def _colors(picture):
    from matplotlib.image import imread

    pixels = torch.from_numpy(imread(picture))[::3, ::3, :3].reshape(-1, 3)
    return (pixels * 31).int().unique(dim=0)

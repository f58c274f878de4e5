"""The page of a run: what it says, and that nothing of it is code."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import torch

from kgfast import Vocabulary
from kgfast.datasets import Dataset, synthetic
from kgfast.eval.ranks import Ranks
from kgfast.extras.report import figures, page, write_report
from kgfast.extras.report.page import examples
from kgfast.graph import KnownTriples, Triples
from kgfast.text import escaped
from kgfast.training import load_run
from support.small_runs import trainer_of

pytest.importorskip("matplotlib")
EVIL = '<script>alert("x")</script>'
SECTIONS = ["Training", "Metrics", "Ranks", "Where it is good", "Worst predictions"]
SECTIONS += ["Best predictions", "Config"]


class Reader(HTMLParser):
    """Parser that collects tags, addresses, and texts by tag."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.ids, self.inside, self.texts = [], [], [], [], {}

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside.append(tag)
        attrs = dict(attrs)
        self.addresses += [attrs[name] for name in ("src", "href", "action") if name in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.setdefault(self.inside[-1] if self.inside else "", []).append(data.strip())


@pytest.fixture(scope="module")
def graph():
    """Return a graph whose every name is an attack."""
    plain = synthetic(60, 3, 240, 20, 20)
    names = [
        Vocabulary([f"{EVIL}&{{{{ 7*7 }}}}\x1b[2J{name}" for name in own.names_of(range(len(own)))])
        for own in (plain.entities, plain.relations)
    ]
    splits = [
        Triples(it.hrt, entities=names[0], relations=names[1])
        for it in (plain.train, plain.valid, plain.test)
    ]
    return Dataset(plain.name, *splits, *names)


@pytest.fixture(scope="module")
def run(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a <b> run"
    trainer_of(folder, graph, train={"steps": 20, "eval_every": 10, "log_every": 2}).fit()
    return folder


@pytest.fixture(scope="module")
def text(run, graph):
    path = write_report(run, data=graph, samples=50)
    assert path == run / "report.html"
    return path.read_text()


@pytest.fixture(scope="module")
def reader(text):
    reader = Reader()
    reader.feed(text.replace("<wbr>", ""))
    return reader


def test_all_parts_are_there(reader, run, graph):
    assert reader.texts["h2"] == SECTIONS
    assert reader.texts["h1"] == ["a <b> run"]
    assert reader.tags.count("svg") == 4
    assert reader.tags.count("table") == 6
    loaded = load_run(run, graph)
    ranks = loaded.ranks()
    shown = reader.texts["td"]
    assert f"{ranks.mrr:.4f}" in shown
    assert f"{ranks.side('head').metrics()['hits@10']:.4f}" in shown
    interval = ranks.intervals(samples=50)["mrr"]
    assert f"{interval.low:.4f} to {interval.high:.4f}" in reader.texts["small"]
    for groups in (ranks.by(it) for it in ("relation", "cardinality", "frequency")):
        assert {escaped(str(it)) for it in groups} <= set(reader.texts["th"])


def test_labels_are_escaped(text, reader):
    assert EVIL not in text
    assert "<b> run" not in text
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in text
    assert "\\u001b[2J" in text
    assert "script" not in reader.tags
    assert any(EVIL in it for it in reader.texts["td"])


def test_logs_that_are_damaged_are_named(run, graph, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    damages = {
        "metrics.jsonl": b'{"step": 1, "loss": 0.5}\n\xff\xfe\n',
        "result.json": b'{"steps": "x"}',
    }
    for name, content in damages.items():
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"run/{name}:"):
            write_report(folder, data=graph, samples=50)
        (folder / name).write_bytes(whole)


def test_it_needs_nothing_else(text, reader):
    assert all(address.startswith("#") for address in reader.addresses)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert len(reader.ids) == len(set(reader.ids))
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text)) <= set(reader.ids)


@pytest.fixture
def unpainted(monkeypatch):
    for name in ("curves", "bars"):
        monkeypatch.setattr(figures, name, lambda *_: "<svg></svg>")


@pytest.mark.usefixtures("unpainted")
def test_many_relations_are_cut(run, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "RELATIONS", 1)
    text = write_report(run, tmp_path / "page.html", data=graph, samples=5).read_text()
    assert "The 1 relations with the most triples; 2 more are not shown." in text


@pytest.mark.usefixtures("unpainted")
def test_croppable_embeddings_have_a_table_of_their_widths(graph, tmp_path):
    trainer_of(
        tmp_path,
        graph,
        med={"dims": [4, 8]},
        model={"name": "rotate", "base_dim": 8, "gamma": 6.0},
        train={"steps": 3, "eval_every": 3},
    ).fit()
    reader = Reader()
    reader.feed(write_report(tmp_path, data=graph, samples=5).read_text())
    assert "Sub-models" in reader.texts["h3"]
    loaded = load_run(tmp_path, graph)
    for ranks in loaded.ranks().values():
        assert f"{ranks.mrr:.4f}" in reader.texts["td"]


def test_any_hits(run, graph, text, tmp_path):
    page = write_report(run, tmp_path / "page.html", data=graph, samples=5, hits=(2, 5)).read_text()
    assert "<th>hits@5</th>" in page
    assert "<th>hits@10</th>" in text
    assert "<th>hits@10</th>" not in page


def test_an_empty_split(graph, tmp_path):
    empty = replace(graph, test=graph.test[:0])
    trainer_of(tmp_path / "run", empty, train={"steps": 2, "eval_every": 2}).fit()
    with pytest.raises(ValueError, match="the test split holds no triples to report on"):
        write_report(tmp_path / "run", data=empty)
    assert not (tmp_path / "run" / "report.html").exists()


def test_the_worst_and_the_best_surprise(monkeypatch):
    """Among equal ranks, the worst have frequent targets, and the best have rare ones."""
    known = KnownTriples([(0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 0, 2)])
    triples = torch.tensor([[0, 0, 1], [0, 0, 2], [0, 0, 3], [1, 0, 3]])
    greater = torch.tensor([[0], [7], [7], [0]])
    none = torch.zeros_like(greater)
    ranks = Ranks(greater, none, none + 9, ("tail",), triples)

    found = []

    def answers(*args, **keywords):
        found.append(keywords)
        return SimpleNamespace(ids=torch.tensor([[4, 5, -1]]))

    monkeypatch.setattr("kgfast.extras.report.page.topk", answers)
    worst, best = examples(None, ranks, known, (None, None), 3)
    assert [(it["tail"], it["rank"], it["frequency"]) for it in worst] == [
        ("2", 8.0, 2),
        ("3", 8.0, 1),
    ]
    assert [(it["tail"], it["rank"]) for it in best] == [("3", 1.0), ("1", 1.0), ("3", 8.0)]
    assert worst[0]["instead"] == ["4", "5"]
    assert [it["heads"] for it in found] == [0, 0]


def test_bins():
    """The ranks of 14,541 entities fall into bins that widen; a half belongs to the rank below."""
    realistic = torch.tensor([[1.0], [1.5], [2.0], [5.0], [5.5]])
    greater, equal = realistic.long() - 1, ((realistic % 1) * 2).long()
    triples = torch.zeros(5, 3, dtype=torch.int64)
    ranks = Ranks(greater, equal, greater * 0 + 14541, ("tail",), triples)
    shares = {name: of["tail"].value for name, of in figures.shares_of_ranks(ranks).items()}
    assert shares.pop("1") == shares.pop("5") == 40
    assert shares.pop("2") == 20
    assert list(shares) == ["3", "10", "30", "100", "300", "1k", "3k", "10k", "14.541k"]
    assert set(shares.values()) == {0}

"""Labels: read where a folder has them, shown beside names, and nothing else changes."""

import csv
import gzip
import shutil

import pytest
import torch

import kgfast
from kgfast.training import RunFolder
from support.commands import error_of, lines_of, run
from support.small_runs import RING, ring_trainer, write_ring

LINES = "".join(f"e{i}\tthe {i}th\talias\n" for i in range(RING) if i != 5)
LINES += "next\tcomes after\nQ1\tuniverse\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("labels")
    write_ring(root / "ring")
    ring_trainer(root, root / "run", train={"keep_every": 10}).fit()
    return root


@pytest.fixture
def labelled(root, tmp_path):
    """Return a run whose own folder has labels."""
    shutil.copytree(root / "run", tmp_path / "run")
    (tmp_path / "run" / "labels.tsv").write_text(LINES)
    return tmp_path / "run"


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_dataset_folder(tmp_path, ending):
    folder = write_ring(tmp_path / "ring")
    plain = kgfast.datasets.load(folder)
    content = LINES.replace("\n", "\r\n").encode()
    (folder / f"labels.tsv{ending}").write_bytes(gzip.compress(content) if ending else content)
    data = kgfast.datasets.load(folder)
    assert data.entities.labels == {f"e{i}": f"the {i}th" for i in range(RING) if i != 5}
    assert data.relations.labels == {"next": "comes after"}
    assert plain.entities.labels == {}
    assert data.entities == plain.entities
    assert torch.equal(data.train.hrt, plain.train.hrt)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("e1\tone\ne2\n", r"labels.tsv:2: expected a name, a tab and a label: 'e2'"),
        ("\tone\n", r"labels.tsv:1: expected a name"),
        ("e1\t  \n", r"labels.tsv:1: expected a name"),
        ("e1\tone\n\ne1\ttwo\n", r"labels.tsv:3: 'e1' was labelled 'one' before"),
        ("e1\t\xff\n", r"labels.tsv:1: not valid UTF-8"),
        ("Q1\tone\n", r"labels.tsv: no line has a name of this graph: .*'Q1', .*'e0'"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, message):
    folder = write_ring(tmp_path / "ring")
    (folder / "labels.tsv").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        kgfast.datasets.load(folder)


class TestWhereTheyAreRead:
    def test_a_run(self, labelled):
        names = kgfast.load_run(labelled).vocabulary
        assert names.entities.text(3) == "e3 (the 3th)"
        assert names.relations.labels == {"next": "comes after"}

    def test_its_data_beside(self, root, tmp_path):
        shutil.copytree(root / "ring", tmp_path / "ring")
        (tmp_path / "ring" / "labels.tsv").write_text(LINES)
        assert kgfast.load_run(root / "run").vocabulary.entities.labels == {}
        for data in (tmp_path / "ring", kgfast.datasets.load(tmp_path / "ring")):
            names = kgfast.load_run(root / "run", data).vocabulary
            assert names.entities.text(3) == "e3 (the 3th)"
        config = RunFolder(root / "run").config.read_text()
        shutil.copytree(root / "run", tmp_path / "run")
        for place in (tmp_path, tmp_path / "ring"):  # the parent, or the folder itself
            moved = config.replace(str(root), str(place))
            (tmp_path / "run" / "config.yaml").write_text(moved)
            names = kgfast.load_run(tmp_path / "run", False).vocabulary
            assert names.entities.text(3).endswith("th)")

    def test_a_saved_folder_and_what_is_exported(self, labelled, tmp_path):
        assert (
            run("export", labelled, "--to", "safetensors", "--out", tmp_path / "out").exit_code == 0
        )
        assert "e3\tthe 3th\n" in (tmp_path / "out" / "labels.tsv").read_text()
        assert kgfast.load_run(tmp_path / "out").vocabulary.entities.text(3) == "e3 (the 3th)"
        for name in ("entities.json", "relations.json"):
            (tmp_path / "out" / name).unlink()
        (tmp_path / "out" / "labels.tsv").write_text("3\tthe third\n")  # by the numbers of rows
        found = kgfast.load_run(tmp_path / "out").vocabulary
        assert (found.entities.text(3), found.relations) == ("3 (the third)", None)
        (answer,) = lines_of(
            "predict", tmp_path / "out", "--head", 3, "--relation", 0, "--k", 1, "--include-known"
        )
        assert (answer["head"], answer["head_label"]) == ("3", "the third")


class TestWhereTheyAreShown:
    ASKED = ("--head", "e3", "--relation", "next", "--k", 12, "--include-known")

    def test_predict(self, root, labelled, tmp_path):
        plain = lines_of("predict", root / "run", *self.ASKED)
        found = lines_of("predict", labelled, *self.ASKED)
        labels = {"head_label", "relation_label", "tail_label"}
        assert [{k: it[k] for k in it.keys() - labels} for it in found] == plain
        assert {it["tail"]: it["tail_label"] for it in found}["e5"] is None
        assert found[0]["head_label"] == "the 3th"
        shown = run("predict", labelled, *self.ASKED).stdout
        assert "e3 (the 3th)" in shown
        assert "next (comes after)" in shown
        run("predict", labelled, *self.ASKED, "--out", tmp_path / "a.csv")
        with (tmp_path / "a.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert {it["tail"]: it["tail_label"] for it in rows}["e5"] == ""
        assert "e3 (the 3th)" in run("predict", labelled, "--all", "--k", 50).stdout
        assert "unknown name" in error_of(
            "predict", labelled, "--head", "the 3th", "--relation", "next"
        )

    def test_explain(self, labelled):
        asked = ("--head", "e3", "--relation", "next", "--tail", "e4", "--top", 3)
        found = lines_of("explain", labelled, *asked)
        expected = [f"the {it['head'][1:]}th" for it in found]
        assert [it["head_label"] for it in found] == expected != []
        assert "(comes after)" in run("explain", labelled, *asked).stdout

    def test_results_in_a_notebook(self, labelled):
        loaded = kgfast.load_run(labelled)
        top = kgfast.topk(loaded.model, heads=[3], relations=0, k=12, vocabulary=loaded.vocabulary)
        assert "(e3 (the 3th), next (comes after), ?)" in repr(top)
        assert {name for name, _ in top[0]} == {f"e{i}" for i in range(RING)}
        facts = kgfast.top_facts(loaded.model, k=5, vocabulary=loaded.vocabulary)
        assert "(the " in repr(facts)
        assert "head_label" in facts.to_frame()

    def test_a_report(self, labelled, tmp_path):
        pytest.importorskip("matplotlib")
        from kgfast.extras.report import write_report

        (labelled / "labels.tsv").write_text(LINES + "previous\tcomes before\n")
        text = write_report(labelled, tmp_path / "a.html", samples=10).read_text()
        assert "(the " in text
        assert "previous (comes before)" in text

    def test_the_server(self, labelled):
        from kgfast.extras.serve.engine import Engine
        from kgfast.extras.serve.questions import Reader, TopkBody

        loaded = kgfast.load_run(labelled)
        engine = Engine(loaded.model, tuple(loaded.vocabulary), loaded.known())
        asked = TopkBody(heads="e3", relations="next", k=12, include_known=True)
        found = engine.answer(Reader(engine, 1000, 1000).topk(asked))
        labels = {it["name"]: it["label"] for it in found["answers"][0]}
        assert labels == {f"e{i}": None if i == 5 else f"the {i}th" for i in range(RING)}

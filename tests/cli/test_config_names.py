"""Configs by name, a model's default one, and a graph that lies anywhere."""

from pathlib import Path

import pytest

from kgfast.cli.common import choose
from kgfast.training import Config, RunFolder
from kgfast.training.config import MODELS, find_config, packaged_configs
from support.commands import error_of, run
from support.paths import ROOT

QUICK = ["train.steps=2", "train.eval_every=0", "train.early_stopping=null", "data.train_bs=4"]


@pytest.fixture
def graph(tmp_path):
    """Return a folder that holds train.txt itself, in one whose name says nothing."""
    folder = tmp_path / "graphs" / "1e3: ring #1 é"
    folder.mkdir(parents=True)
    lines = [f"e{i}\tnext\te{(i + 1) % 12}\n" for i in range(12)]
    for split, chosen in (("train", lines[2:]), ("valid", lines[:1]), ("test", lines[1:2])):
        (folder / f"{split}.txt").write_text("".join(chosen))
    return folder


def test_the_package_has_the_files_of_the_tree():
    assert {name: path.read_text() for name, path in packaged_configs().items()} == {
        path.relative_to(ROOT / "configs").with_suffix("").as_posix(): path.read_text()
        for path in ROOT.glob("configs/*/*.yaml")
    }


@pytest.mark.parametrize(
    "name", ["wn18rr/rotate_fast", "wn18rr/rotate_fast.yaml", "configs/wn18rr/rotate_fast.yaml"]
)
def test_names_of_the_package_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert find_config(name).samefile(ROOT / "configs/wn18rr/rotate_fast.yaml")
    assert Config.from_yaml(name).model.base_dim == 128


def test_an_existing_file_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("wn18rr").mkdir()
    Path("wn18rr/rotate_fast").write_text("mine")
    assert find_config("wn18rr/rotate_fast").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wn18rr/rotate_fst", "did you mean 'wn18rr/rotate_fast' or 'wn18rr"),
        ("wn18/rotate_fast.yaml", "did you mean 'wn18rr/rotate_fast'"),
        ("rotate_fast", "did you mean 'wn18rr/rotate_fast'"),
        ("rotate_fst", "did you mean 'wn18rr/rotate_fast'"),
        ("nothing.yml", "nor one of the package; the package has codex-m/"),
        ("nosuch", "default/transe"),
        ("x" * 5000, "nor one of the package"),
        ("../wn18rr/rotate", "did you mean 'wn18rr/rotate'"),
    ],
)
def test_neither_file_nor_name(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such config file") as error:
        Config.from_yaml(name)
    assert message in str(error.value)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def test_every_model_has_a_default_config(graph):
    for model in MODELS:
        chosen = choose(None, model, graph)
        config = Config.from_yaml(chosen.path, chosen.overrides)
        assert config.model.name == model
        assert config.dataset.folder() == graph
        assert config.train.early_stopping is not None
        assert f"kgfast train --data DIR --model {model}" in chosen.path.read_text()


def test_a_graph_and_a_model_are_enough(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("train", "--data", graph, "--model", "RotatE", *(f"--set={it}" for it in QUICK))
    assert result.exit_code == 0, result.stderr
    said = find_config("default/rotate")
    assert f"{said}:\n{said.read_text()}" in result.stderr
    assert "mrr" in result.stdout
    folder = RunFolder(Path("runs") / f"{graph.name}-rotate")
    config = Config.from_yaml(folder.config)
    assert (config.dataset.name, config.dataset.folder()) == (graph.name, graph)
    assert folder.read_result()["steps"] == 2


def test_the_folder_one_stands_in(graph, monkeypatch):
    monkeypatch.chdir(graph)
    chosen = choose(None, "rotate", Path("."))
    assert Config.from_yaml(chosen.path, chosen.overrides).dataset.folder() == graph
    assert chosen.run_name == f"{graph.name}-rotate"


def test_what_is_missing_or_too_much_is_said_in_a_line(graph, tmp_path):
    said = error_of("train")
    assert said == "error: name either a --config, or a --model and --data; got neither"
    models = "complex, conve, cp, distmult, rescal, rotate, tntcomplex, transe"
    for words, end in (
        (("--config", "wn18rr/rotate", "--model", "rotate", "--data", graph), "got both"),
        (("--model", "rotate"), "needs --data, the folder of the graph"),
        (("--model", "rotat", "--data", graph), f"has no default config; known are {models}"),
        (("--model", "rotate", "--data", tmp_path / "none"), "no such folder or table"),
    ):
        assert error_of("train", *words).endswith(end)
    empty = tmp_path / "empty"
    empty.mkdir()
    folder = tmp_path / "run"
    line = error_of("train", "--model", "rotate", "--data", empty, "--run", folder, "--quiet")
    assert line.startswith(f"error: no dataset in {empty}: looked for ")

"""Models and losses of the user: docs/how-to/own_model.md as its reader walks it, trust, errors."""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kgfast import load_run
from kgfast.cli import app
from kgfast.extras.influence import self_influence, tracin
from kgfast.extras.serve import app as server
from kgfast.losses import NegativesLoss
from kgfast.models import Model
from kgfast.ops.values import safe_ids
from kgfast.training import Config, RunFolder, Trainer, build
from support.paths import ROOT
from support.small_runs import (
    GRAPH,
    assert_same_tensors,
    config_of,
    crashing,
    ring_trainer,
    trainer_of,
    write_ring,
)
from support.snippets import commands, snippets

PAGE = (ROOT / "docs/how-to/own_model.md").read_text()
OWN = {
    "model": {"name": "my_research:Gated", "gamma": 12.0, "options": {"std": 0.2}},
    "loss": {"name": "my_research:Contrastive", "options": {"temperature": 0.5}},
}


def write_files(folder):
    """Write each block of the page that begins with the name of its file."""
    for snippet in snippets(PAGE):
        name = snippet.code.partition("\n")[0].removeprefix("# ")
        (folder / name).write_text(snippet.code)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Yield a folder with the files of the page, whose module nobody has imported yet."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [it for it in sys.path if it])
    monkeypatch.setattr(build, "_FOLLOWED", {})
    monkeypatch.delitem(sys.modules, "my_research", raising=False)
    yield tmp_path
    sys.modules.pop("my_research", None)


@pytest.fixture
def run(here):
    """Return the folder of a run, as someone else finds it who has imported nothing."""
    trainer_of("run", **OWN, train={"steps": 8, "keep_every": 4}).fit()
    del sys.modules["my_research"]
    build._FOLLOWED.clear()
    return here / "run"


def test_the_page_can_be_walked(here):
    runpy.run_path("make_people.py")
    said = {}
    for line in commands(PAGE):
        sys.modules.pop("my_research", None)
        words = shlex.split(line)[1:]
        done = CliRunner().invoke(app, [*words, "--debug"])
        assert done.exit_code == 0, f"{line}\n{done.output}"
        said[words[0]] = done.stdout
        if "--trust" in words:
            build._FOLLOWED.clear()
            refused = CliRunner().invoke(app, [it for it in words if it != "--trust"])
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert "say so with --trust" in refused.stderr
    assert list(said) == ["train", "evaluate", "predict", "explain"]
    mrr = json.loads(Path("runs/own/result.json").read_text())["test"]["mrr"]
    assert mrr > 0.1
    assert "person150" in said["predict"]


LOADERS = {
    "load_run": lambda path, **given: load_run(path, data=False, **given),
    "tracin": lambda path, **given: tracin(path, test=[(0, 0, 1)], **given),
    "self_influence": lambda path, **given: self_influence(path, [(0, 0, 1)], **given),
}


# Output of each command with --trust.
COMMANDS = {
    "evaluate run": "test triples by the best checkpoint (step 4)",
    "predict run --head e0 --relation next --k 3": "next",
    "predict run --all --k 3": "score",
    "serve run": "Gated(num_entities=12",
    "report run": "report.html",
    "explain run --head e0 --relation next --tail e1": "Checkpoints: ",
    "export run --to safetensors": "config.json",
    "export run --to official": "checkpoint",
}
LOSS_ALONE = [line for line in COMMANDS if line.startswith("export")]  # for models of kgfast


class TestTrust:
    @pytest.mark.parametrize("loader", LOADERS)
    def test_code_is_run_only_where_it_is_trusted(self, run, loader):
        with pytest.raises(
            ValueError, match=r"model\.name: my_research:Gated.*--trust \(in Python"
        ):
            LOADERS[loader](run)
        assert "my_research" not in sys.modules
        if loader != "self_influence":
            LOADERS[loader](run, trust=True)
            assert "my_research" in sys.modules
        with pytest.raises(ValueError, match="--trust"):  # each time anew
            LOADERS[loader](run)

    @pytest.mark.parametrize("line", COMMANDS)
    def test_commands_run_code_only_with_trust(self, here, monkeypatch, line):
        monkeypatch.setattr(server, "serve", lambda engine, *_, **__: print(engine.model))
        write_ring(here / "ring")
        sections = {"loss": OWN["loss"]} if line in LOSS_ALONE else OWN
        ring_trainer(here, "run", **sections, train={"steps": 4, "keep_every": 2}).fit()
        del sys.modules["my_research"]
        build._FOLLOWED.clear()
        before = sorted(here.rglob("*"))
        refused = CliRunner().invoke(app, line.split())
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert re.match(r"error: (model|loss)\.name: my_research:.*--trust", refused.stderr)
        assert "my_research" not in sys.modules
        assert sorted(here.rglob("*")) == before
        done = CliRunner().invoke(app, [*line.split(), "--trust", "--debug"])
        assert done.exit_code == 0, done.output
        assert COMMANDS[line] in done.stdout
        assert "my_research" in sys.modules


def test_a_loaded_run_has_the_model_and_its_numbers(run):
    loaded = load_run(run, data=False, trust=True)
    assert type(loaded.model).__name__ == "Gated"
    state = {f"model.{name}": it for name, it in loaded.model.state_dict().items()}
    saved, _ = RunFolder(run).load_best()
    assert_same_tensors(state, {name: saved[name] for name in state})
    assert "model.gate" in state
    assert loaded.probabilities(torch.zeros(2)) is None


@pytest.mark.parametrize("dropout", [False, True])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(here, dropout):
    if dropout:
        text = Path("my_research.py").read_text()
        Path("my_research.py").write_text(
            text.replace(
                "* self.gate\n", "* nn.functional.dropout(self.gate, training=self.training)\n"
            )
        )
    train = {"steps": 10, "save_every": 2}
    trainer_of("whole", **OWN, train=train).fit()
    torch.manual_seed(1)
    with pytest.raises(MemoryError), crashing(5):
        trainer_of("cut", **OWN, train=train).fit()
    torch.rand(3)
    before = torch.get_rng_state()
    trainer_of("cut", **OWN, train=train).fit(resume=True)
    assert torch.equal(torch.get_rng_state(), before)
    one, two = (RunFolder(name).load_last()[0] for name in ("whole", "cut"))
    assert_same_tensors(two, one)


def test_ids_of_own_code_are_forced_where_nothing_is_waited_for(here, monkeypatch):
    """``kgfast`` checked ids of the batch alone, and a GPU would read whatever stands there."""
    trainer, seen = trainer_of(**OWN), []
    formula = sys.modules["my_research"].Contrastive
    of_negatives = formula.of_negatives

    def noted(self, *scores):
        seen.append(safe_ids("ids", torch.tensor([0, 9]), 2).tolist())
        return of_negatives(self, *scores)

    monkeypatch.setattr(formula, "of_negatives", noted)
    with trainer.opened():
        trainer._is_deferred = True
        trainer.make_step()
    assert seen == [[0, 1]]


def function(): ...


class Abstract(Model):
    """A model without queries."""


class NotThere(NegativesLoss):
    """A loss without equations."""


GATED, CONTRASTIVE = "my_research:Gated", "my_research:Contrastive"
ABSTRACT, NOT_THERE = f"{__name__}:Abstract", f"{__name__}:NotThere"
# Mistakes of a section: its name, its options, and the message.
MISTAKES = [
    ("model", "no_such:M", {}, "name: no_such:M: No module named 'no_such'"),
    ("model", "my_research:Gatde", {}, "name: my_research:Gatde: module .* has no attribute"),
    ("model", "os:getcwd", {}, "name: os:getcwd must be a class that extends kgfast's Model"),
    ("model", ABSTRACT, {}, f"options: {ABSTRACT}: .* abstract method _queries"),
    ("model", GATED, {"seed": 1}, "options: .* multiple values for keyword argument 'seed'"),
    ("model", GATED, {"sdt": 1}, f"options: {GATED}: .*got an unexpected .* 'sdt'"),
    ("loss", GATED, {}, f"name: {GATED} must be a class that extends kgfast's NegativesLoss"),
    ("loss", NOT_THERE, {}, f"options: {NOT_THERE}: .* abstract method of_negatives"),
    ("loss", CONTRASTIVE, {"temprature": 1}, f"options: {CONTRASTIVE}: .*'temprature'"),
]


@pytest.mark.parametrize(
    ("section", "name", "options", "message"), MISTAKES, ids=range(len(MISTAKES))
)
def test_mistakes_are_named_and_leave_no_folder(here, section, name, options, message):
    values = {"name": name} | ({"options": options} if options else {})
    values |= {"gamma": 12.0} if section == "model" else {}
    with pytest.raises(ValueError, match=rf"{section}\.{message}"):
        Trainer(config_of(**{section: values}), "run", dataset=GRAPH)
    assert not Path("run").exists()


def test_a_loss_of_the_wrong_shape_is_an_error(here):
    text = Path("my_research.py").read_text().replace("logits.logsumexp(-1)", "logits")
    Path("my_research.py").write_text(text)
    with pytest.raises(
        ValueError, match=r"of_negatives\(\) of my_research:Contrastive must return"
    ):
        trainer_of(loss=OWN["loss"]).fit()


def test_a_missing_module_of_the_users_module_is_named(here):
    Path("my_research.py").write_text("import no_such_thing\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        trainer_of(**OWN)


def test_options_are_kept_and_numbers_read(tmp_path):
    config = config_of(model={"name": "a.b:C", "gamma": 12.0, "options": {"lr": 1e-3, "of": [1]}})
    config.to_yaml(tmp_path / "c.yaml")
    again = Config.from_yaml(tmp_path / "c.yaml")
    assert again == config
    assert again.model.options == {"lr": 1e-3, "of": [1]}
    other = config_of(model={"name": "a.b:C", "gamma": 12.0, "options": {"lr": 0.1, "of": [1]}})
    assert config.training_differences(other) == {"model.options.lr": (1e-3, 0.1)}

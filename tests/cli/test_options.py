"""Options that a command does not have."""

import pytest
from typer.main import get_command

from kgfast.cli import app
from kgfast.training.config import packaged_configs
from support.commands import error_of, run

COMMANDS = sorted(get_command(app).commands)
assert {"train", "evaluate", "predict", "serve"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--no-such-option", "--no-such-option=1"])
def test_an_unknown_option_is_refused(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(command, option)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: No such option")
    assert "--no-such-option" in done.stderr
    assert not any(tmp_path.iterdir())


def test_metavars_name_every_allowed_value():
    """Texts, because the values would cost imports that ``kgfast --help`` does without."""
    models = sorted(it.split("/")[1] for it in packaged_configs() if it.startswith("default/"))
    for command in ("train", "search"):
        (model,) = (it for it in get_command(app).commands[command].params if it.name == "model")
        assert model.metavar.split("|") == models


WRONG = {
    "nosuch": "error: No such command 'nosuch' (see kgfast --help)",
    "evalute": "error: No such command 'evalute'. Did you mean 'evaluate'",
    "predict": "error: Missing argument 'RUN",
    "predict r --k 0": "error: Invalid value for '--k': ",
    "predict r --k x": "error: Invalid value for '--k': ",
    "evaluate r --split tst": "error: Invalid value for '--split': 'tst' is not one of 'test', ",
    "evaluate r --hits 0": "error: Invalid value for '--hits': ",
    "info x": "error: Got unexpected extra argument",
    f"evaluate r --split {'x' * 5000}": "error: Invalid value for '--split': 'xxx",
    "train --config nosuch": "error: nosuch: no such config file, nor one of the package",
}


@pytest.mark.parametrize("words", WRONG, ids=lambda words: words[:30])
def test_a_wrong_option_ends_in_a_line_as_other_mistakes_do(words):
    line = error_of(*words.split())
    assert line.startswith(WRONG[words])
    assert len(line) < 400


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_plain_and_short(command):
    text = run(*filter(None, [command]), "--help").stdout
    assert text.startswith("Usage: ")
    assert text.isascii()
    assert "<bool>" not in text
    assert "list[" not in text.partition("Options:")[2]
    assert max(map(len, text.splitlines())) <= 80
    if command is None:
        assert "..." not in text.partition("Commands:")[2]  # summaries fit their line
        done = run()
        assert (done.exit_code, done.stderr.startswith("Usage: ")) == (2, True)

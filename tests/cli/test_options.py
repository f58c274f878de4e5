"""Options that a command does not have."""

import pytest
from typer.main import get_command

from kgfast.cli import app
from kgfast.graph.stored.inputs import ORDERS
from kgfast.training.config.files import packaged_configs
from support.commands import run

COMMANDS = sorted(get_command(app).commands)


def test_commands_are_found():
    assert {"train", "evaluate", "predict", "serve", "plan"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--no-such-option", "--no-such-option=1"])
def test_an_unknown_option_is_refused(command, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(command, option)
    assert done.exit_code == 2
    assert "No such option: --no-such-option" in done.stderr
    assert not any(tmp_path.iterdir())


def test_metavars_name_every_allowed_value():
    """Texts, because the values would cost imports that ``kgfast --help`` does without."""
    models = sorted(it.split("/")[1] for it in packaged_configs() if it.startswith("default/"))
    for command, option, values in (
        ("train", "model", models),
        ("search", "model", models),
        ("known", "columns", sorted(ORDERS)),
    ):
        (found,) = (it for it in get_command(app).commands[command].params if it.name == option)
        assert found.metavar.split("|") == values

"""Options that a command does not have."""

import pytest
from typer.main import get_command

from kgfast.cli import app
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

"""The command line, run in this process."""

import json

from typer.testing import CliRunner

from kgfast.cli import app


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def lines_of(*words):
    """Return the objects that a command prints with ``--json``."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def error_of(*words):
    """Return the one line of a command that fails, after its warnings."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = (it for it in result.stderr.splitlines() if not it.startswith("warning: "))
    return line

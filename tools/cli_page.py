"""Every command and option: docs/reference/cli.md, made from the command line itself.

``benchmarks/pages.py`` writes the page. Texts are those that ``kgfast COMMAND --help`` shows.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from kgfast.cli import app

INTRO = """# Command line

Written by `python benchmarks/pages.py cli` from the command line itself; do not edit.

`kgfast COMMAND --help` shows the same texts, and `python -m kgfast` stands for `kgfast`. A mistake
of the user ends in one line and exit code 2; `--debug` shows the traceback.
[Train a model](../how-to/train.md) and the other how-to pages have examples of each command.
"""


def page() -> str:
    """Return the whole page."""
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join([INTRO, *(line for name in commands for line in _command(commands[name]))])


def _command(command: Any) -> Iterator[str]:
    yield from [f"## {command.name}", "", _cell(command.help or ""), ""]
    rows = [_row(it) for it in command.params if it.name != "help" and not it.hidden]
    if rows:
        yield from ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""]


def _row(option: Any) -> str:
    """Return a line of the table for an argument, whose name is a word, or an option."""
    is_option = option.opts[0].startswith("-")
    names = [*option.opts, *option.secondary_opts] if is_option else [option.metavar or option.name]
    default = "required" if option.required else _default(option.default)
    return f"| {', '.join(f'`{it}`' for it in names)} | {default} | {_cell(option.help or '')} |"


def _default(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    return "" if value in (None, False, (), []) or callable(value) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

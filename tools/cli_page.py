"""Every command and option: docs/reference/cli.md, made from the command line itself.

``benchmarks/pages.py`` writes the page. Texts are those that ``kgfast COMMAND --help`` shows.
"""

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.main import get_command

from kgfast.cli import app

INTRO = """# Command line

Written by `python benchmarks/pages.py cli` from the command line itself; do not edit.

`kgfast COMMAND --help` shows the same texts, and `python -m kgfast` stands for `kgfast`. A mistake
of the user ends in one line and exit code 2; `--debug` shows the traceback.
[Train a model](../how-to/train.md) and the other how-to pages have examples of each command.
"""

_KINDS = {bool: "", int: "whole number", float: "number", Path: "path", str: "text"}


def page() -> str:
    """Return the whole page."""
    group: Any = get_command(app)
    every = [group, *group.commands.values()]
    return "\n".join([INTRO, *(line for command in every for line in _command(command))])


def _command(command: Any) -> Iterator[str]:
    yield from [f"## {command.name}", "", _cell(command.help or ""), ""]
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    shown = [it for it in command.params if it.name in hints and not it.hidden]
    rows = [_row(it, hints[it.name]) for it in shown]
    if rows:
        head = ["| argument or option | takes | default | meaning |", "|---|---|---|---|"]
        yield from [*head, *rows, ""]


def _row(option: Any, hint: Any) -> str:
    """Return a line of the table for an argument, whose name is a word, or an option."""
    is_option = option.opts[0].startswith("-")
    names = [*option.opts, *option.secondary_opts] if is_option else [option.metavar or option.name]
    default = "required" if option.required else _default(option.default)
    cells = [
        ", ".join(f"`{it}`" for it in names),
        _takes(option.metavar if is_option else None, hint),
        default,
    ]
    return f"| {' | '.join([*cells, _cell(option.help or '')])} |"


def _takes(metavar: str | None, hint: Any) -> str:
    """Return the values that an argument or option takes; nothing for a flag."""
    if metavar is not None:
        return ", ".join(f"`{it}`" for it in metavar.split("|"))
    least = next((it.min for it in get_args(hint)[1:] if it.min is not None), None)
    while kinds := get_args(hint):  # Annotated, a list, or one that may be None
        hint = kinds[0]
    if issubclass(hint, Enum):
        return ", ".join(f"`{it.value}`" for it in hint)
    return _KINDS[hint] + ("" if least is None else f" >= {least}")


def _default(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    return "" if value in (None, False, (), []) or callable(value) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

"""``kgfast convert`` and ``kgfast known``: tables and triples of other programs, as folders."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli.common import command, say

Format = StrEnum("Format", "official dglke libkge")


@command
def convert(
    source: Annotated[
        Path, typer.Argument(help="A folder of the official code or DGL-KE; a LibKGE file.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder for the tables.")],
    format: Annotated[
        Format | None,
        typer.Option(
            "--from", help="The library of the source; detected from the files by default."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the data, for the names of the rows.")
    ] = None,
) -> None:
    """Turn a model of another library into a folder of tables."""
    from kgfast.adapters.convert import convert as converted

    for path in converted(source, out, format=format, data=data):
        say(str(path))


@command
def known(
    files: Annotated[
        list[Path], typer.Argument(help="Triples of ids: .npy [T, 3], or text of three ids a line.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder for the index.")],
) -> None:
    """Index the known triples of files larger than memory."""
    from kgfast.graph import KnownTriples

    triples = KnownTriples.build(files, out)
    say(f"{out}: {triples!r}, checksum {triples.checksum}")

"""``kgfast known``: files of triples, as an index in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli.common import command, say


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

"""``kgfast known``: files of triples, as an index in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli.common import command, say


@command
def known(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Triples of ids: .npy, .parquet, .tsv, .txt, .del; or folders of such."
        ),
    ],
    out: Annotated[Path, typer.Option(help="A new folder for the index.")],
    num_entities: Annotated[
        int | None, typer.Option(help="Ids of entities must lie below this.")
    ] = None,
    num_relations: Annotated[
        int | None, typer.Option(help="Ids of relations must lie below this.")
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            metavar="hrt|htr|rht|rth|thr|trh", help="Order of the columns of .npy and text."
        ),
    ] = "hrt",
    relations: Annotated[
        bool, typer.Option("--relations", help="Index the relations of (h, t), too.")
    ] = False,
    max_memory: Annotated[
        str, typer.Option(metavar="BYTES", help='Memory to use, such as "4GiB".')
    ] = "1GiB",
) -> None:
    """Index the known triples of files larger than memory."""
    from kgfast.graph import KnownTriples

    found = KnownTriples.build(
        files,
        out,
        num_entities=num_entities,
        num_relations=num_relations,
        columns=columns,
        relations=relations,
        max_memory=max_memory,
        progress=True,
    )
    say(f"{out}: {found!r}, checksum {found.checksum}")

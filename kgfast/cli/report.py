"""``kgfast report``."""

from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli import shared
from kgfast.cli.common import command, say


@command
def report(
    run: shared.FolderToRank,
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html.")] = None,
    split: Annotated[shared.Split, typer.Option(help="Split to rank.")] = shared.Split.test,
    hits: shared.Hits = None,
    checkpoint: shared.Checkpoint = shared.Which.best,
    data: shared.Data = None,
    set: shared.Set = None,
    trust: shared.Trust = False,
) -> None:
    """Write the results of a run on one page of HTML."""
    from kgfast.extras.report import write_report

    path = write_report(
        run,
        out,
        split=split.value,
        hits=hits or (1, 3, 10),
        data=data,
        checkpoint=checkpoint.value,
        device=None,
        overrides=set,
        trust=trust,
    )
    say(str(path))

"""``kgfast report``."""

from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli import flags
from kgfast.cli.common import command, say


@command
def report(
    run: flags.FolderToRank,
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html.")] = None,
    split: Annotated[flags.Split, typer.Option(help="Split to rank.")] = flags.Split.test,
    hits: flags.Hits = None,
    checkpoint: flags.Checkpoint = flags.Which.best,
    data: flags.Data = None,
    trust: flags.Trust = False,
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
        trust=trust,
    )
    say(str(path))

"""``kgfast report``."""

from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli.common import (
    Checkpoint,
    Data,
    Debug,
    FolderToRank,
    Hits,
    Set,
    Trust,
    Which,
    app,
    errors_in_a_line,
    say,
)
from kgfast.cli.evaluation import Split


@app.command()
def report(
    run: FolderToRank,
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html.")] = None,
    split: Annotated[Split, typer.Option(help="Split to rank.")] = Split.test,
    hits: Hits = None,
    checkpoint: Checkpoint = Which.best,
    data: Data = None,
    set: Set = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Write the results of a run on one page of HTML."""
    with errors_in_a_line(debug):
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

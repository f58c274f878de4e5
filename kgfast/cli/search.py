"""``kgfast search``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli import flags
from kgfast.cli.common import choose, command, print_table, say
from kgfast.text import escaped


@command
def search(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A YAML file with a section search, or a name."),
    ] = None,
    model: flags.DefaultOf = None,
    data: flags.Graph = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time of all trials together; search.minutes.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials; search.trials.")] = None,
    set: flags.Set = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of the search; searches/<folder>-<config>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume where the search ended.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Instead of a search, show the trials of an earlier search."
        ),
    ] = None,
    quiet: flags.Quiet = False,
) -> None:
    """Search the ranges of a config by successive halving."""
    from kgfast.frames import needed

    needed("optuna", "kgfast search", '"kgfast[search]"')
    from kgfast.extras.search import load_search
    from kgfast.extras.search import search as find

    if show is not None:
        _print_trials(show, load_search(show))
        return
    from kgfast.training import Config

    if resume and run is not None and config is None and model is None:
        stored = run / "config.yaml"
        config = str(stored) if stored.is_file() else None
    chosen = choose(config, model, data)
    budget = {"search.minutes": minutes, "search.trials": trials}
    options = [f"{key}={json.dumps(n)}" for key, n in budget.items() if n is not None]
    overrides = [*chosen.overrides, *(set or ()), *options]
    checked = Config.from_yaml(chosen.path, overrides)
    folder = run or Path("searches") / chosen.run_name
    if resume and not (folder / "config.yaml").is_file():
        raise FileNotFoundError(
            f"{folder} holds no search to resume: name its folder with --run, or leave out "
            "--resume to begin"
        )
    study = find(checked, folder, resume=resume, progress=not quiet)
    _print_trials(folder, study)


def _print_trials(folder: Path, study: Any) -> None:
    """Print a line per trial, the best first, and how to use the best."""
    from rich.table import Table

    from kgfast.extras.search import rows_of

    rows = rows_of(study)
    table = Table(title=escaped(f"{folder}: {len(rows)} trials"), title_justify="left")
    keys = list(rows[0]["values"]) if rows else []
    for name in ("trial", "MRR", "until", "min", *keys, "outcome"):
        table.add_column(escaped(name), justify="right")
    for row in rows:
        mrr = "" if row["mrr"] is None else f"{row['mrr']:.4f}"
        drawn = [row["values"].get(key, "") for key in keys]
        values = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in drawn]
        until, minutes = str(max(row["rungs"], default=0)), f"{row['seconds'] / 60:.1f}"
        texts = str(row["number"]), mrr, until, minutes, *values, row["outcome"]
        table.add_row(*map(escaped, texts))
    print_table(table)
    if rows and rows[0]["outcome"] == "done":
        say(f"the best: {folder / 'best.yaml'}; rank the test set with:")
        say(f"kgfast evaluate {folder / 'trials' / str(rows[0]['number'])}")

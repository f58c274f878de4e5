"""``kgfast search``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli.common import (
    Debug,
    DefaultOf,
    Graph,
    Quiet,
    Set,
    app,
    choose,
    errors_in_a_line,
    print_table,
    say,
)
from kgfast.text import escaped


@app.command()
def search(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A YAML file with a section search, or a name."),
    ] = None,
    model: DefaultOf = None,
    data: Graph = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time of all trials together; search.minutes.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials; search.trials.")] = None,
    set: Set = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of the search; searches/<folder>-<config>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume where the search ended.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of a search, show the trials of an earlier search, and draw them.",
        ),
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Search the ranges of a config by successive halving."""
    with errors_in_a_line(debug):
        if show is not None:
            _show(show)
            return
        from kgfast.extras.search import search as find
        from kgfast.training import Config

        chosen = choose(config, model, data)
        budget = {"search.minutes": minutes, "search.trials": trials}
        options = [f"{key}={json.dumps(it)}" for key, it in budget.items() if it is not None]
        overrides = [*chosen.overrides, *(set or ()), *options]
        checked = Config.from_yaml(chosen.path, overrides)
        folder = run or Path("searches") / chosen.run_name
        if resume and not (folder / "config.yaml").is_file():
            raise FileNotFoundError(
                f"{folder} holds no search to resume: name its folder with --run, or leave out "
                "--resume to begin"
            )
        found = find(checked, folder, resume=resume, progress=not quiet)
        _print_trials(folder, found)


def _show(folder: Path) -> None:
    """Print the table of trials, and draw the picture if there is data to draw."""
    from kgfast.extras.search import plot_trials, read_trials

    found = read_trials(folder)
    _print_trials(folder, found)
    if found.best is not None:
        for path in plot_trials(folder):
            say(str(path))


def _print_trials(folder: Path, found: Any) -> None:
    """Print a line per trial, the best first, and how to use the best."""
    from rich.table import Table

    from kgfast.extras.search.space import names_of

    table = Table(title=escaped(f"{folder}: {found.summary()}"), title_justify="left")
    keys = [name for name, _ in names_of(found.all[0].values)] if found.all else []
    for name in ("trial", "MRR", found.unit, "min", *keys, "outcome"):
        table.add_column(escaped(name), justify="right")
    for trial in found.by_merit():
        mrr = "" if trial.mrr is None else f"{trial.mrr:.4f}"
        values = [escaped(text) for _, text in names_of(trial.values)]
        numbers = [str(trial.number), mrr, str(trial.reached), f"{trial.seconds / 60:.1f}"]
        table.add_row(*numbers, *values, trial.outcome.value)
    print_table(table, markup=False)
    best = found.best
    if best is not None:
        run = folder / "trials" / str(best.number)
        say(f"the best: {folder / 'best.yaml'}; rank the test set with:")
        say(f"kgfast train --config {folder / 'best.yaml'} --run {run} --resume")

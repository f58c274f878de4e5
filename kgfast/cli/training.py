"""``kgfast train`` and ``kgfast export``."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kgfast.cli import flags
from kgfast.cli.common import choose, command, load, say, seed_folders, with_spread
from kgfast.text import escaped
from kgfast.whole_files import write_whole

Target = StrEnum("Target", "safetensors official")


@command
def train(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A YAML file, or a name such as wn18rr/rotate_fast."),
    ] = None,
    model: flags.DefaultOf = None,
    data: flags.Graph = None,
    set: flags.Set = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The folder of the run; train.out_dir or runs/<folder>-<config>."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume where the run ended.")] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="Train so many runs, RUN/seed-S, from the config's seed on."),
    ] = None,
    quiet: flags.Quiet = False,
) -> None:
    """Train a model, then rank the test set; also under torchrun."""
    from kgfast.eval.metrics import table_of
    from kgfast.training import Config, RunFolder, Trainer

    if resume and run is not None and config is None and model is None:
        stored = map(RunFolder, (run, *seed_folders(run)))
        first = next((folder.config for folder in stored if folder.config.is_file()), None)
        if first is None and data is None:
            raise FileNotFoundError(f"{run} holds no run to resume: name its folder with --run")
        config = None if first is None else str(first)
    elif resume and run is None and config is None and model is None:
        raise ValueError("--resume: name the folder of the run with --run")
    chosen = choose(config, model, data)
    checked = Config.from_yaml(chosen.path, [*chosen.overrides, *(set or ())])
    path = run or Path(checked.train.out_dir or f"runs/{chosen.run_name}")
    runs = {path: checked}
    if seeds is not None:
        all_seeds = range(checked.seed, checked.seed + seeds)
        runs = {path / f"seed-{seed}": checked.updated({"seed": seed}) for seed in all_seeds}
        if RunFolder(path).config.exists():
            raise ValueError(f"--seeds: {path} holds one run; name another folder with --run")
    elif any(RunFolder(folder).config.is_file() for folder in seed_folders(path)):
        raise ValueError(f"{path} holds runs of --seeds: add --seeds, or name another --run")
    for folder in map(RunFolder, runs):
        if resume and seeds is None and not folder.holds_a_run():
            if not folder.config.is_file():
                raise FileNotFoundError(
                    f"{folder.path} holds no run to resume: name its folder with --run, or leave "
                    "out --resume to begin"
                )
            say(f"{folder.path} holds no checkpoint: the run begins again at step 0", err=True)
        if folder.holds_a_run() and not resume:
            raise ValueError(
                f"{folder.path} holds a run: continue with --resume, or name another folder with "
                "--run"
            )
    if model is not None and not quiet:
        say(f"{chosen.path}:\n{chosen.path.read_text()}", err=True)
    tested = {}
    for path_of_run, config_of_run in runs.items():
        trainer = Trainer(config_of_run, path_of_run, progress=not quiet)
        try:
            result = trainer.fit(resume)
        except KeyboardInterrupt:
            words = f"kgfast train --run {escaped(str(path))} --resume"
            say(f"interrupted: {words} goes on from the last checkpoint, if any", err=True)
            raise
        tested[path_of_run.name] = result.test
        if trainer.assignment.leads:
            say(f"{escaped(str(path_of_run))}: {result!r}")
    if seeds is not None and result.test and trainer.assignment.leads:
        rows = with_spread(tested)
        text = json.dumps(rows, indent=2) + "\n"
        write_whole(path / "seeds.json", lambda fresh: fresh.write_text(text))
        say(f"{escaped(str(path))}: test triples, filtered\n{table_of(rows)}")


@command
def export(
    run: flags.Folder,
    to: Annotated[Target, typer.Option(help="Format of the files.")],
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the files; RUN/export-FORMAT.")
    ] = None,
    checkpoint: flags.Checkpoint = flags.Which.best,
    trust: flags.Trust = False,
) -> None:
    """Write a trained model for another program."""
    from kgfast.adapters.export import export_run

    loaded = load(run, checkpoint, False, trust=trust)
    for path in export_run(loaded, to.value, out or run / f"export-{to.value}"):
        say(str(path))

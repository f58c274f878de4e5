"""``kgfast evaluate`` and ``kgfast report``."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli import flags
from kgfast.cli.common import (
    check_no_options,
    command,
    load,
    load_known,
    say,
    seed_folders,
    with_spread,
)

Sides = StrEnum("Sides", "head relation tail")


@command
def evaluate(
    runs: flags.FoldersToRank,
    split: Annotated[flags.Split, typer.Option(help="Split to rank.")] = flags.Split.test,
    side: Annotated[
        list[Sides] | None,
        typer.Option(
            metavar="head|relation|tail",
            help="Side to predict; may be repeated. The default is head and tail.",
        ),
    ] = None,
    checkpoint: flags.Checkpoint = flags.Which.best,
    data: flags.Data = None,
    per_relation: Annotated[
        bool, typer.Option("--per-relation", help="A row for each relation.")
    ] = False,
    hits: flags.Hits = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Unfiltered: known answers are candidates too.")
    ] = False,
    known: flags.Known = None,
    types: flags.Types = None,
    classify: Annotated[
        bool,
        typer.Option(
            "--classify",
            help="Classify the triples of test and of test_negatives.txt in the data, by "
            "thresholds that are chosen on valid.",
        ),
    ] = False,
    max_memory: flags.Memory = None,
    trust: flags.Trust = False,
) -> None:
    """Rank a split, or classify triples; several runs are compared.

    A folder of ``kgfast train --seeds`` stands for its runs.
    """
    groups = {str(folder): seed_folders(folder) or [folder] for folder in runs}
    if len(groups) < len(runs):
        raise ValueError(f"RUN: {len(runs)} folders, of which {len(groups)} differ")
    compares = any(len(folders) > 1 for folders in (groups, *groups.values()))
    if compares:
        others: dict[str, Any] = {"--classify": classify, "--per-relation": per_relation}
        check_no_options("goes with one RUN", others)
    run = next(iter(groups.values()))[0]
    if classify:
        of_ranks: dict[str, Any] = {"--split": split != flags.Split.test, "--side": side}
        of_ranks |= {"--hits": hits, "--raw": raw, "--known": known, "--types": types}
        of_ranks |= {"--max-memory": max_memory}
        check_no_options("ranks, which --classify does not", of_ranks)
        from kgfast.eval.classification import class_table

        loaded = load(run, checkpoint, data, trust=trust)
        is_of_config = loaded.config is not None
        quality = loaded.classify(loaded.config.dataset.folder(data) if is_of_config else data)
        say(f"by the {_which(run, checkpoint, loaded)}")
        say(class_table(quality.by_relation()) if per_relation else repr(quality))
        return
    from kgfast.models.base import SIDES

    sides = tuple(dict.fromkeys(chosen.value for chosen in side)) if side else SIDES
    options: dict[str, Any] = {"max_memory": max_memory, "progress": sys.stdout.isatty()}

    def ranked(folder: Path) -> tuple[Any, str]:
        loaded = load(folder, checkpoint, data, as_table=max_memory is not None, trust=trust)
        if known is not None:
            options["known"] = load_known(known, loaded)
        if types is not None:
            options["candidate_ids"] = loaded.type_constraints(types)
        if loaded.config is None and loaded.dataset is None:
            raise ValueError(
                f"{folder} holds tables, not a run: --data must name the triples to rank"
            )
        results = loaded.ranks(split.value, sides, **options)
        results = results if isinstance(results, dict) else {None: results}
        results = {dim: ranks.raw if raw else ranks for dim, ranks in results.items()}
        return results, _which(folder, checkpoint, loaded)

    if compares:
        _compare_runs(groups, lambda folder: max(ranked(folder)[0].items())[1], hits, split.value)
        return
    results, which = ranked(run)
    say(f"{split.value} triples by the {which}")
    for dim, ranks in results.items():
        if dim is not None:
            say(f"dim {dim}")
        shown = ranks.by("relation") if per_relation else ranks
        say(shown.table(hits=hits) if hits else repr(shown))


@command
def report(
    run: flags.Folder,
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html.")] = None,
    split: Annotated[flags.Split, typer.Option(help="Split to rank.")] = flags.Split.test,
    hits: flags.Hits = None,
    checkpoint: flags.Checkpoint = flags.Which.best,
    data: flags.Data = None,
    trust: flags.Trust = False,
) -> None:
    """Write the results of a run on one page of HTML."""
    from kgfast.eval import HITS
    from kgfast.extras.report import write_report

    options: Any = {"split": split.value, "checkpoint": checkpoint.value, "trust": trust}
    say(str(write_report(run, out, hits=hits or HITS, data=data, device=None, **options)))


def _compare_runs(groups: Any, ranks_of: Any, hits: Any, split: str) -> None:
    """Print a row for each run, the spread of seeds, and differences from the first group."""
    from kgfast.eval import compare
    from kgfast.eval.metrics import HITS, table_of
    from kgfast.training import RunFolder

    for run in (RunFolder(folder) for folders in groups.values() for folder in folders):
        if run.config.is_file():
            run.read_result()  # a run that has not ended is an error
    options: Any = {"hits": tuple(hits or HITS)}
    ranks = {name: [ranks_of(folder) for folder in folders] for name, folders in groups.items()}
    rows: dict[str, dict[str, float]] = {}
    for name, folders in groups.items():
        metrics = [each.metrics(**options) for each in ranks[name]]
        rows |= with_spread(dict(zip(map(str, folders), metrics, strict=True)), f"{name}: ")
    say(f"{split} triples\n{table_of(rows)}")
    first, *others = ranks
    for other in others:
        pair = [ranks[name][0] if len(ranks[name]) == 1 else ranks[name] for name in (first, other)]
        if isinstance(pair[0], list) != isinstance(pair[1], list):
            say(f"{other} against {first}: one run and several seeds have no common interval")
        else:
            say(f"\n{compare(*pair, names=(first, other), **options)!r}")


def _which(run: Path, checkpoint: flags.Which, loaded: Any) -> str:
    """Name the checkpoint that was loaded: the last if there is no best."""
    from kgfast.training import RunFolder

    if loaded.config is None:
        return "tables of the folder"
    name = checkpoint.value if RunFolder(run).best.exists() else flags.Which.last.value
    step = "" if loaded.step is None else f" (step {loaded.step:,})"
    return f"{name} checkpoint{step}"

"""Trains a row of docs/reference/results.md again, and prints what came out beside the row.

    python benchmarks/reproduce.py                               list the rows
    python benchmarks/reproduce.py fb15k237/transe               download, train, compare
    python benchmarks/reproduce.py fb15k237/transe --data DIR    DIR holds the folder of the graph
    python benchmarks/reproduce.py fb15k237/transe --threads 8   instead of the row's threads

All values of the config come from the row's file in benchmarks/results/runs/, the seed included.
The same command goes on where an earlier one was stopped. `make reproduce ROW=fb15k237/transe` is
this script.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lib.graph_files import check, folder_of
from lib.pages.runs import METRICS, name_of
from lib.results import RESULTS, Row
from lib.tables import Columns, human_seconds, plain

LIST: Columns = (
    ("row", "{name}"),
    ("MRR:", "{test[mrr]:.4f}"),
    ("training:", "{seconds_training:time}"),
    ("threads:", "{threads}"),
    ("graph", "{values[dataset][name]}"),
)
COMPARED: Columns = (
    ("", "{what}"),
    ("the row:", "{row}"),
    ("this run:", "{run}"),
    ("difference:", "{difference}"),
)


# Keys that rows have and configs have no more.
_GONE = (
    *("train.max_total_minutes", "train.accumulate", "train.keep", "data.sides"),
    *("regularizer.weighted", "regularizer.product_weight", "med.positive_weight"),
    *("train.early_stopping.min_delta", "train.early_stopping.side", "train.max_minutes"),
    *("dataset.columns", "model.rscf_relation_transform", "med.enabled", "sched.patience"),
    *("search.reduction", "optim.betas", "distributed.tables", "dataset.test_on"),
)


def rows_of(results: Path) -> dict[str, Row]:
    """Read the files of runs, by the names of their rows."""
    runs = [json.loads(path.read_text()) for path in sorted((results / "runs").glob("*.json"))]
    return {name_of(run["config"]): {"name": name_of(run["config"]), **run} for run in runs}


def config_of(row: Row, folder: Path, threads: int | None) -> dict[str, Any]:
    """Return the values of a row's config, for a folder of data and a number of threads.

    A row that a limit of minutes ended gets the number of its steps, over which a falling learning
    rate then falls.
    """
    values: dict[str, Any] = json.loads(json.dumps(row["values"]))
    values["dataset"]["root"] = str(folder.resolve())
    values["threads"] = threads or row["threads"]
    for key in _GONE:  # with the value of today in every row
        *parents, name = key.split(".")
        section: dict[str, Any] = values
        for parent in parents:
            section = section.get(parent) or {}
        section.pop(name, None)
    if _ended_by_a_clock(row):
        values["train"] |= {"epochs": None, "steps": row["steps"]}
    return values


def _ended_by_a_clock(row: Row) -> bool:
    """Return whether a limit of minutes, in the config or the command, ended a row's run."""
    train = row["values"]["train"]
    is_limited = train.get("max_minutes") or train.get("max_total_minutes")
    is_short = row["steps"] < row.get("planned_steps", row["steps"])
    return is_short and bool(is_limited or "_minutes=" in row["command"])


def train(row: Row, values: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train by ``kgfast train`` in a process of its own, and return the result.

    Raises
    ------
    ValueError
        If the training failed.
    """
    run = out / row["name"].replace("/", "-")
    out.mkdir(parents=True, exist_ok=True)
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(values, sort_keys=False))
    words = ["train", "--config", str(config), "--run", str(run)]
    words += ["--resume"] if (run / "config.yaml").is_file() else []
    print(f"kgfast {shlex.join(words)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "kgfast", *words], check=False).returncode
    if code:
        raise ValueError(f"{run}: kgfast train ended with exit code {code}")
    found: dict[str, Any] = json.loads((run / "result.json").read_text())
    return found


def compared(row: Row, found: Row) -> Iterator[dict[str, str]]:
    """Yield the metrics and the times of a row and of a run, and their differences.

    A row with sub-models has the metrics of each.
    """
    results = found.get("test_of_submodels") or {None: found["test"]}
    for dim, metrics in (row.get("submodels") or {None: row["test"]}).items():
        for metric, label in METRICS.items():
            ours, theirs = metrics[metric], results[dim][metric]
            form = ",.1f" if metric == "mr" else ".4f"
            what = label if dim is None else f"{label}, dim {dim}"
            yield _line(what, f"{ours:{form}}", f"{theirs:{form}}", f"{theirs - ours:+{form}}")
    steps = row["steps"], found["steps"]
    yield _line("steps", *(f"{it:,}" for it in steps), f"{steps[1] - steps[0]:+,}")
    for part in ("training", "evaluating"):
        ours, theirs = row[f"seconds_{part}"], found[f"seconds_{part}"]
        times = f"x {theirs / ours:.2f}" if ours else ""
        yield _line(part, human_seconds(ours), human_seconds(theirs), times)
    threads = row["threads"], found["threads"]
    yield _line("threads", *map(str, threads), "" if threads[0] == threads[1] else "differs")
    yield _line("machine", row["machine"], found["machine"], "")
    for name, version in row["versions"].items():
        here = found["versions"].get(name)
        yield _line(name, str(version), str(here), "" if here == version else "differs")


def _line(what: str, row: str, run: str, difference: str) -> dict[str, str]:
    return {"what": what, "row": row, "run": run, "difference": difference}


def main() -> int:
    """List the rows, or train one and compare; 1 if that cannot be done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("row", nargs="?", metavar="ROW", help="such as fb15k237/transe")
    parser.add_argument("--data", type=Path, metavar="DIR", help="instead of a download")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduced"), metavar="FOLDER")
    parser.add_argument("--threads", type=int, help="those of the row unless given")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = rows_of(options.results)
    if options.row is None:
        print(*plain("Rows of docs/reference/results.md", LIST, list(rows.values())), sep="\n")
        return 0
    try:
        if options.row not in rows:
            raise ValueError(f"no row {options.row}; rows are {', '.join(rows)}")
        row = rows[options.row]
        name = row["values"]["dataset"]["name"]
        folder = folder_of(name, options.data, options.out / "data")
        check(folder, row["data"]["sha256"])
        found = train(row, config_of(row, folder, options.threads), options.out)
    except (OSError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        return 130
    print(*plain(f"{options.row}: test set", COMPARED, list(compared(row, found))), sep="\n")
    if row.get("note"):
        print(f"\nThe row's run: {row['note']}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

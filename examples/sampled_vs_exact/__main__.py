"""Sampled metrics beside exact ones: eight models of each graph, ranked by six protocols.

    python -m examples.sampled_vs_exact --data DIR --out FOLDER
    python -m examples.sampled_vs_exact --data DIR --out FOLDER --graphs wn18rr --minutes 1 --plots

DIR holds a folder for each graph. FOLDER keeps runs and measures: the same command goes on where an
earlier one was stopped. The command writes benchmarks/results/cpu-sampled-vs-exact.json and keeps
the rows of other graphs. docs/explanation/sampled_vs_exact.md explains the rows. Needs numpy 2.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast.models import Model
from kgfast.training import RunFolder

from .measures import COUNTS, Study, model_at, sampled_name
from .models import MODELS, NOMINAL_MINUTES, config_of, trained
from .negatives import KINDS
from .summary import CONSTANT, Row, rows_of

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
NAME = "cpu-sampled-vs-exact"
GRAPHS = "wn18rr,fb15k237,codex-m"
DRAWS = 20


def lib(name: str) -> Any:
    """Import a module that the scripts of benchmarks/ share."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))
    return import_module(f"lib.{name}")


def folder_of(data: Path, graph: str) -> Path:
    """Return the folder of a graph in DIR; hyphens and upper case do not matter.

    Raises
    ------
    FileNotFoundError
        If DIR has no such folder.
    """
    places = [it for it in sorted(data.iterdir()) if it.is_dir()] if data.is_dir() else []
    for place in places:
        if _plain(place.name) == _plain(graph):
            return place
    raise FileNotFoundError(f"--data {data}: no folder {graph} in it")


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def rows_of_graph(
    source: Path,
    folder: Path,
    names: Sequence[str],
    minutes: float,
    draws: int,
    counts: Sequence[int],
    say: Callable[[str], None],
) -> list[Row]:
    """Train, measure and summarize one graph; finished runs and measures are read."""
    dataset = kgfast.datasets.load(source)
    models: dict[str, Callable[[], Model]] = {}
    runs: dict[str, Row] = {}
    last: list[str] = []
    for name in names:
        config = config_of(name, source, minutes, torch.get_num_threads())
        say(f"{source.name}: {name}, {config.train.steps:,} steps")
        paths = trained(folder / name, config, dataset)
        runs[name] = _facts(folder / name, name)
        own = {f"{name}/{_step(path)}": cache(partial(model_at, path)) for path in paths}
        models |= own
        last.append(list(own)[-1])
    dataset = RunFolder(folder / names[0]).load_graph()  # measures need the ids of the runs
    study = Study(dataset, source, folder, counts)
    constant = {f"{CONSTANT}/0": lambda: study.constant}
    say(f"{source.name}: {len(models)} checkpoints, exactly")
    exact = study.exact(models | constant)
    measured: dict[str, list[Any]] = {}
    for draw in range(draws):
        say(f"{source.name}: draw {draw + 1} of {draws}")
        for kind in KINDS:
            if draw:
                found = study.sampled(models, kind, draw)
            else:
                found = study.sampled(models | constant, kind, draw, ranked=last)
            for count in counts:
                measured.setdefault(sampled_name(kind, count), []).append(found)
    about = {
        "graph": source.name,
        "entities": dataset.num_entities,
        "relations": dataset.num_relations,
        "test_triples": len(dataset.test),
        "types": study.types,
        "minutes": minutes,
    }
    return [about | row for row in rows_of(exact, measured, runs)]


def _facts(folder: Path, name: str) -> Row:
    result = RunFolder(folder).read_result()
    return {
        "default": MODELS[name][0],
        "changes": MODELS[name][2],
        "steps": result["steps"],
        "seconds_training": result["seconds_training"],
        "training": {name: result[name] for name in ("machine", "threads", "versions")},
    }


def _step(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def main(arguments: list[str] | None = None) -> int:
    """Train and measure missing models and write the results; return 1 if data are missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--graphs", default=GRAPHS, help=f"{GRAPHS} unless given")
    parser.add_argument("--models", default=",".join(MODELS), help="all eight unless given")
    parser.add_argument(
        "--minutes",
        type=float,
        default=NOMINAL_MINUTES,
        help="approximate training time of each model on one core; sets the number of steps",
    )
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"{DRAWS} unless given")
    parser.add_argument("--negatives", default=",".join(map(str, COUNTS)), metavar="K,K")
    parser.add_argument("--threads", type=int, help="torch's number unless given")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{NAME}.json", metavar="FILE")
    parser.add_argument("--plots", action="store_true", help="draw FILE-<graph>.png of each graph")
    options = parser.parse_args(arguments)
    counts = [int(word) for word in options.negatives.split(",")]
    if options.draws < 1 or counts[0] < 1 or counts != sorted(set(counts)):
        parser.error("--draws must be at least 1, --negatives ascending numbers of at least 1")
    names = options.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models {unknown[0]}: models are {', '.join(MODELS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    about = {"benchmark": "sampled_vs_exact"} | lib("machine").facts("cpu")
    words = [Path(it).name if Path(it).is_absolute() else it for it in arguments or sys.argv[1:]]
    about["command"] = shlex.join(["python", "-m", "examples.sampled_vs_exact", *words])
    say = partial(print, flush=True)
    try:
        for graph in options.graphs.split(","):
            source = folder_of(options.data, graph)
            folder = options.out / source.name
            found = rows_of_graph(
                source, folder, names, options.minutes, options.draws, counts, say
            )
            rows = [about | row for row in found]
            old = lib("results").read_rows(options.json) if options.json.exists() else []
            kept = [row for row in old if row["graph"] != source.name]
            lib("results").write_json(options.json, {"rows": [*kept, *rows]})
            say("\n".join(lib("pages.tables").sampled_orders(rows)))
            if options.plots:
                path = options.json.with_name(f"{options.json.stem}-{source.name}.png")
                lib("pictures").draw_sampled(rows, path)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

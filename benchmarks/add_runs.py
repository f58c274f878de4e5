"""Copies finished runs into benchmarks/results/runs/, and puts them into docs/reference/results.md.

    python benchmarks/add_runs.py RUN...                          runs of files under configs/
        --note TEXT                                               what a reader must know of them

RUN is a folder that ``kgfast train`` has finished; of ``--seeds`` the first run is copied, with the
tests of all. A copy holds its result.json, all values of its config, its evaluations and checksums
of its data; each row of the page has one, and `python benchmarks/reproduce.py` trains it again.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml
from pages import PAGES

from lib.graph_files import checksums, folder_of
from lib.results import RESULTS, ROOT

CONFIGS = ROOT / "configs"
FACTS = ("steps", "seconds_training", "machine", "threads", "versions")


def add(folder: Path, config: Path, target: Path, note: str | None = None) -> Path:
    """Copy a finished run of a file under configs/ into a folder."""
    seeds = sorted(folder.glob("seed-*"), key=lambda path: int(path.name[5:]))
    result, rows, values = _read(seeds[0] if seeds else folder)
    widest = max((row["dim"] for row in rows if row.get("dim")), default=None)
    data = data_of(values["dataset"]["name"], Path(values["dataset"].pop("root", "data")))
    values["train"].pop("out_dir", None)  # a path of the machine, like the root of the data
    run = {
        "config": config.as_posix(),
        "seed": values.get("seed", 0),
        "data": data,
        **{name: result[name] for name in (*FACTS, "test", "seconds_evaluating")},
        "seconds_cpu": result.get("seconds_cpu"),
        "planned_steps": result.get("planned_steps", result["steps"]),
        "command": portable_command(result["command"], config),
        "note": note,
        "submodels": result.get("test_of_submodels", {}),
        "seeds": {path.name[5:]: _read(path)[0]["test"] for path in seeds},
        "values": values,
        "curve": [
            {name: row[name] for name in ("step", "mrr", "hits@10")}
            for row in rows
            if row.get("split") == "valid" and row.get("dim") == widest
        ],
    }
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{config.parent.name}-{config.stem}.json"
    path.write_text(json.dumps(run, indent=2) + "\n")
    return path


def data_of(name: str, root: Path) -> dict[str, Any]:
    """Return the name of a graph and checksums of its files in a folder of graphs."""
    return {"name": name, "sha256": checksums(folder_of(name, root, root))}


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Read the result of a run, its metrics, and its config."""
    result = folder / "result.json"
    if not result.is_file():
        raise FileNotFoundError(f"{result}: no such file; has the run ended?")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = yaml.safe_load((folder / "config.yaml").read_text())
    return json.loads(result.read_text()), rows, values


def config_of(folder: Path) -> Path:
    """Return the file under configs/ that a run's folder is named after."""
    names = {f"{it.parent.name}-{it.stem}": it for it in sorted(CONFIGS.glob("*/*.yaml"))}
    if folder.resolve().name not in names:
        raise ValueError(
            f"{folder}: the folder of a run must be named after its config, one of "
            f"{', '.join(names)}"
        )
    return names[folder.resolve().name].relative_to(ROOT)


def portable_command(command: str, config: Path) -> str:
    """Rewrite a command so that others can begin with it, without the folders of this machine.

    >>> command = "kgfast train -c /a/x.yaml --set dataset.root=/b --resume"
    >>> portable_command(command, Path("configs/x.yaml"))
    'kgfast train -c configs/x.yaml --set dataset.root=DIR'
    """
    words = [word for word in shlex.split(command) if word != "--resume"]
    return shlex.join(_portable_word(word, config) for word in words)


def _portable_word(word: str, config: Path) -> str:
    if Path(word).name == config.name:
        return config.as_posix()
    if word.startswith("dataset.root="):
        return "dataset.root=DIR"
    return Path(word).name if Path(word).is_absolute() else word


def main() -> int:
    """Add runs and update the page; 1 if a run cannot be added."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--note", help="of the runs that are added")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="instead of docs/reference/results.md")
    options = parser.parse_args()
    target = options.results / "runs"
    try:
        for folder in options.runs:
            print(add(folder, config_of(folder), target, options.note))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return PAGES["results"].update(options.results, path=options.page)


if __name__ == "__main__":
    sys.exit(main())

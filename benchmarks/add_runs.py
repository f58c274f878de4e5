"""Copies finished runs into benchmarks/results/runs/, and puts them into docs/reference/results.md.

    python benchmarks/add_runs.py RUN...                          runs of files under configs/
        --note TEXT                                               what a reader must know of them
    python benchmarks/add_runs.py RUN... --variants-of CONFIG     a config with other values
    python benchmarks/add_runs.py --checksums DIR                 of the data, for files without

RUN is a folder that ``kgfast train`` has finished. A copy holds its result.json, all values of its
config, its evaluations and checksums of its data; a row of the page exists only where such a file
does, and `python benchmarks/reproduce.py` trains the row again. A row that is replaced by one with
other values stays on the page, as a run with other values.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pages import PAGES

from lib.graph_files import checksums, folder_of
from lib.pages.runs import OF_A_RUN, all_values, flat
from lib.results import RESULTS, ROOT, Row, Rows

CONFIGS = ROOT / "configs"
FACTS = ("steps", "seconds_training", "machine", "threads", "versions")


def add(folder: Path, config: Path, target: Path, note: str | None = None) -> Path:
    """Copy a finished run of a file under configs/ into a folder."""
    result, rows, values = _read(folder)
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
        "values": values,
        "curve": [
            {name: row[name] for name in ("step", "mrr", "hits@10")}
            for row in rows
            if row.get("split") == "valid" and row.get("dim") == widest
        ],
    }
    _keep_former(run, _path(target, config), _path(target / "variants", config))
    return _write(target, config, run)


def _keep_former(run: Mapping[str, Any], row: Path, variants: Path) -> None:
    """Move the row that a run replaces to the runs with other values, and the run out of these."""
    content = _read_if_there(variants)
    known = content["variants"] if content else []
    former = _read_if_there(row)
    if former and _identity(former) != _identity(run):
        content = content or {name: former[name] for name in ("config", "data")}
        valid_mrr = former["curve"][-1]["mrr"]
        known = [*known, _variant(former["values"], former, valid_mrr, former["command"])]
    kept = _without(known, [run])
    if content and kept:
        variants.parent.mkdir(exist_ok=True)
        variants.write_text(json.dumps({**content, "variants": kept}, indent=2) + "\n")
    elif content:
        variants.unlink(missing_ok=True)


def _read_if_there(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None


def _without(known: Rows, runs: Rows) -> list[Row]:
    """Return known runs but those with the values and steps of others."""
    others = [_identity(run) for run in runs]
    return [it for it in known if _identity(it) not in others]


def _identity(run: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return what makes two runs the same one: their values and steps."""
    return all_values(run), run["steps"]


def _variant(
    values: Mapping[str, Any], result: Mapping[str, Any], valid_mrr: float, command: str
) -> dict[str, Any]:
    return {
        "values": {key: it for key, it in flat(values).items() if key not in OF_A_RUN},
        "valid_mrr": valid_mrr,
        "test_mrr": result["test"]["mrr"],
        **{name: result[name] for name in FACTS},
        "command": command,
    }


def add_variants(folders: Sequence[Path], config: Path, target: Path) -> Path:
    """Add the values and metrics of finished runs to the one file of their config.

    Raises
    ------
    ValueError
        If a run has the values and the steps of the config's own row.
    """
    variants = []
    row = _path(target.parent, config)
    own = _read_if_there(row)
    for folder in folders:
        result, rows, values = _read(folder)
        data = data_of(values["dataset"]["name"], Path(values["dataset"].get("root", "data")))
        valid_mrr = [it["mrr"] for it in rows if it.get("split") == "valid"][-1]
        command = portable_command(result["command"], config)
        variants.append(_variant(values, result, valid_mrr, command))
        if own and _identity(variants[-1]) == _identity(own):
            raise ValueError(f"{folder}: no variant, but values and steps of {row.name}")
    before = _read_if_there(_path(target, config))
    variants = [*_without(before["variants"] if before else [], variants), *variants]
    return _write(target, config, {"config": config.as_posix(), "data": data, "variants": variants})


def data_of(name: str, root: Path) -> dict[str, Any]:
    """Return the name of a graph and checksums of its files in a folder of graphs."""
    return {"name": name, "sha256": checksums(folder_of(name, root, root))}


def add_checksums(target: Path, root: Path) -> None:
    """Add what earlier files of runs lack: the seed, and checksums of the data as they are now.

    Such a file says that its checksums were added afterwards, and on which day.
    """
    note = f"added on {datetime.now(UTC).date()}, of a copy of the data, not by the run"
    for path in [*sorted(target.glob("*.json")), *sorted(target.glob("variants/*.json"))]:
        run = json.loads(path.read_text())
        if "data" in run:
            continue
        first = {"config": run.pop("config")}
        values = run["values"] if "values" in run else run["variants"][0]["values"]
        if "values" in run:
            first["seed"] = values["seed"]
        name = flat(values)["dataset.name"]
        content = {**first, "data": {**data_of(name, root), "note": note}, **run}
        path.write_text(json.dumps(content, indent=2) + "\n")
        print(path)


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Read the result of a run, its metrics, and its config."""
    result = folder / "result.json"
    if not result.is_file():
        raise FileNotFoundError(f"{result}: no such file; has the run ended?")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = yaml.safe_load((folder / "config.yaml").read_text())
    return json.loads(result.read_text()), rows, values


def _write(target: Path, config: Path, content: Mapping[str, Any]) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    path = _path(target, config)
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _path(target: Path, config: Path) -> Path:
    return target / f"{config.parent.name}-{config.stem}.json"


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
    """Rewrite a command so that others can run it, without the folders of this machine.

    >>> portable_command("kgfast train -c /a/x.yaml --set dataset.root=/b", Path("configs/x.yaml"))
    'kgfast train -c configs/x.yaml --set dataset.root=DIR'
    """
    return shlex.join(_portable_word(word, config) for word in shlex.split(command))


def _portable_word(word: str, config: Path) -> str:
    if Path(word).name == config.name:
        return config.as_posix()
    if word.startswith("dataset.root="):
        return "dataset.root=DIR"
    return Path(word).name if Path(word).is_absolute() else word


def main() -> int:
    """Add runs and update the page; 1 if a run cannot be added."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN")
    parser.add_argument("--note", help="of the runs that are added")
    parser.add_argument("--variants-of", type=Path, metavar="CONFIG", help="a file under configs/")
    parser.add_argument("--checksums", type=Path, metavar="DIR", help="the folder of the graphs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="instead of docs/reference/results.md")
    options = parser.parse_args()
    if not options.runs and options.checksums is None:
        parser.error("name a RUN, or --checksums DIR")
    target = options.results / "runs"
    try:
        if options.checksums is not None:
            add_checksums(target, options.checksums)
        if options.variants_of is not None:
            config = options.variants_of.resolve().relative_to(ROOT)
            print(add_variants(options.runs, config, target / "variants"))
        else:
            for folder in options.runs:
                print(add(folder, config_of(folder), target, options.note))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return PAGES["results"].update(options.results, path=options.page)


if __name__ == "__main__":
    sys.exit(main())

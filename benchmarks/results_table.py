"""The table of docs/results.md, from runs of the files under configs/.

    python benchmarks/results_table.py --add RUN...   copy runs into benchmarks/results/runs/
        --note TEXT                                   and what a reader must know of them
    python benchmarks/results_table.py --add RUN... --variants-of CONFIG
                                                      what a config came to with other values
    python benchmarks/results_table.py                put the table into docs/results.md
    python benchmarks/results_table.py --check        exit code 1 if docs/results.md says otherwise

RUN is a folder that ``kgfast train`` has finished. What is copied is its result.json, the values
that its config changes, and its evaluations; a row exists only where such a file does.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lib import pages, variants
from lib.pages import ROOT, packages
from lib.results import RESULTS, Rows, read_rows
from lib.tables import human_seconds

RUNS = RESULTS / "runs"
PAGE = ROOT / "docs" / "results.md"
CONFIGS = ROOT / "configs"
_METRICS = {"mrr": "MRR"} | {it: it for it in ("hits@1", "hits@3", "hits@10")} | {"mr": "MR"}
_FACTS = (
    *("test", "steps", "seconds_training", "seconds_evaluating"),
    *("machine", "threads", "versions"),
)
_CURVE_POINTS = 10
_GOALS = {  # test MRR, minutes on two cores
    "wn18rr/rotate_fast": (0.46, 8),
    "wn18rr/rotate": (0.476, 60),
    "wn18rr/transe": (0.225, 30),
    "fb15k237/transe": (0.312, 30),
    "wn18rr/complex": (0.44, 30),
    "wn18rr/rotate_med_640d": (0.466, 90),  # of the widest: within 0.01 of the published
    "wn18rr/distmult": (0.445, 60),
    "wn18rr/conve": (0.430, 120),
    "fb15k237/conve": (0.320, 120),
    "fb15k237/distmult": (0.340, 60),
    "fb15k237/rotate": (0.333, 120),
    "wn18rr/complex_n3": (0.470, 60),
    "fb15k237/complex_n3": (0.350, 90),
    "wn18rr/complex_n3_rp": (0.472, 90),
    "fb15k237/complex_n3_rp": (0.365, 120),
    "wn18rr/cp_n3": (0.470, 90),
    "fb15k237/cp_n3": (0.350, 90),
    "wn18rr/rescal_dura": (0.470, 90),
    "fb15k237/rescal_dura": (0.350, 90),
}

Run = Mapping[str, Any]


def add(folder: Path, config: Path, target: Path = RUNS, note: str | None = None) -> Path:
    """Copy a finished run, of a file under configs/, to where the table finds it.

    Raises
    ------
    FileNotFoundError
        If the run has not ended.
    """
    result = folder / "result.json"
    if not result.is_file():
        raise FileNotFoundError(f"{result}: no such file; has the run ended?")
    found = json.loads(result.read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    widest = max((row["dim"] for row in rows if row.get("dim")), default=None)
    run = {
        "config": config.as_posix(),
        **{name: found[name] for name in _FACTS},
        "planned_steps": found.get("planned_steps", found["steps"]),
        "command": variants.portable_command(found["command"], config),
        "note": note,
        "submodels": found.get("test_of_submodels", {}),
        "values": _portable(yaml.safe_load((folder / "config.yaml").read_text())),
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


def _portable(values: dict[str, Any]) -> dict[str, Any]:
    """The values without the folders of the machine that ran them."""
    values["dataset"].pop("root", None)
    values["train"].pop("out_dir", None)
    return values


def config_of(folder: Path) -> Path:
    """The file under configs/ that a run was started with, by the name of its folder.

    Raises
    ------
    ValueError
        If there is none.
    """
    names = {f"{it.parent.name}-{it.stem}": it for it in sorted(CONFIGS.glob("*/*.yaml"))}
    if folder.resolve().name not in names:
        raise ValueError(
            f"{folder}: the folder of a run must be named after its config, one of "
            f"{', '.join(names)}"
        )
    return names[folder.resolve().name].relative_to(ROOT)


def read_runs(folder: Path) -> list[Run]:
    """The runs, by config."""
    runs = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(runs, key=lambda run: str(run["config"]))


def markdown(runs: Sequence[Run], speeds: Rows = ()) -> str:
    """Results, what they ran on, and how they got there; and how long an epoch takes elsewhere."""
    if not runs:
        return "No run has been recorded yet."
    header = [
        "| config | " + " | ".join(_METRICS.values()) + " | steps | training | goal |",
        "|---|" + "---:|" * (len(_METRICS) + 2) + "---|",
    ]
    rows = [row for run in runs for row in _rows(run)]
    parts = ["\n".join([*header, *rows]), "\n".join(_sources(runs))]
    curves = [_curve(run) for run in runs if run["curve"]]
    if curves:
        parts.append("Filtered MRR on valid, by step:\n\n" + "\n".join(curves))
    epochs = [row for row in speeds if row["benchmark"] == "epoch_speed" and row["seconds"]]
    if epochs:
        parts.append("\n".join(_epochs(epochs)))
    return "\n\n".join(parts)


def _rows(run: Run) -> Iterator[str]:
    """A row, or one for each sub-model."""
    config, time = run["config"], human_seconds(run["seconds_training"])
    name = f"[{config.removeprefix('configs/').removesuffix('.yaml')}](../{config})"
    submodels = run.get("submodels") or {None: run["test"]}
    for dim, metrics in submodels.items():
        cells = [f"{metrics[it]:,.0f}" if it == "mr" else f"{metrics[it]:.3f}" for it in _METRICS]
        label = name if dim is None else f"{name}, dim {dim}"
        yield pages.row(label, *cells, _steps(run), time, _goal(run))


def _steps(run: Run) -> str:
    """The steps made, and of how many where a run ended before."""
    steps, planned = run["steps"], run.get("planned_steps", run["steps"])
    return f"{steps:,}" if steps == planned else f"{steps:,} of {planned:,}"


def _goal(run: Run) -> str:
    """What a run was to reach, and whether it did; each of the two is met or missed alone."""
    name = run["config"].removeprefix("configs/").removesuffix(".yaml")
    if name not in _GOALS:
        return ""
    mrr, minutes = _GOALS[name]
    seconds = run["seconds_training"] + run["seconds_evaluating"]
    verdicts = (
        f"MRR >= {mrr:g}: {'met' if run['test']['mrr'] >= mrr else 'missed'}",
        f"{minutes} min: {'met' if seconds <= 60 * minutes else 'missed'}",
    )
    return ", ".join(verdicts)


def _sources(runs: Sequence[Run]) -> Iterator[str]:
    yield (
        "Test set, filtered, realistic ranks, both sides. Training time is without evaluations, on "
        "the machine named below."
    )
    yield ""
    for run in runs:
        note = f" ({run['note']})" if run.get("note") else ""
        threads = "1 thread" if run["threads"] == 1 else f"{run['threads']} threads"
        where = f"{run['machine']}, {threads}{note}"
        yield f"- `{run['command']}` on {where}: {packages(run['versions'])}"


def _epochs(rows: Rows) -> Iterator[str]:
    """Epochs of 1-vs-all beside those of other programs."""
    first, precision = rows[0], "float32"
    if any("bf16" in row["contender"] for row in rows):
        precision = "float32 but for products of rows that say bf16"
    yield (
        f"Steps of ComplEx with cross entropy over all {first['entities']:,} entities, batch "
        f"{first['batch']}, Adagrad, {precision}, in turns. LCWA asks each distinct pair once, "
        "with all its answers: so its epochs have fewer queries. Epochs are extrapolated from the "
        "median step.\n"
    )
    yield pages.row("", "rank", "a step", "times kgfast's", "queries of an epoch", "an epoch")
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        yield pages.row(
            row["contender"].replace("pykeen", "PyKEEN's LCWA loop"),
            str(row["rank"]),
            human_seconds(row["seconds"]["median"]),
            f"{row['times_kgfast']:.1f}",
            f"{row['queries']:,}",
            human_seconds(row["epoch_seconds"]),
        )
    yield ""
    yield from pages.sources([rows])


def _curve(run: Run) -> str:
    points = run["curve"]
    every = -(-len(points) // _CURVE_POINTS)
    chosen = [*points[:-1][every - 1 :: every], points[-1]]
    steps = ", ".join(f"{it['step']:,}: {it['mrr']:.3f}" for it in chosen)
    name = run["config"].removeprefix("configs/").removesuffix(".yaml")
    return f"- {name}: {steps}"


def main() -> int:
    """Add runs, then update or check the page."""
    parser = pages.new_parser(__doc__, PAGE)
    parser.add_argument("--add", type=Path, nargs="+", metavar="RUN", default=[])
    parser.add_argument("--note", help="of the runs that are added")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--variants-of", type=Path, metavar="CONFIG", help="a file under configs/")
    options = parser.parse_args()
    if options.variants_of is not None and not options.add:
        parser.error("--variants-of needs the runs, --add RUN...")
    others = options.runs / "variants"
    try:
        if options.variants_of is not None:
            config = options.variants_of.resolve().relative_to(ROOT)
            print(variants.add(options.add, config, others))
            options.add = []
        for folder in options.add:
            print(add(folder, config_of(folder), options.runs, options.note))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    speeds = read_rows(RESULTS / "cpu-train-speed.json")
    parts = [markdown(read_runs(options.runs), speeds), *variants.markdown(others)]
    return pages.update(options, __file__, "\n".join(parts))


if __name__ == "__main__":
    sys.exit(main())

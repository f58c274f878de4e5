"""The block of docs/reference/results.md: runs of the configs, and epochs of other programs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from lib.columns import marked
from lib.pages import Table, is_of
from lib.pages import block as tables_of
from lib.published import LINK_PREDICTION
from lib.results import Row, Rows, with_winners
from lib.tables import Columns, cell_of, markdown

METRICS = {"mrr": "MRR"} | {it: it for it in ("hits@1", "hits@3", "hits@10")} | {"mr": "MR"}
EPOCHS: Columns = (
    ("  ", lambda row: row["contender"].replace("pykeen", "PyKEEN's LCWA loop")),
    ("rank:", "{rank}"),
    ("a step:", "{seconds[median]:time}"),
    ("times kgfast's:", lambda row: marked(row, "{times_kgfast:.2f}x")),
    ("queries of an epoch:", "{queries:,}"),
    ("an epoch:", "{epoch_seconds:time}"),
)
SLOWER = ("dense torch", "dense torch, compiled, bf16")  # than compiled; than not compiled
epochs = tables_of(
    Table(
        "cpu-train-speed.json",
        EPOCHS,
        lambda row: (
            is_of(benchmark="epoch_speed")(row)
            and row["seconds"]
            and row["contender"] not in SLOWER
        ),
        title="Steps of ComplEx with a loss over all {entities:,} entities, batch {batch}, "
        "Adagrad, in turns. Cross entropy asks two queries of each triple; KvsAll and LCWA, two "
        "names of one way, ask one query of each distinct pair. Epochs are extrapolated from the "
        "median step.",
        change=lambda rows: with_winners(rows, ("rank", "queries")),
    )
)


def block(folder: Path) -> str:
    """Write results beside published ones, where they ran, and epochs of other programs."""
    runs = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
    runs.sort(key=lambda run: str(run["config"]))
    lines = [line for run in runs for line in _lines(run)]
    return "\n".join([*markdown(RUNS, lines), "", _sources(runs), "", epochs(folder)])


def name_of(config: str) -> str:
    """Name a file under configs/ without its folder and suffix."""
    return config.removeprefix("configs/").removesuffix(".yaml")


def _lines(run: Row) -> Iterator[Row]:
    """Yield a run, or its narrowest and widest sub-model, with the published figures."""
    figures = LINK_PREDICTION.get(name_of(run["config"]))
    published = figures._asdict() if figures else {}
    seeds = [*(run.get("seeds") or {}).values()]
    test = {it: fmean(each[it] for each in seeds) for it in METRICS} if seeds else run["test"]
    models = [*(run.get("submodels") or {None: test}).items()]
    for dim, metrics in models if len(models) == 1 else (models[0], models[-1]):
        yield {**run, "dim": dim, "metrics": metrics, **published}


def _label(run: Row) -> str:
    is_bf16 = run["values"].get("loss", {}).get("precision") == "bf16"
    name = f"[{name_of(run['config'])}](../../{run['config']})" + " (bf16)" * is_bf16
    name += ", steps cut" * ("train.steps=" in run["command"])
    if seeds := run.get("seeds"):
        mrr = [each["mrr"] for each in seeds.values()]
        name += f", mean of {len(seeds)} seeds, MRR {min(mrr):.4f} to {max(mrr):.4f}"
    return name if run["dim"] is None else f"{name}, dim {run['dim']}"


def _steps(run: Row) -> str:
    steps, planned = run["steps"], run.get("planned_steps", run["steps"])
    return f"{steps:,}" if steps == planned else f"{steps:,} of {planned:,}"


def _training(run: Row) -> str:
    cpu = ", {seconds_cpu:time} of CPU" if run.get("seconds_cpu") else ""
    return cell_of(run, "{seconds_training:time}" + cpu)


RUNS: Columns = (
    ("config", _label),
    *(
        (f"{label}:", f"{{metrics[{name}]:{',.0f' if name == 'mr' else '.3f'}}}")
        for name, label in METRICS.items()
    ),
    ("steps:", _steps),
    ("training:", _training),
    ("published MRR:", "{mrr}"),
    ("hits@10:", "{hits_10}"),
    ("by", "{source}"),
)


def _sources(runs: Rows) -> str:
    """Return how to read the table, and where runs ran."""
    machines = sorted({re.split(" Processor|,", run["machine"])[0] for run in runs})
    return (
        "Test set, filtered, realistic ranks, both sides; of sub-models the narrowest and the "
        "widest. Training time is without evaluations. Most runs shared their cores with other "
        "programs, so times say little. *(bf16)*: losses of the run multiplied bf16 numbers, now "
        "float32 on a CPU. Each run's file in "
        "`benchmarks/results/runs/` holds its command, values, curve, machine (1 or 2 threads of "
        f"{' or '.join(machines)}), versions and notes."
    )

"""The block of docs/reference/results.md: runs of the configs, and epochs of other programs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kgfast.training.config import Config
from lib.columns import marked
from lib.pages import packages, with_sources
from lib.published import LINK_PREDICTION, SAFAVI
from lib.results import Row, Rows, read_rows, with_winners
from lib.tables import Cell, Columns, cell_of, markdown

SPEEDS = "cpu-train-speed.json"
METRICS = {"mrr": "MRR"} | {it: it for it in ("hits@1", "hits@3", "hits@10")} | {"mr": "MR"}
CURVE_POINTS = 10
GOALS = {  # test MRR, minutes on two cores
    "wn18rr/rotate_fast": (0.46, 8),
    "wn18rr/rotate": (0.476, 60),
    "wn18rr/transe": (0.225, 30),
    "fb15k237/transe": (0.312, 30),
    "wn18rr/complex": (0.44, 30),
    "wn18rr/rotate_med_640d": (0.466, 90),  # MRR of the widest: within 0.01 of the published
    "wn18rr/distmult": (0.445, 60),
    "wn18rr/conve": (0.430, 120),
    "wn18rr/conve_l2": (0.430, 120),
    "fb15k237/conve": (0.320, 120),
    "fb15k237/distmult": (0.340, 60),
    "fb15k237/rotate": (0.333, 120),
    "wn18rr/complex_n3": (0.488, 120),
    "fb15k237/complex_n3": (0.350, 90),
    "wn18rr/complex_n3_rp": (0.472, 90),
    "fb15k237/complex_n3_rp": (0.365, 120),
    "wn18rr/cp_n3": (0.470, 90),
    "fb15k237/cp_n3": (0.350, 90),
    "wn18rr/rescal_dura": (0.498, 120),
    "fb15k237/rescal_dura": (0.350, 90),
    "codex-m/complex_n3": (0.345, 90),
    "codex-m/complex_n3_rp": (0.345, 90),
    "codex-m/conve": (0.320, 90),
    "codex-m/distmult": (0.325, 90),
    "codex-m/rescal_dura": (0.345, 90),
    "codex-m/rotate": (0.320, 90),
    "codex-m/transe": (0.315, 90),
}
# Keys that say where and how long a run ran, and not what.
OF_A_RUN = ("dataset.root", "train.out_dir", "train.steps", "train.eval_every", "threads")
# Keys of variants that are shown also where all rows agree; those of sampled negatives.
SHOWN = ("model.base_dim", "data.train_bs", "optim.lr", "sched.name")
SHOWN_OF_SAMPLES = ("data.neg_size", "loss.alpha")
EPOCHS: Columns = (
    ("  ", lambda row: row["contender"].replace("pykeen", "PyKEEN's LCWA loop")),
    ("rank:", "{rank}"),
    ("a step:", "{seconds[median]:time}"),
    ("times kgfast's:", lambda row: marked(row, "{times_kgfast:.2f}x")),
    ("queries of an epoch:", "{queries:,}"),
    ("an epoch:", "{epoch_seconds:time}"),
)


def block(folder: Path) -> str:
    """Write results, where they ran, how they got there, and how long an epoch takes elsewhere."""
    runs = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
    runs.sort(key=lambda run: str(run["config"]))
    lines = [line for run in runs for line in _lines(run)]
    parts = ["\n".join(markdown(RUNS, lines)), "\n".join(_sources(runs))]
    if any(name_of(run["config"]) in LINK_PREDICTION for run in runs):
        parts.insert(1, "\n".join(_beside_published(runs)))
    curves = [_curve(run) for run in runs if run["curve"]]
    parts.append("\n".join(["Filtered MRR on valid, by step:\n", *curves]))
    speeds = read_rows(folder / SPEEDS)
    epochs = [row for row in speeds if row["benchmark"] == "epoch_speed" and row["seconds"]]
    if epochs:
        parts.append(_epochs(epochs))
    variants = [json.loads(it.read_text()) for it in sorted(folder.glob("runs/variants/*.json"))]
    own = {run["config"]: run for run in runs}
    tables = [
        line
        for it in variants
        for line in _variants(it["config"], it["variants"], own.get(it["config"]))
    ]
    return "\n".join(["\n\n".join(parts), "", *tables])


def name_of(config: str) -> str:
    """Name a file under configs/ without its folder and suffix."""
    return config.removeprefix("configs/").removesuffix(".yaml")


def _lines(run: Row) -> Iterator[Row]:
    """Yield a run, or each of its sub-models."""
    for dim, metrics in (run.get("submodels") or {None: run["test"]}).items():
        yield {**run, "dim": dim, "metrics": metrics}


def _label(run: Row) -> str:
    name = f"[{name_of(run['config'])}](../../{run['config']})" + _mark(run)
    return name if run["dim"] is None else f"{name}, dim {run['dim']}"


def _mark(run: Row) -> str:
    """Mark a run whose losses multiplied bf16 numbers."""
    return " (bf16)" if run["values"].get("loss", {}).get("precision") == "bf16" else ""


def _steps(run: Row) -> str:
    steps, planned = run["steps"], run.get("planned_steps", run["steps"])
    return f"{steps:,}" if steps == planned else f"{steps:,} of {planned:,}"


def _training(run: Row) -> str:
    cpu = ", {seconds_cpu:time} of CPU" if run.get("seconds_cpu") else ""
    return cell_of(run, "{seconds_training:time}" + cpu)


def _goal(run: Row) -> str:
    """Say what a run was to reach, and whether it did: MRR and minutes are met or missed alone.

    The smaller of two counts: minutes of the clock, or of the CPU, which are fewer where other
    programs shared the cores. Evaluations count too.
    """
    name = name_of(run["config"])
    if name not in GOALS:
        return ""
    mrr, minutes = GOALS[name]
    clock = run["seconds_training"]
    training = min(run.get("seconds_cpu") or clock, clock)
    seconds = training + run["seconds_evaluating"]
    unit = "min" if training == clock else "min of CPU"
    verdicts = (
        f"MRR >= {mrr:g}: {'met' if run['test']['mrr'] >= mrr else 'missed'}",
        f"{minutes} {unit}: {'met' if seconds <= 60 * minutes else 'missed'}",
    )
    return ", ".join(verdicts)


RUNS: Columns = (
    ("config", _label),
    *(
        (f"{label}:", f"{{metrics[{name}]:{',.0f' if name == 'mr' else '.3f'}}}")
        for name, label in METRICS.items()
    ),
    ("steps:", _steps),
    ("training:", _training),
    ("goal", _goal),
)


def _beside_published(runs: Rows) -> Iterator[str]:
    """Yield a table of runs beside the published figures of the same models."""
    ours = {name_of(run["config"]): run["test"] for run in runs}
    yield (
        "Runs beside published figures. Safavi and Koutra and Ruffinelli et al. (whose figures are "
        "those of LibKGE's README) searched for the values of each model; Lacroix et al. have a "
        "rank of 2000. Ours had minutes on two cores, and often smaller ranks: the configs say "
        "which. Safavi and Koutra's RESCAL has no DURA. Other than in the papers, RotatE "
        "on FB15k-237 has reciprocal relations, and TransE on WN18RR predicts relations.\n"
    )
    rows = [
        {"config": name, "ours": ours.get(name), **figures._asdict()}
        for name, figures in LINK_PREDICTION.items()
        if name in ours or figures.source == SAFAVI
    ]
    metrics = {name: METRICS[name] for name in ("mrr", "hits@1", "hits@10")}
    columns = (
        ("model", "{config}"),
        *((f"{label}:", f"{{ours[{name}]:.3f}}") for name, label in metrics.items()),
        *(
            (f"published {label}:", f"{{{name.replace('@', '_')}}}")
            for name, label in metrics.items()
        ),
        ("by", "{source}"),
    )
    yield from markdown(columns, rows)


def _sources(runs: Rows) -> Iterator[str]:
    yield (
        "Test set, filtered, realistic ranks, both sides. Training time is without evaluations, on "
        "the machine named below, with AVX-512 where no instruction set is named; CPU time is that "
        "of all threads, where the run recorded it. *(bf16)*: on a CPU the losses of the run, and "
        "of its variants, multiplied bf16 numbers, where the same config now multiplies float32.\n"
    )
    for run in runs:
        note = f" ({run['note']})" if run.get("note") else ""
        yield f"- `{run['command']}` on {_where(run)}{note}: {packages(run['versions'])}"


def _where(run: Row) -> str:
    threads = "1 thread" if run["threads"] == 1 else f"{run['threads']} threads"
    return f"{run['machine']}, {threads}"


def _curve(run: Row) -> str:
    points = run["curve"]
    every = -(-len(points) // CURVE_POINTS)
    chosen = [*points[:-1][every - 1 :: every], points[-1]]
    steps = ", ".join(f"{it['step']:,}: {it['mrr']:.3f}" for it in chosen)
    return f"- {name_of(run['config'])}: {steps}"


def _epochs(rows: Rows) -> str:
    """Write epochs over all entities beside those of other programs."""
    precision = "float32"
    if any("bf16" in row["contender"] for row in rows):
        precision = "float32 but for products of peers that say bf16"
    told = (
        f"Steps of ComplEx with a loss over all {rows[0]['entities']:,} entities, batch "
        f"{rows[0]['batch']}, Adagrad, {precision}, in turns. The loss is cross entropy, and each "
        "triple asks two queries. In the rows of KvsAll and LCWA, two names of one way, the loss "
        "is binary cross entropy, and each distinct pair asks one query with all its answers. "
        "Epochs are extrapolated from the median step. *Peer wins*: the peer took less time than "
        "kgfast.\n\n"
    )
    return told + with_sources(with_winners(rows, ("rank", "queries")), EPOCHS)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted key; lists, which a section is not, stay as they are.

    >>> flat({"model": {"name": "rotate", "dims": [1, 2]}, "seed": 3})
    {'model.name': 'rotate', 'model.dims': [1, 2], 'seed': 3}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def all_values(run: Row) -> dict[str, Any]:
    """Return the values of a run by dotted key, but where and how long it ran.

    A key that the version of the run did not know has its default.
    """
    values = flat(run["values"]) | {"train.eval_every": 1}  # early stopping needs evaluations
    if values.get("train.epochs") is None:  # a config has one of the two
        values["train.steps"] = run["steps"]
    config = Config.from_dict(values).flat()
    return {key: it for key, it in config.items() if key not in OF_A_RUN}


def _variants(config: str, variants: Rows, own: Row | None) -> Iterator[str]:
    """Yield a table of runs of a config with values other than its own: keys that differ, MRR."""
    rows = [{**it, "values": all_values(it)} for it in variants]
    values = [it["values"] for it in rows]
    others = [*values, all_values(own)] if own else values
    keys = [key for key in values[0] if len({str(it.get(key)) for it in others}) > 1]
    samples = SHOWN_OF_SAMPLES if values[0]["train.mode"] == "negative" else ()
    shared = ", ".join(
        f"`{key}={values[0].get(key)}`" for key in (*SHOWN, *samples) if key not in keys
    )
    yield f"[{name_of(config)}](../../{config}) with other values; in all rows {shared}:\n"
    columns = (
        *((f"`{key}`:", _value_of(key)) for key in keys),
        ("steps:", "{steps:,}"),
        ("last MRR on valid:", "{valid_mrr:.4f}"),
        ("MRR on test:", "{test_mrr:.4f}"),
    )
    yield from markdown(columns, rows)
    places: dict[str, list[str]] = {}
    for number, it in enumerate(rows, 1):
        places.setdefault(f"on {_where(it)}: {packages(it['versions'])}", []).append(str(number))
    told = "; ".join(
        place if len(places) == 1 else f"row{'s' * (len(of) > 1)} {', '.join(of)} {place}"
        for place, of in places.items()
    )
    yield f"\n{told[0].upper()}{told[1:]}.\n"


def _value_of(key: str) -> Cell:
    return lambda variant: str(variant["values"].get(key)).lower()

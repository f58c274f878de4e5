"""The blocks of most pages: which rows of which files, under which columns."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lib.columns import (
    CASE_TIMES,
    CLASSES,
    CROP_RANKS,
    DOT_TIERS,
    INFLUENCES,
    LOSS_NAMES,
    LOSSES,
    PATHS,
    PEERS,
    PYKEEN,
    RACE,
    RACE_WORK,
    SAMPLED,
    STEP_COUNTS,
    STEPS,
    STREAMED,
    WHERE,
)
from lib.pages import Table, block, is_of, packages, sources
from lib.published import CLASSIFICATION
from lib.results import Row, Rows, of_section, read_rows, with_winners
from lib.tables import Columns, cell_of, markdown, median

SAMPLED_FILE = "cpu-sampled-vs-exact.json"
STAR_WORKS = {
    "greedy": "the best output",
    "sample": "a draw",
    "generate": "{positions} positions by the GPT, trunk included",
    "step, nodes": "a training step, softmax over the nodes in use",
    "step, sampled": "a training step, sampled softmax with {negatives:,} negatives",
    "step, full": "loss and gradients, softmax over the vocabulary",
}
STAR: Columns = (
    ("what", lambda row: cell_of(row, STAR_WORKS[row["section"]])),
    ("by", lambda row: "kgfast" if row["contender"] == "kgfast" else "torch, logits held"),
    ("samples:", "{samples:,}"),
    ("outputs:", lambda row: f"{row.get('candidates', row['vocabulary']):,}"),
    ("seconds:", "{seconds:,.1f}"),
    ("CPU seconds:", "{cpu_seconds:,.1f}"),
    ("peak memory:", "{bytes:bytes}"),
    ("logits, by formula:", "{dense_bytes:bytes}"),
)
STAR_CURVE: Columns = (
    ("batches:", "{batch:,}"),
    ("mean loss of the last 100:", "{loss:.3f}"),
    ("seconds of cores:", "{cpu_seconds:.0f}"),
)
MEMORY: Columns = (
    ("RotatE, dim:", "{dim}"),
    ("kgfast, beyond the inputs:", "**{kgfast[bytes]:bytes}**"),
    ("one `[128, N, dim]` tensor:", "{formula[tensor]:bytes}"),
    ("official code:", "{formula[official]:bytes}"),
    ("LibKGE:", "{formula[libkge]:bytes}"),
    ("PyKEEN:", "{formula[pykeen]:bytes}"),
    ("kgfast, time:", "**{kgfast[seconds]:time}**"),
    ("naive, in plain torch:", "~{naive[extrapolated_seconds]:time}"),
)
WHOLE: Columns = (("whole test set, dim 512, by", "{contender}"), ("time:", median))
RANKERS = ("kgfast", "kgfast baseline", "compile", "bare", "matmul + compare")
COUNTS: Columns = (*RACE_WORK[:2], ("queries:", "{batch}"), *RACE[1::2])
TOGETHER: Columns = (
    ("entities:", "{entities:,}"),
    ("two processes of one thread, times one of two:", "{ratio:.2f}x"),
    ("by the time of the cores:", "{ratio_by_cores:.2f}x"),
)
MAIN_PACKAGES = ("python", "kgfast", "numpy", "torch", "triton")
LOSS_WORK = ("section", "score", "table", "k", "batch", "entities", "candidates", "dim")


def _with_published(rows: Rows) -> list[Row]:
    return [{**row, "theirs": CLASSIFICATION.get(row["model"])} for row in rows]


def _with_times(rows: Rows) -> list[Row]:
    widest = next(row for row in rows if row["way"] == "widest alone")["kgfast"]["seconds"]
    return [{**row, "times_widest": row["kgfast"]["seconds"] / widest} for row in rows]


def _losses(file: str, title: str, *contenders: str) -> Table:
    names = ("kgfast", *contenders)
    columns = [(f"{LOSS_NAMES.get(name, name)}:", f"{{cells[{name}]}}") for name in names]
    return Table(
        f"*-{file}.json",
        (*LOSSES[:2], *columns),
        lambda row: row["section"].startswith("1-vs-all") == ("1-vs-all" in file),
        title=f"### {title}: {{place}}",
        change=_by_work,
    )


def _by_work(rows: Rows) -> list[Row]:
    """Join the rows of all contenders of a work, whose ``cells`` they become."""
    works: dict[tuple[Any, ...], Row] = {}
    for row in with_winners(rows, LOSS_WORK):
        work = works.setdefault(tuple(map(row.get, LOSS_WORK)), {**row, "cells": {}})
        times = "" if row["contender"] == "kgfast" else cell_of(row, "{times_kgfast:.2f}x")
        times = f"**{times}**" if row["wins"] else times
        cell = median(row), times, cell_of(row, "{bytes:bytes}")
        work["cells"][row["contender"]] = ", ".join(filter(None, cell))
    return list(works.values())


def _best_batches(rows: Rows) -> list[Row]:
    """Leave out captum's other batch sizes than the fastest of each work."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        work = row["dataset"], row["section"], row["contender"]
        if work not in best or row["cpu_seconds"] < best[work]["cpu_seconds"]:
            best[work] = row
    return list(best.values())


def _is_of_tiers(row: Row) -> bool:
    """Leave out tails of trained tables, which are no slower than heads, and heavy tails."""
    return not row["table"].endswith((", tail", "heavy tails"))


prepared = block(
    Table(
        "cpu-peers-speed.json",
        [column for column in PEERS if column not in (WHERE, ("threads:", "{threads}"))],
        is_of(threads=1, batch=(1, 64)),
        title="One thread of {machine[name]}, {machine[isa]}:",
    )
)
tiers = block(Table("cpu-dot-tiers-speed.json", DOT_TIERS, _is_of_tiers))
influence = block(Table("cpu-influence-speed.json", INFLUENCES, change=_best_batches))
paths = block(Table("cpu-paths-speed.json", PATHS))
pykeen = block(Table("cpu-pykeen-speed.json", PYKEEN))
classify = block(
    Table(
        "cpu-classification.json",
        (
            *CLASSES,
            ("published accuracy:", "{theirs[0]:.3f}"),
            ("published F1:", "{theirs[1]:.3f}"),
        ),
        change=_with_published,
    )
)
path_star = block(
    Table("cpu-path-star.json", STAR),
    Table(
        "cpu-path-star-training.json",
        STAR_CURVE,
        title="Training: {config[graph_d]:,} arms of {config[graph_l]}, "
        "{config[graph_vocab_size]:,} tokens, batches of {config[batch_size]:,}.",
        note="Paths that come out right: {shares[0][right]:.1%} of {shares[0][paths]:,} "
        "(training), {shares[1][right]:.1%} of {shares[1][paths]:,} (held out); by chance one in "
        "{config[graph_d]:,} begins with the right arm.",
        change=lambda rows: rows[0]["curve"],
    ),
)
med_rscf = block(
    Table(
        "*-eval-mem.json",
        (*CROP_RANKS, STEPS[-1]),
        is_of(benchmark="eval_mem_crops"),
        title="### Evaluation, sub-models {dims}: {place}",
        note="{graph[test_triples]:,} triples, both sides of each sub-model, against "
        "{graph[entities]:,} entities ({graph[name]}), filtered. By formula: what a batch of "
        "{formula[batch]} holds in the evaluation that people use.",
        change=_with_times,
    ),
    Table(
        "*-med-speed.json",
        STEPS,
        title="### Training steps, sub-models {dims}: {place}",
        note="A pass each takes the way of models whose operands depend on the crop, over the "
        "distinct rows of a step. With RSCF scores always do; nested are the filters.",
    ),
)
losses = block(
    _losses("loss-mem", "Losses and scores, forward and backward", "eager", "compile", "linear"),
    _losses("loss-1-vs-all", "Steps of 1-vs-all", "eager", "eager_bf16", "products"),
)
speed = block(
    Table(
        "*-eval-mem.json",
        MEMORY,
        is_of(benchmark="eval_mem"),
        title="### Filtered evaluation of the whole test set: {place}",
    ),
    Table("*-eval-speed.json", WHOLE, is_of(section="whole", dim=512)),
    Table(
        "*-eval-speed.json",
        COUNTS,
        is_of(section=("rotate", "single", "dot"), dim=512, contender=RANKERS),
        title="### Ranks: {place}",
    ),
    Table(
        "*-train-speed.json",
        (*RACE[:2], *RACE[3:]),
        is_of(benchmark="train_speed"),
        title="### Training steps of RotatE, dim {dim}, {batch} triples x {negatives} negatives: "
        "{place}",
    ),
)
scale = block(
    Table("cpu-scale.json", STREAMED, is_of(section="stream"), "A table in a file, 256 queries:"),
    Table("cpu-scale.json", TOGETHER, is_of(section="processes")),
    Table(
        "cpu-scale.json",
        SAMPLED,
        is_of(section="sampled"),
        "As large as ogbl-wikikg2, entities read from a file, planted ranks of 1 to 32:",
    ),
)


def gpu(folder: Path) -> str:
    """Write what ran on devices, and the launches of a step."""
    parts = [block(Table("static-step-counts.json", STEP_COUNTS))(folder), "", "## On a device"]
    for path in sorted(folder.glob("*-cases.jsonl")):
        summary = path.with_name(path.name.replace("cases.jsonl", "summary.json"))
        cases = [json.loads(line) for line in path.read_text().splitlines()]
        if timed := [line for line in cases if "seconds" in line]:
            parts += ["", *markdown(CASE_TIMES, timed)]
        columns, rows = _compared([line for line in cases if line["step"] == "checks"])
        parts += ["", *markdown(columns, rows)] * bool(rows)
        ran = Counter(line["step"] for line in cases if "left_out" not in line)
        failed = Counter(line["step"] for line in cases if "error" in line)
        said = (f"`{step}` {count}, of which {failed[step]} failed" for step, count in ran.items())
        parts += ["", f"Cases that ran: {'; '.join(said)}.", ""]
        told = (
            "`{command}` on {machine[name]}, driver {machine[driver]}, CUDA {machine[cuda]}: "
            "torch {versions[torch]}, triton {versions[triton]}, kgfast {versions[kgfast]}."
        )
        parts.append(cell_of(json.loads(summary.read_text()), told))
    return "\n".join(parts)


def _compared(cases: list[Row]) -> tuple[Columns, list[Row]]:
    """Return the equal integers of each score, and the largest error of each other work."""
    rows: dict[str, dict[str, Any]] = {}
    for line in cases:
        score, _, work = line["case"].partition(": ")
        row, name = rows.setdefault(score, {"score": score, "equal": 0}), work.split(",")[0]
        if "relative_error" in line:
            row[name] = max(row.get(name, 0.0), line["relative_error"])
        else:
            row["equal"] += "error" not in line
    works = dict.fromkeys(name for row in rows.values() for name in list(row)[2:])
    errors = [(f"{name}:", f"{{{name}:.1e}}") for name in works]
    return (("score", "`{score}`"), ("equal integers:", "{equal}"), *errors), list(rows.values())


def sampled(folder: Path) -> str:
    """Write the order of models by each protocol, a row and a picture for each graph."""
    rows = read_rows(folder / SAMPLED_FILE)
    parts = [
        "Kendall's tau between each protocol's order of models and the exact order, by MRR: mean "
        "over draws. In brackets, pairs of models that most draws flip.\n",
        *sampled_orders(rows),
        "",
    ]
    for graph in dict.fromkeys(row["graph"] for row in rows):
        picture = f"{SAMPLED_FILE.removesuffix('.json')}-{graph}.png"
        if (folder / picture).is_file():
            place = f"../../benchmarks/results/{picture}"
            parts += [f"![MRR of each model by protocol, {graph}]({place})", ""]
    return "\n".join([*parts, *sources([rows])])


def sampled_orders(rows: Rows) -> Iterator[str]:
    """Yield the table of the order of models by each protocol, a row for each graph."""
    orders = of_section(rows, "order")
    last = [it for it in orders if (it["metric"], it["scope"]) == ("mrr", "last")]
    lines: dict[str, dict[str, Any]] = {}
    for row in last:
        lines.setdefault(row["graph"], {"graph": row["graph"]})[row["protocol"]] = row
    protocols = [it for it in next(iter(lines.values())) if it not in ("graph", "exact")]
    cell = "{{{0}[tau]:.2f}} ({{{0}[flipped_in_most]}} of {{{0}[pairs]}})"
    columns = [("graph", "{graph}"), *((f"{it}:", cell.format(it)) for it in protocols)]
    yield from markdown(columns, list(lines.values()))


def wheel(folder: Path) -> str:
    """Write the size of the wheel, and what its install and its import take."""
    return cell_of(
        json.loads((folder / "wheel.json").read_text()),
        "The wheel of Linux {machine} has {wheel_mb:.2f} MB. Where torch is installed, pip needs "
        "{install_beyond_torch_cpu_s:.1f} CPU s for the rest. `import kgfast` adds "
        "{import_beyond_torch_cpu_s:.2f} CPU s to the {import_torch_cpu_s:.2f} s of torch with the "
        "garbage collection that torch leaves due "
        "(`{command}`, {date:.10}, python {versions[python]}, torch {versions[torch]}).",
    )


def versions(folder: Path) -> str:
    """Write what passed with the lowest, locked and newest dependencies, and their versions."""
    return "\n".join(_versions(read_rows(folder / "versions.json")))


def _versions(rows: Rows) -> Iterator[str]:
    names = [row["environment"] for row in rows]
    columns = [("what ran", "{part}"), *((f"{name}:", f"{{{name}}}") for name in names)]
    yield from markdown(
        columns,
        [
            {"part": part} | {row["environment"]: row["parts"][part] for row in rows}
            for part in rows[0]["parts"]
        ],
    )
    yield ""
    before: Row = {"versions": {}}
    for row in rows:
        told = "- *{environment}*, {date:.10}, {machine[name]} with {machine[isa]}: "
        versions, earlier = row["versions"], before["versions"]
        if versions.keys() == earlier.keys():  # as those of newest and locked are
            told += f"as {before['environment']}, but for "
            versions = {
                name: versions[name] for name in versions if versions[name] != earlier[name]
            }
        else:
            versions = {name: it for name, it in versions.items() if name in MAIN_PACKAGES}
        yield f"{cell_of(row, told)}{packages(versions)}."
        before = row

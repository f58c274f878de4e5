"""Blocks that are a table or two of the rows of one benchmark."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from lib.columns import (
    ALIGNMENT,
    BUILDS,
    CASES,
    CLASSES,
    CONVERSIONS,
    DOT_TIERS,
    ENERGY,
    INDEX,
    LISTS,
    LOSSES,
    PYKEEN,
    RETRIEVAL,
    SEARCHES,
    SERVE,
    STEP_COUNTS,
    TYPED,
    best_first,
    reached,
)
from lib.pages import goals_of, machine_of, packages, sources, with_sources
from lib.published import CLASSIFICATION
from lib.results import Row, of_section, read_rows, with_winners
from lib.tables import Columns, cell_of, markdown


def retrieval(folder: Path) -> str:
    """Write the searches of documents."""
    rows = read_rows(folder / "cpu-retrieval.json")
    return with_sources([it for it in rows if it["section"] != "alignment"], RETRIEVAL)


def alignment(folder: Path) -> str:
    """Write the ranks of aligned entities."""
    rows = read_rows(folder / "cpu-retrieval.json")
    return with_sources(of_section(rows, "alignment"), ALIGNMENT)


# docs/reference/losses.md
LOSS_TITLES = {
    "loss_mem": "Losses and sampled scores, forward and backward",
    "loss_1_vs_all": "Steps of 1-vs-all",
    "topk_speed": "Top-k",
}
LOSS_WORK = ("section", "score", "table", "k", "batch", "entities", "candidates", "dim")


def losses(folder: Path) -> str:
    """Write every row of loss_mem.py and topk_speed.py, a table for each file."""
    parts, tables = [], []
    columns = [*LOSSES[:2], ("contender", _bold), *LOSSES[3:]]
    for benchmark, title in LOSS_TITLES.items():
        for path in sorted(folder.glob(f"*-{benchmark.replace('_', '-')}.json")):
            rows = with_winners(read_rows(path), LOSS_WORK)
            tables.append(rows)
            parts += [f"### {title}: {machine_of(rows)}", "", *markdown(columns, rows), ""]
    parts.append(
        "~ extrapolated from a part of the work. Peak memory is beyond operands and their "
        "gradients. *Peer wins*: the peer took less time than kgfast, which multiplies in float32 "
        "on CPUs. The three matrix products alone are no peer: they compute no loss.\n"
    )
    return "\n".join([*parts, *sources(tables)])


def _bold(row: Row) -> str:
    return "**kgfast**" if row["contender"] == "kgfast" else cell_of(row, LOSSES[2][1])


def gpu(folder: Path) -> str:
    """Write what ran on devices, and the launches of a step."""
    parts = [with_sources(read_rows(folder / "static-step-counts.json"), STEP_COUNTS)]
    parts += ["", "## On a device"]
    for path in sorted(folder.glob("*-cases.jsonl")):
        about = json.loads(
            path.with_name(path.name.replace("cases.jsonl", "summary.json")).read_text()
        )
        cases = [json.loads(line) for line in path.read_text().splitlines()]
        scores = dict.fromkeys(it["case"].split(":")[0] for it in cases if it["step"] == "kernels")
        parts += ["", *markdown(CASES, [_on_device(score, cases) for score in scores]), ""]
        parts.append(
            cell_of(
                about,
                "`{command}` on {machine[name]}, driver {machine[driver]}, CUDA {machine[cuda]}: "
                "torch {versions[torch]}, triton {versions[triton]}, kgfast {versions[kgfast]}.",
            )
        )
    return "\n".join(parts)


def _on_device(score: str, cases: list[Row]) -> Row:
    """Count the cases of a score that ran on a device, and find the largest error."""
    own = [it for it in cases if it["case"].startswith(f"{score}: ")]
    errors = [it["relative_error"] for it in own if "relative_error" in it]
    checks = [it for it in own if it["step"] == "checks"]
    return {
        "score": score,
        "launched": sum(it["step"] == "kernels" for it in own),
        "equal": sum("relative_error" not in it for it in checks) or None,
        "near": len(errors) or None,
        "error": max(errors, default=None),
        "failed": sum("error" in it for it in own),
    }


def graphs(folder: Path) -> str:
    """Write a row of each format, and what asking takes."""
    path = folder / "cpu-known-build.json"
    rows, goals = read_rows(path), goals_of(path)
    are = "All arrays are" if all(row["equal"] for row in rows) else "NOT all arrays are"
    goal = f"{goals['seconds']} s and {goals['anonymous_bytes'] / 2**30:.0f} GiB"
    lines = [
        cell_of(
            {**rows[0], "goal": goal},
            "{triples:,} triples ({distinct:,} distinct), {entities:,} entities, {relations:,} "
            'relations, `max_memory="{max_memory}"`; the goals are {goal}:\n',
        ),
        *markdown(BUILDS, rows),
        "",
        "Other work ran on the machine. The memory of the process is the highest "
        f"`RssAnon` of the process, torch included: all but mapped files. {are} equal to those of "
        "one sort of all triples in memory.\n",
        cell_of(
            rows[0],
            "The heads of {queries:,} (r, t), many of them hubs: {all_answers:,} answers "
            "in {all_cpu_seconds:.2f} CPU seconds; of a sixteenth of the entities "
            "{shard_answers:,} in {shard_cpu_seconds:.2f}. The process took "
            "{asking_anonymous_bytes:bytes}.\n",
        ),
    ]
    return "\n".join([*lines, *sources([rows])])


def ogb(folder: Path) -> str:
    """Write ranks among candidates of each query, by kgfast and by gathering."""
    rows = read_rows(folder / "cpu-lists-speed.json")
    told = cell_of(
        rows[0],
        "Ranks of {batch} RotatE queries of {dim} complex features, each among {candidates} of "
        "{entities:,} candidates, float32, {machine[threads]} threads. The peers gather rows for "
        "32 queries at a time.\n",
    )
    return f"{told}\n{with_sources(rows, LISTS)}"


def options(folder: Path) -> str:
    """Write a row of each library whose tables were converted wrongly."""
    rows = read_rows(folder / "cpu-conversions.json")
    source = cell_of(
        {**rows[0], "day": rows[0]["date"][:10]},
        "Test set of {dataset}, filtered, both sides, after {epochs} epochs "
        "(`python benchmarks/conversions.py`, torch {versions[torch]}, {day}).",
    )
    return "\n".join([*markdown(CONVERSIONS, rows), "", source])


def classify(folder: Path) -> str:
    """Write classified runs beside published figures, and ranks among type-correct entities."""
    return f"{_accuracies(folder)}\n\n{_typed(folder)}"


def _accuracies(folder: Path) -> str:
    """Write a row of each classified run, with the published figures of its model."""
    rows = [
        row | {"theirs": CLASSIFICATION.get(row["model"])}
        for row in read_rows(folder / "cpu-classification.json")
    ]
    columns = (
        *CLASSES,
        ("published accuracy:", "{theirs[0]:.3f}"),
        ("published F1:", "{theirs[1]:.3f}"),
    )
    return with_sources(rows, columns)


def _typed(folder: Path) -> str:
    """Write a row of each run: ranks among all entities and among type-correct ones."""
    rows = read_rows(folder / "cpu-typed-ranks.json")
    told = cell_of(
        {**rows[0], "targets": 2 * rows[0]["test_triples"]},
        "{dataset}, test set, both sides, filtered: {entities:,} entities, or {candidates:,.0f} "
        "type-correct ones on average after filtering, by `{types}`. {outside} of {targets:,} "
        "targets are not type-correct; such a target is ranked against the entities that are.\n",
    )
    return f"{told}\n{with_sources(rows, TYPED)}"


def pykeen(folder: Path) -> str:
    """Write a row of each model that PyKEEN's evaluator and ours ranked."""
    rows = read_rows(folder / "cpu-pykeen-speed.json")
    source = cell_of(
        {**rows[0], "day": rows[0]["date"][:10]},
        "{machine[name]}, {machine[threads]} threads, {machine[isa]}, torch {versions[torch]}, "
        "pykeen {versions[pykeen]}, {day}; *times* are of CPU seconds. "
        "Gap: the largest, relative to the score.",
    )
    return "\n".join([*markdown(PYKEEN, rows), "", source])


_FEW = 16  # queries of the rows of an index that are shown


def tiers(folder: Path) -> str:
    """Write a row of each work of dot, of each work of an index, and of leading features."""
    dot, index = (read_rows(folder / f"cpu-{name}-speed.json") for name in ("dot-tiers", "index"))
    tables = [*markdown(DOT_TIERS, dot), ""]
    few = [row for row in index if row["batch"] <= _FEW]
    title = (
        "Few queries, best 10 of 40,943 rows, with and without an [index](../how-to/prepared.md); "
        "one read is of the bytes or panels that are read first (Xeon: of panels):"
    )
    tables += [title, "", *markdown(INDEX, few), ""]
    leading = read_rows(folder / "cpu-energy-order.json")
    tables += ["Leading features first, which no index does:", "", *markdown(ENERGY, leading), ""]
    return "\n".join([*tables, *sources([dot, index, leading])])


TRIALS_SHOWN = 5  # trials of each search


def search(folder: Path) -> str:
    """Write what each search found, and its best trials."""
    rows = read_rows(folder / "cpu-search-trials.json")
    tables = list(markdown(SEARCHES, rows))
    for row in rows:
        tables += ["", f"The best trials on {row['graph']}:", "", *_trials(row)]
    return "\n".join([*tables, "", *sources([rows])])


def _trials(row: Row) -> Iterator[str]:
    """Yield a table of the best trials of a search."""
    best = best_first(row)[:TRIALS_SHOWN]
    columns: Columns = (
        ("trial:", "{number}"),
        ("MRR:", "{mrr:.4f}"),
        (f"{row['unit']}:", lambda trial: f"{reached(trial):,}"),
        *((f"`{key}`:", "{" + key.replace(".", "_") + "}") for key in best[0]["values"]),
    )
    yield from markdown(columns, [trial | _values(trial) for trial in best])


def _values(trial: Row) -> dict[str, str]:
    return {
        key.replace(".", "_"): f"{value:.3g}" if isinstance(value, float) else str(value)
        for key, value in trial["values"].items()
    }


def serve(folder: Path) -> str:
    """Write the rows of serve_speed.py."""
    rows = read_rows(folder / "cpu-serve-speed.json")
    return "\n".join([*markdown(SERVE, rows), "", *sources([rows])])


def wheel(folder: Path) -> str:
    """Write the size of the wheel, and what its install and its import take."""
    found = json.loads((folder / "wheel.json").read_text())
    return cell_of(
        found,
        "The wheel of Linux {machine} has {wheel_mb:.2f} MB. Where torch is installed, pip needs "
        "{install_beyond_torch_cpu_s:.1f} CPU s for the rest. `import kgfast` adds "
        "{import_beyond_torch_cpu_s:.2f} CPU s to the {import_torch_cpu_s:.2f} s of torch with the "
        "garbage collection that torch leaves due "
        "(`{command}`, {date:.10}, python {versions[python]}, torch {versions[torch]}).",
    )


# CONTRIBUTING.md
def versions(folder: Path) -> str:
    """Write what passed with the lowest, locked and newest dependencies, and their versions."""
    rows = read_rows(folder / "versions.json")
    columns = [
        ("what ran", "{part}"),
        *((f"{row['environment']}:", "{" + row["environment"] + "}") for row in rows),
    ]
    lines = [
        {"part": part} | {row["environment"]: row["parts"][part] for row in rows}
        for part in rows[0]["parts"]
    ]
    told = [
        f"- *{row['environment']}*, {row['date']:.10}, {row['machine']['name']} with "
        f"{row['machine']['isa']}: {packages(row['versions'])}."
        for row in rows
    ]
    return "\n".join([*markdown(columns, lines), "", *told])


# docs/reference/reliability.md
ATTACKS = {
    "fuzz": "no sanitizer",
    "fuzz-sanitize-address": "AddressSanitizer, UBSan",
    "fuzz-sanitize-thread": "ThreadSanitizer",
}
GROUPS = {
    "valid": "valid calls, against the oracles",
    "state": "valid calls under another global state",
    "invalid": "invalid arguments",
    "files": "mutated data folders, configs and files of other readers",
    "checkpoints": "mutated checkpoints",
    "processes": "threads, forks, signals, memory",
    "runs": "kills, full disks, two writers, other graphs",
}
COUNTS = ("wrong", "crashes", "hangs", "reports")


def reliability(folder: Path) -> str:
    """Write the counts of all kinds of cases, with a column for every file of the attack."""
    paths = {name: folder / f"{name}.json" for name in ATTACKS}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
    columns = (
        ("cases", "{cases}"),
        *((f"{ATTACKS[name]}:", "{" + name + "}") for name in found),
    )
    lines = [{"cases": title} | _cases(found, group) for group, title in GROUPS.items()]
    lines.append(
        {"cases": "**all**"} | {name: f"**{it['cases']:,}**" for name, it in found.items()}
    )
    for count in COUNTS:
        sums = {name: _sum(it, count) for name, it in found.items()}
        bold = {name: f"**{number:,}**" for name, number in sums.items()}
        lines.append({"cases": f"**{count}**"} | bold)
    return "\n".join([*markdown(columns, lines), "", *map(_attack, found.values())])


def _cases(found: dict[str, Row], group: str) -> dict[str, str]:
    counts = {name: _sum(it, "cases", group) for name, it in found.items()}
    return {name: f"{count:,}" if count else "" for name, count in counts.items()}


def _sum(found: Row, count: str, group: str | None = None) -> int:
    kinds = found["kinds"].values()
    return sum(kind[count] for kind in kinds if group is None or kind["group"] == group)


def _attack(found: Row) -> str:
    """Say where the counts of a file come from."""
    told = {"minutes": found["seconds"] / 60, "day": found["date"][:10]}
    return cell_of(
        {**found, **told, "command": _target(found["command"])},
        "`{command}`, seed {seed}, {minutes:.0f} min on {machine[name]}, {machine[isa]} "
        "({machine[cores]} cores), {day}: kgfast {versions[kgfast]}, python {versions[python]}, "
        "torch {versions[torch]}, numpy {versions[numpy]}.",
    )


def _target(command: str) -> str:
    """Return the call of ``make`` that runs a command of the attack."""
    words = iter(shlex.split(command)[3:])  # python -m fuzz
    given = {
        name.removeprefix("--").upper(): value for name, value in zip(words, words, strict=True)
    }
    given.pop("JSON", None)  # no variable of make
    return " ".join(["make fuzz", *(f"{name}={shlex.quote(it)}" for name, it in given.items())])

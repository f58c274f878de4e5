"""The block of docs/how-to/med_rscf.md: evaluation and training of sub-models, a table a file."""

from collections.abc import Iterator
from pathlib import Path

from lib.columns import CROP_RANKS, EVALUATIONS, MED_TRIALS, STEPS
from lib.pages import machine_of, sources
from lib.results import Rows, read_rows
from lib.tables import cell_of, human_bytes, markdown

ROWS_SHOWN = 6  # evaluations of a run; a sentence tells of more


def block(folder: Path) -> str:
    """Write all tables, and where their numbers come from."""
    parts: list[str] = []
    tables: list[Rows] = []
    for benchmark, (files, write) in TABLES.items():
        for path in sorted(folder.glob(files)):
            rows = [row for row in read_rows(path) if row["benchmark"] == benchmark]
            if rows:
                tables.append(rows)
                parts += [*write(rows), ""]
    return "\n".join([*parts, *sources(tables)])


def _title(what: str, rows: Rows) -> str:
    dims = ", ".join(map(str, rows[0]["dims"]))
    return f"### {what}, sub-models {dims}: {machine_of(rows)}\n"


def _evaluation(rows: Rows) -> Iterator[str]:
    graph = rows[0]["graph"]
    yield _title("Evaluation", rows)
    yield (
        f"{2 * graph['test_triples']:,} queries of each sub-model against {graph['entities']:,} "
        f"entities ({graph['name']}), filtered. By formula: what a batch of "
        f"{rows[0]['formula']['batch']} holds in the evaluation that people use.\n"
    )
    widest = next(row for row in rows if row["way"] == "widest alone")["kgfast"]["seconds"]
    times = (
        "times the widest alone:",
        lambda row: f"{row['kgfast']['seconds'] / widest:.2f}x",
    )
    yield from markdown((*CROP_RANKS, times), rows)


def _training(rows: Rows) -> Iterator[str]:
    yield _title("Training steps", rows)
    yield (
        "A pass each takes the way of models whose operands depend on the crop, over the distinct "
        "rows of a step. With RSCF scores always do; nested are the filters.\n"
    )
    yield from markdown(STEPS, rows)


def _memory(rows: Rows) -> Iterator[str]:
    first = rows[0]
    yield _title(f"Memory of {first['config']} in training", rows)
    yield (
        f"An evaluation ranks {first['triples']:,} valid triples of {first['graph']}, filtered, by "
        "every sub-model. The memory of the process is measured after the evaluation. The peak is "
        "the memory that the evaluation adds, the factor included.\n"
    )
    if len(rows) <= ROWS_SHOWN:
        yield from markdown(EVALUATIONS, rows)
        return
    held = [row["resident_bytes"] for row in rows]
    yield (
        f"Over {len(rows)} evaluations, {first['step']} steps apart: {human_bytes(held[0])} "
        f"after the first, {human_bytes(held[-1])} after the last, {held[-1] / held[0] - 1:+.2%}; "
        f"between {human_bytes(min(held))} and {human_bytes(max(held))}. At most "
        f"{human_bytes(max(row['peak_bytes'] for row in rows))} more within one."
    )


def _trials(rows: Rows) -> Iterator[str]:
    yield cell_of(rows[0], "### What MED's settings do: RotatE on {graph}, {steps:,} steps\n")
    yield (
        "MRR on the valid set of the narrowest and the widest sub-model (dimensions): how soon "
        "they learn, not how far they come. Gamma is 4 unless a row says otherwise.\n"
    )
    yield from markdown(MED_TRIALS, rows)


TABLES = {
    "eval_mem_crops": ("*-eval-mem.json", _evaluation),
    "med_speed": ("*-speed.json", _training),
    "train_memory": ("*-train-memory*.json", _memory),
    "med_trials": ("*-med-trials.json", _trials),
}

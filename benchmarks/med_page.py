"""The measured tables of docs/med_rscf.md, from the files under benchmarks/results/.

    python benchmarks/med_page.py            put them into docs/med_rscf.md, between the markers
    python benchmarks/med_page.py --check    exit code 1 if the page says something else

One table a machine and benchmark: the sub-models of eval_mem.py and every row of med_speed.py,
train_memory.py and med_trials.py.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import med_speed
import med_trials

from lib import eval_mem_crops, pages
from lib.pages import ROOT, machine_of, sources
from lib.results import Rows, read_rows
from lib.tables import human_bytes, human_seconds

PAGE = ROOT / "docs" / "med_rscf.md"


def tables_of(folder: Path) -> Iterator[tuple[str, Rows]]:
    """Kind and rows of each table."""
    for benchmark, files in FILES.items():
        for path in sorted(folder.glob(files)):
            rows = [row for row in read_rows(path) if row["benchmark"] == benchmark]
            if rows:
                yield benchmark, rows


def markdown(tables: Sequence[tuple[str, Rows]]) -> str:
    """All tables, and where their numbers come from."""
    if not tables:
        return "Nothing has been measured yet."
    parts: list[str] = []
    for benchmark, rows in tables:
        parts += [*TABLES[benchmark](rows), ""]
    return "\n".join([*parts, *sources([rows for _, rows in tables])])


def _title(what: str, rows: Rows) -> str:
    dims = ", ".join(map(str, rows[0]["dims"]))
    return f"### {what}, sub-models {dims}: {machine_of(rows)}"


def _evaluation(rows: Rows) -> Iterator[str]:
    graph = rows[0]["graph"]
    yield _title("Evaluation", rows)
    yield ""
    yield (
        f"{2 * graph['test_triples']:,} queries of each sub-model against {graph['entities']:,} "
        f"entities ({graph['name']}), filtered. By formula: what a batch of "
        f"{rows[0]['formula']['batch']} holds in the evaluation that people use."
    )
    yield ""
    yield "| | by formula | kgfast beyond the tables | factor | time | times the widest alone |"
    yield "|---|---:|---:|---:|---:|---:|"
    widest = next(row for row in rows if row["way"] == "widest alone")["kgfast"]["seconds"]
    for row in rows:
        ours = row["kgfast"]
        factor = human_bytes(ours["factor_bytes"]) if ours["factor_bytes"] else ""
        yield pages.row(
            eval_mem_crops.LABELS[row["way"]],
            human_bytes(row["formula"]["bytes"]),
            human_bytes(max(0, ours["bytes"])),
            factor,
            human_seconds(ours["seconds"]),
            f"{ours['seconds'] / widest:.2f}x",
        )


def _training(rows: Rows) -> Iterator[str]:
    yield _title("Training steps", rows)
    yield ""
    yield (
        "A pass each takes the way of models whose operands depend on the crop, over the distinct "
        "rows of a step. With RSCF scores always do; nested are the filters."
    )
    yield ""
    yield "| | batch x negatives | | step | times the widest alone |"
    yield "|---|---|---|---:|---:|"
    for row in rows:
        kind = row["negatives"].replace("_", " ")
        yield pages.row(
            med_speed.LABELS[row["model"]],
            f"{row['batch']} x {row['negatives_per_triple']}, {kind}",
            row["way"],
            human_seconds(row["seconds"]["median"]),
            f"{row['times_widest']:.2f}x",
        )


def _memory(rows: Rows) -> Iterator[str]:
    first = rows[0]
    yield _title(f"Memory of {first['config']} in training", rows)
    yield ""
    yield (
        f"On {first['graph']}; an evaluation is of {first['triples']:,} triples of the valid set, "
        "filtered, by every sub-model. Held: by the whole process, after it; at its peak: how much "
        "more within it, the factor included."
    )
    yield ""
    if len(rows) > ROWS_SHOWN:
        held, every = [row["resident_bytes"] for row in rows], first["step"]
        yield (
            f"Over {len(rows)} evaluations, {every} steps apart: {human_bytes(held[0])} held after "
            f"the first, {human_bytes(held[-1])} after the last, {held[-1] / held[0] - 1:+.2%}; "
            f"between {human_bytes(min(held))} and {human_bytes(max(held))}. At most "
            f"{human_bytes(max(row['peak_bytes'] for row in rows))} more within one."
        )
        return
    yield "| after step | held | at its peak | evaluation | a step |"
    yield "|---:|---:|---:|---:|---:|"
    for row in rows:
        yield pages.row(
            f"{row['step']:,}",
            human_bytes(row["resident_bytes"]),
            f"+ {human_bytes(max(0, row['peak_bytes']))}",
            human_seconds(row["seconds"]),
            human_seconds(row["seconds_per_step"]),
        )


def _trials(rows: Rows) -> Iterator[str]:
    first = rows[0]
    yield f"### What MED's settings do: RotatE on {first['graph']}, {first['steps']:,} steps"
    yield ""
    yield (
        "MRR on the valid set of the narrowest and the widest sub-model (dimensions): how soon "
        "they learn, not how far they come. Gamma 4 unless it says otherwise."
    )
    yield ""
    yield "| | narrowest | widest |"
    yield "|---|---:|---:|"
    for row in rows:
        yield pages.row(row["trial"], *med_trials.ends(row))


ROWS_SHOWN = 6  # of a run's evaluations; of more a sentence
FILES = {
    "eval_mem_crops": "*-eval-mem*.json",
    "med_speed": "*-speed.json",
    "train_memory": "*-train-memory*.json",
    "med_trials": "*-med-trials.json",
}
TABLES = {
    "eval_mem_crops": _evaluation,
    "med_speed": _training,
    "train_memory": _memory,
    "med_trials": _trials,
}


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, lambda folder: markdown(list(tables_of(folder))))


if __name__ == "__main__":
    sys.exit(main())

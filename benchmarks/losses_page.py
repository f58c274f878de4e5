"""The measured tables of docs/losses.md, from the files under benchmarks/results/.

    python benchmarks/losses_page.py            put them into docs/losses.md, between the markers
    python benchmarks/losses_page.py --check    exit code 1 if the page says something else

One table a machine and benchmark: every row of loss_mem.py and topk_speed.py.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import pages
from lib.pages import ROOT, machine_of, sources
from lib.results import Rows, read_rows
from lib.tables import LABELS, human_bytes, median

PAGE = ROOT / "docs" / "losses.md"
TITLES = {
    "loss_mem": "Losses and sampled scores, forward and backward",
    "topk_speed": "Top-k",
}
WORKS = {
    "pairwise": "pairwise_scores",
    "indexed": "indexed_scores",
    "bce": "bce",
    "bce dot": "bce, all contenders in turns",
    "bce rotate": "bce, all contenders in turns",
    "head": "output head",
    "top": "output head, best output",
    "outputs": "10 million outputs",
    "prediction": "one query, as a user asks it",
}
CONTENDERS = LABELS | {
    "kgfast": "**kgfast**",
    "eager": "torch",
    "compile": "torch.compile",
    "counts": "kgfast.ops.rank_counts",
}


def tables_of(folder: Path) -> Iterator[tuple[str, Rows]]:
    """Title and rows of each table."""
    for benchmark, title in TITLES.items():
        for path in sorted(folder.glob(f"*-{benchmark.replace('_', '-')}.json")):
            if rows := read_rows(path):
                yield f"{title}: {machine_of(rows)}", rows


def markdown(tables: Sequence[tuple[str, Rows]]) -> str:
    """All tables, and where their numbers come from."""
    parts: list[str] = []
    for title, rows in tables:
        parts += [
            f"### {title}",
            "",
            "| what | batch x entities x dim | contender | time | times kgfast's | peak memory |",
            "|---|---|---|---:|---:|---:|",
            *(_line(row) for row in rows),
            "",
        ]
    parts.append(
        "~ extrapolated from a part of the work, whose memory stands in brackets. Peak memory is "
        "beyond operands and their gradients."
    )
    return "\n".join([*parts, "", *sources([rows for _, rows in tables])])


def _line(row: Mapping[str, Any]) -> str:
    work = WORKS.get(row["section"], row["section"])
    what = [f"{work}, {row['score']}"] if "score" in row else [work]
    what += [f"{row['table']} table"] if "table" in row else []
    what += [f"k = {row['k']}"] if "k" in row else []
    columns = row.get("candidates", row["entities"])
    per_row = f" (of {row['entities']:,})" if columns != row["entities"] else ""
    shape = f"{row.get('batch', 1):,} x {columns:,}{per_row} x {row['dim']}"
    contender = CONTENDERS.get(row["contender"], row["contender"])
    return pages.row(", ".join(what), shape, contender, *_measured(row))


def _measured(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if not row["seconds"]:
        return row.get("note", ""), "", ""
    times = f"{row['times_kgfast']:.2f}x" if "times_kgfast" in row else ""
    memory = human_bytes(row["bytes"]) if "bytes" in row else ""
    memory = f"({memory})" if memory and row["extrapolated"] else memory
    return median(row), times, memory


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, lambda folder: markdown(list(tables_of(folder))))


if __name__ == "__main__":
    sys.exit(main())

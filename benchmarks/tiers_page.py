"""The tables of docs/tiers.md, from what tiers_speed.py and dot_tiers_speed.py wrote.

python benchmarks/tiers_page.py            put it into docs/tiers.md
python benchmarks/tiers_page.py --check    exit code 1 if the page says something else
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib import pages
from lib.pages import ROOT
from lib.results import read_rows

PAGE = ROOT / "docs" / "tiers.md"
RESULT, DOT_RESULT = "cpu-tiers-speed.json", "cpu-dot-tiers-speed.json"
DOT_HEADS = ("work", "entities", "features", "queries", "table", "times faster", "to float32")
HEADS = ("score", "features", "table", "side", "tiers", "times faster", "linear", "float16")


def block(folder: Path) -> str:
    """A row for each table and side, one for each work of dot, and what was measured."""
    rows = read_rows(folder / RESULT)
    lines = [
        pages.row(*HEADS, "gathered", "canonical"),
        "|---|---:|---|---|---|---:|---:|---:|---:|---:|",
    ]
    lines += [_of(row) for row in rows]
    dot = read_rows(folder / DOT_RESULT)
    own = [
        pages.row(*DOT_HEADS, "canonical", "faiss", "faiss, to an index"),
        "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    own += [_of_dot(row) for row in dot]
    return "\n".join([*lines, "", "Dot products:", "", *own, "", *pages.sources([rows, dot])])


def _of(row: Mapping[str, Any]) -> str:
    faster = row["times_faster"]
    return pages.row(
        row["score"],
        str(row["dim"]),
        f"{row['table']} (`{row['run']}`)" if "run" in row else row["table"],
        row["side"],
        row["tiers"],
        f"{faster['median']:.2f} ({faster['min']:.2f} .. {faster['max']:.2f})",
        f"{row['decided']:.0%}",
        f"{row['swept']:.0%}",
        f"{row['gathered']:.1%}",
        f"{row['canonical']:.2%}",
    )


def _of_dot(row: Mapping[str, Any]) -> str:
    pairs, seconds = row.get("pairs"), row["seconds"]
    faiss = seconds.get("faiss")
    return pages.row(
        {"ranks": "ranks", "best": "best 10"}[row["work"]],
        f"{row['entities']:,}",
        str(row["dim"]),
        str(row["batch"]),
        row["table"],
        f"{row['speedup']:.2f}",
        f"{pairs['float32']:.2%}" if pairs else "",
        f"{pairs['canonical']:.3%}" if pairs else "",
        *(
            f"{faiss / seconds[name]:.1f}x" if faiss and name in seconds else ""
            for name in ("int8", "index")
        ),
    )


if __name__ == "__main__":
    sys.exit(pages.main(__file__, __doc__, PAGE, block))

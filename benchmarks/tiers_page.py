"""The table of docs/tiers.md, from what tiers_speed.py wrote.

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
RESULT = "cpu-tiers-speed.json"
HEADS = ("score", "features", "table", "side", "times faster", "float16 swept", "gathered")


def block(folder: Path) -> str:
    """A row for each table and side, and what was measured."""
    rows = read_rows(folder / RESULT)
    lines = [pages.row(*HEADS, "canonical"), "|---|---:|---|---|---:|---:|---:|---:|"]
    lines += [_of(row) for row in rows]
    return "\n".join([*lines, "", *pages.sources([rows])])


def _of(row: Mapping[str, Any]) -> str:
    faster = row["times_faster"]
    return pages.row(
        row["score"],
        str(row["dim"]),
        f"{row['table']} (`{row['run']}`)" if "run" in row else row["table"],
        row["side"],
        f"{faster['median']:.2f} ({faster['min']:.2f} .. {faster['max']:.2f})",
        f"{row['swept']:.0%}",
        f"{row['gathered']:.1%}",
        f"{row['canonical']:.2%}",
    )


if __name__ == "__main__":
    sys.exit(pages.main(__file__, __doc__, PAGE, block))

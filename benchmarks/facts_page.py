"""The table of docs/predictions.md, from what facts_speed.py wrote.

python benchmarks/facts_page.py            put it into docs/predictions.md
python benchmarks/facts_page.py --check    exit code 1 if the page says something else
"""

import sys

from lib import pages
from lib.pages import ROOT
from lib.results import Rows, read_rows

PAGE = ROOT / "docs" / "predictions.md"
RESULT = "cpu-facts-speed.json"


def markdown(rows: Rows) -> str:
    """A row a model, and where its numbers come from."""
    heads = ("model", "tables", "triples", "facts", "seconds", "CPU seconds", "peak memory")
    lines = [pages.row(*heads), "|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        cells = (
            f"{row['model']}, d = {row['dim']}",
            row["table"],
            f"{row['triples']:,}",
            f"{row['k']:,}",
            f"{row['seconds']:,.0f}",
            f"{row['cpu_seconds']:,.0f}",
            f"{row['peak_mib']:.0f} MiB",
        )
        lines.append(pages.row(*cells))
    return "\n".join([*lines, "", *pages.sources([rows])])


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, lambda folder: markdown(read_rows(folder / RESULT)))


if __name__ == "__main__":
    sys.exit(main())

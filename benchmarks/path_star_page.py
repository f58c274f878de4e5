"""The table of examples/path_star/README.md, from what the example's bench wrote.

python benchmarks/path_star_page.py            put it into the page
python benchmarks/path_star_page.py --check    exit code 1 if the page says something else
"""

import sys
from collections.abc import Mapping
from typing import Any

from lib import pages
from lib.pages import ROOT
from lib.results import Rows, read_rows
from lib.tables import human_bytes

PAGE = ROOT / "examples" / "path_star" / "README.md"
RESULT = "cpu-path-star.json"
WHAT = {
    "greedy": "the best output",
    "sample": "a draw",
    "generate": "{positions} positions by the GPT, trunk included",
    "step, nodes": "a training step, softmax over the nodes in use",
    "step, sampled": "a training step, sampled softmax with {negatives:,} negatives",
    "step, full": "loss and gradients, softmax over the vocabulary",
}


def markdown(rows: Rows) -> str:
    """A row of each measurement, and where they come from."""
    heads = (
        "what",
        "by",
        "samples",
        "outputs",
        "seconds",
        "CPU seconds",
        "peak memory",
        "logits, by formula",
    )
    lines = [pages.row(*heads), "|---|---|---:|---:|---:|---:|---:|---:|"]
    lines += [pages.row(*_cells(row)) for row in rows]
    return "\n".join([*lines, "", *pages.sources([rows])])


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    is_ours = row["contender"] == "kgfast"
    return (
        WHAT[row["section"]].format(**row),
        "kgfast" if is_ours else "torch, logits held",
        f"{row['samples']:,}",
        f"{row.get('candidates', row['vocabulary']):,}",
        f"{row['seconds']:,.1f}",
        f"{row['cpu_seconds']:,.1f}",
        human_bytes(row["bytes"]),
        human_bytes(row["dense_bytes"]),
    )


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, lambda folder: markdown(read_rows(folder / RESULT)))


if __name__ == "__main__":
    sys.exit(main())

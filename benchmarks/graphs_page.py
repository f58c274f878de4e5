"""The table of docs/graphs.md, from what known_build.py wrote.

python benchmarks/graphs_page.py            put it into docs/graphs.md
python benchmarks/graphs_page.py --check    exit code 1 if the page says something else
"""

import json
import sys
from pathlib import Path

from lib import pages
from lib.pages import ROOT
from lib.results import read_rows
from lib.tables import human_bytes

PAGE = ROOT / "docs" / "graphs.md"
RESULT = "cpu-known-build.json"


def markdown(folder: Path) -> str:
    """A row a format, and where its numbers come from."""
    rows = read_rows(folder / RESULT)
    goals = json.loads((folder / RESULT).read_text())["goals"]
    first = rows[0]
    heads = ("files", "their size", "seconds", "CPU seconds", "memory held", "the folder")
    lines = [
        f"{first['triples']:,} triples ({first['distinct']:,} distinct), "
        f"{first['entities']:,} entities, {first['relations']:,} relations, "
        f'`max_memory="{first["max_memory"]}"`; the goals are {goals["seconds"]} s and '
        f"{goals['anonymous_bytes'] / 2**30:.0f} GiB:",
        "",
        pages.row(*heads),
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = (
            f"`.{row['format']}`",
            human_bytes(row["input_bytes"]),
            f"{row['seconds']:,.0f}",
            f"{row['cpu_seconds']:,.0f}",
            f"{row['anonymous_bytes'] / 2**30:.2f} GiB",
            human_bytes(row["bytes"]),
        )
        lines.append(pages.row(*cells))
    same = all(row["equal"] for row in rows)
    lines += [
        "",
        "Seconds are those of a machine that others work on, too. Memory held is the highest "
        "`RssAnon` of the process, torch included: all but mapped files. "
        + ("All arrays are" if same else "NOT all arrays are")
        + " equal to those of one sort of all triples in memory.",
        "",
        f"Asked for the heads of {first['queries']:,} (r, t), many of them hubs: "
        f"{first['all_answers']:,} answers in {first['all_cpu_seconds']:.2f} CPU seconds; of a "
        f"sixteenth of the entities {first['shard_answers']:,} in "
        f"{first['shard_cpu_seconds']:.2f}. The process held "
        f"{human_bytes(first['asking_anonymous_bytes'])}.",
    ]
    return "\n".join([*lines, "", *pages.sources([rows])])


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, markdown)


if __name__ == "__main__":
    sys.exit(main())

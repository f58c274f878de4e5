"""The table of docs/pykeen.md, from the file that benchmarks/pykeen_speed.py wrote.

python benchmarks/pykeen_page.py            put it into docs/pykeen.md
python benchmarks/pykeen_page.py --check    exit code 1 if the page says something else
"""

import json
import sys
from pathlib import Path

from lib import pages
from lib.pages import ROOT

PAGE = ROOT / "docs" / "pykeen.md"
RESULT = "cpu-pykeen-speed.json"
HEADS = ("model", "PyKEEN, CPU s", "kgfast, CPU s", "times", "wall s", "ranks that differ", "gap")


def block(folder: Path) -> str:
    """A row for each model, and where it was measured."""
    path = folder / RESULT
    if not path.is_file():
        return "(not measured yet: `python benchmarks/pykeen_speed.py --data DIR`)"
    rows = json.loads(path.read_text())["rows"]
    lines = [pages.row(*HEADS), "|---" + "|---:" * (len(HEADS) - 1) + "|"]
    for row in rows:
        gap = max((it["gap"] for it in row["different"]), default=None)
        lines.append(
            pages.row(
                f"{row['model']}, d = {row['dim']}",
                f"{row['pykeen_cpu_seconds']:,.0f}",
                f"{row['cpu_seconds']:.2f}",
                f"{row['times']:,.0f}",
                f"{row['pykeen_seconds']:,.0f} : {row['seconds']:.2f}",
                f"{len(row['different'])} of {row['compared']}",
                "" if gap is None else f"{gap:.0e}",
            )
        )
    machine, versions = rows[0]["machine"], rows[0]["versions"]
    source = (
        f"{machine['name']}, {machine['threads']} threads, {machine['isa']}, torch "
        f"{versions['torch']}, pykeen {versions['pykeen']}, {rows[0]['date'][:10]}; the machine "
        f"was shared, so times are of CPU seconds. Gap: the largest, relative to the score."
    )
    return "\n".join([*lines, "", source])


if __name__ == "__main__":
    sys.exit(pages.main(__file__, __doc__, PAGE, block))

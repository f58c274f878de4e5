"""``python -m journeys [WALK ...]``: follow the pages, and write the times into a results file.

`make journeys` calls it.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from journeys.walk import follow
from journeys.walks import WALKS
from lib.machine import facts
from lib.results import RESULTS, read_rows, write_json

FILE = RESULTS / "cpu-journeys.json"


def main() -> None:
    """Follow the walks that are named, or all; rows of the others stay in the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("walks", nargs="*", metavar="WALK", help=", ".join(it.name for it in WALKS))
    chosen = parser.parse_args().walks or [it.name for it in WALKS]
    if unknown := set(chosen) - {it.name for it in WALKS}:
        parser.error(f"no walk is called {', '.join(sorted(unknown))}")
    rows = [it for it in (read_rows(FILE) if FILE.exists() else []) if it["walk"] not in chosen]
    for walk in WALKS:
        if walk.name not in chosen:
            continue
        folder = Path(tempfile.mkdtemp(prefix="journey-"))
        try:
            found = follow(walk, folder)
        finally:
            shutil.rmtree(folder)
        total = sum(row["seconds"] for row in found)
        print(f"{walk.name}: {len(found)} steps, {total:.1f} s", file=sys.stderr)
        command = {"command": f"python -m journeys '{walk.name}'"}
        rows += [row | facts("cpu") | command for row in found]
    order = [it.name for it in WALKS]
    rows.sort(key=lambda row: (order.index(row["walk"]), row["page"], row["line"]))
    write_json(FILE, {"benchmark": "journeys", "rows": rows})


if __name__ == "__main__":
    main()

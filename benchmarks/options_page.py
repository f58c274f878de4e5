"""The table of wrong conversions in docs/options.md, from what benchmarks/conversions.py wrote.

python benchmarks/options_page.py            put it into docs/options.md
python benchmarks/options_page.py --check    exit code 1 if the page says something else
"""

import json
import sys
from pathlib import Path

from lib import pages
from lib.pages import ROOT

PAGE = ROOT / "docs" / "options.md"
RESULT = "cpu-conversions.json"
HEADS = ("library", "model", "what is forgotten", "MRR", "instead of", "what the door says")


def block(folder: Path) -> str:
    """A row for each library, and what was measured."""
    path = folder / RESULT
    if not path.is_file():
        return "(not measured yet: `python benchmarks/conversions.py`)"
    rows = json.loads(path.read_text())["rows"]
    lines = [pages.row(*HEADS), "|---|---|---|---:|---:|---|"]
    for row in rows:
        names = row["library"], row["model"], row["forgotten"]
        said = f"`{row['refused']}`"
        lines.append(pages.row(*names, f"{row['wrong']:.4f}", f"{row['right']:.4f}", said))
    first = rows[0]
    source = (
        f"Test set of {first['dataset']}, filtered, both sides, after {first['epochs']} epochs "
        f"(`python benchmarks/conversions.py`, torch {first['versions']['torch']}, "
        f"{first['date'][:10]})."
    )
    return "\n".join([*lines, "", source])


if __name__ == "__main__":
    sys.exit(pages.main(__file__, __doc__, PAGE, block))

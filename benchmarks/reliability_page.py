"""The counts of docs/reliability.md, from the files that the attack wrote.

    python benchmarks/reliability_page.py            put them into docs/reliability.md
    python benchmarks/reliability_page.py --check    exit code 1 if the page says something else

One table of all kinds of cases, with a column for every file: `make fuzz` and `make sanitize`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib import pages
from lib.pages import ROOT

PAGE = ROOT / "docs" / "reliability.md"
TITLES = {
    "fuzz": "no sanitizer",
    "fuzz-sanitize-address": "AddressSanitizer, UBSan",
    "fuzz-sanitize-thread": "ThreadSanitizer",
}
GROUPS = {
    "valid": "valid calls, against the oracles",
    "state": "the same under another global state",
    "invalid": "invalid arguments",
    "files": "mutated data folders, configs and files of other readers",
    "checkpoints": "mutated checkpoints",
    "processes": "threads, forks, signals, memory",
    "runs": "kills, full disks, two writers, other graphs",
}
COUNTS = ("wrong", "crashes", "hangs", "reports")

Results = Mapping[str, Mapping[str, Any]]


def read(folder: Path) -> Results:
    """The files that there are, by name."""
    paths = {name: folder / f"{name}.json" for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def markdown(results: Results) -> str:
    """The table, and where its numbers come from."""
    if not results:
        return "(no run of the attack is recorded yet: `make fuzz`, `make sanitize`)"
    heads = [TITLES[name] for name in results]
    lines = [pages.row("cases", *heads), f"|---|{'---:|' * len(heads)}"]
    for group, title in GROUPS.items():
        counts = [_cases(found, group) for found in results.values()]
        lines.append(pages.row(title, *(f"{count:,}" if count else "" for count in counts)))
    lines.append(pages.row("**all**", *(f"**{found['cases']:,}**" for found in results.values())))
    for count in COUNTS:
        found = [sum(kind[count] for kind in it["kinds"].values()) for it in results.values()]
        lines.append(pages.row(f"**{count}**", *(f"**{number:,}**" for number in found)))
    return "\n".join([*lines, "", *(_source(found) for found in results.values())])


def _cases(found: Mapping[str, Any], group: str) -> int:
    return sum(kind["cases"] for kind in found["kinds"].values() if kind["group"] == group)


def _source(found: Mapping[str, Any]) -> str:
    about, packages = found["machine"], found["versions"]
    names = ", ".join(f"{name} {packages[name]}" for name in ("kgfast", "python", "torch", "numpy"))
    return (
        f"`{found['command']}`, seed {found['seed']}, {found['seconds'] / 60:.0f} min on "
        f"{about['name']} ({about['cores']} cores), {found['date'][:10]}: {names}."
    )


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, lambda folder: markdown(read(folder)))


if __name__ == "__main__":
    sys.exit(main())

"""Write the tables that pages have of the files in benchmarks/results/, and the page of configs.

    python benchmarks/pages.py                   write all of them
    python benchmarks/pages.py losses scale      some of them
    python benchmarks/pages.py --check           exit code 1 if a page says something else

Nothing between the markers of a page is typed by hand.
"""

import argparse
import re
import sys
from pathlib import Path

from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from lib.pages import Page, readme, runs, tables
from lib.results import RESULTS, ROOT

sys.path.append(str(ROOT / "tools"))
import config_page

from kgfast.cli import app

HOW_TO = ("classify", "influence", "med_rscf", "paths", "prepared")
PLACES = {
    **{name: f"docs/how-to/{name}.md" for name in HOW_TO},
    **{name: f"docs/reference/{name}.md" for name in ("gpu", "losses")},
    **{name: f"docs/explanation/{name}.md" for name in ("scale", "tiers")},
    "path_star": "examples/path_star/README.md",
    "pykeen": "docs/tutorials/pykeen.md",
    "sampled": "docs/explanation/sampled_vs_exact.md",
    "versions": "docs/reference/stability.md",
    "wheel": "docs/index.md",
}
COMMANDS = """# Command line

Written by `python benchmarks/pages.py cli` from the command line itself; do not edit.

`python -m kgfast` stands for `kgfast`. Mistakes of the user end in a line each and exit code 2;
`--debug` shows the traceback. Every command has `--help`, and [pages](../index.md) have examples.
"""
ON_AVX2 = "\n\n### README's rows on a machine with AVX2\n\n"
_LEFT_OUT = r"\*\*Usage\*\*:\n\n```console\n.*\n```\n\n|(\*\*Options\*\*:\n\n)?\* `--help`: .*\n"


def commands() -> str:
    """Return the page of all commands and options."""
    group = get_command(app)
    text = get_docs_for_click(obj=group, ctx=Context(group), name="kgfast")
    return COMMANDS + re.sub(_LEFT_OUT, "", text[text.index("\n## ") :])


PAGES = {
    "cli": Page("docs/reference/cli.md", lambda folder: commands(), is_whole=True),
    "config": Page("docs/reference/config.md", lambda folder: config_page.page(), is_whole=True),
    "readme": Page("README.md", readme.block),
    "results": Page("docs/reference/results.md", runs.block),
    "speed": Page(
        "docs/reference/speed.md",
        lambda folder: tables.speed(folder) + ON_AVX2 + readme.table(folder / "avx2"),
    ),
    **{name: Page(path, getattr(tables, name)) for name, path in sorted(PLACES.items())},
}


def main() -> int:
    """Update or check the pages; the exit code is 1 if one of them is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all unless given: {[*PAGES]}")
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="of the one page that is named, another file")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PAGES]
    if unknown:
        parser.error(f"no page is called {unknown[0]}; pages are {', '.join(PAGES)}")
    if options.page is not None and len(options.names) != 1:
        parser.error("--page needs the name of one page")
    codes = [
        PAGES[name].update(options.results, check=options.check, path=options.page)
        for name in options.names or PAGES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

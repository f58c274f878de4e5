"""Write the tables that pages have of the files in benchmarks/results/, and the page of configs.

    python benchmarks/pages.py                   write all of them
    python benchmarks/pages.py losses scale      some of them
    python benchmarks/pages.py --check           exit code 1 if a page says something else
    python benchmarks/pages.py --draw            draw results/cpu-reports.png of three of the files

Nothing between the markers of a page is typed by hand.
"""

import argparse
import sys
from pathlib import Path

from lib.columns import ABOVE, FACTS, PEERS
from lib.pages import Page, med, of_file, one_file, readme, runs, sampled, scale, speed, systems
from lib.results import RESULTS, ROOT

sys.path.append(str(ROOT / "tools"))
import cli_page
import config_page

PAGES = {
    "above": Page("docs/how-to/above.md", of_file("cpu-above-speed.json", ABOVE)),
    "readme": Page("README.md", readme.block),
    "alignment": Page("docs/how-to/alignment.md", one_file.alignment),
    "classify": Page("docs/how-to/classify.md", one_file.classify),
    "cli": Page("docs/reference/cli.md", lambda folder: cli_page.page(), is_whole=True),
    "config": Page("docs/reference/config.md", lambda folder: config_page.page(), is_whole=True),
    "gpu": Page("docs/reference/gpu.md", one_file.gpu),
    "graphs": Page("docs/how-to/graphs.md", one_file.graphs),
    "index": Page("docs/index.md", one_file.wheel),
    "influence": Page("docs/how-to/influence.md", systems.influence),
    "losses": Page("docs/reference/losses.md", one_file.losses),
    "med_rscf": Page("docs/how-to/med_rscf.md", med.block),
    "ogb": Page("docs/how-to/ogb.md", one_file.ogb),
    "options": Page("docs/reference/options.md", one_file.options),
    "path_star": Page("examples/path_star/README.md", systems.path_star),
    "paths": Page("docs/how-to/paths.md", systems.paths),
    "predictions": Page("docs/how-to/predictions.md", of_file("cpu-facts-speed.json", FACTS)),
    "prepared": Page("docs/how-to/prepared.md", of_file("cpu-peers-speed.json", PEERS)),
    "pykeen": Page("docs/tutorials/pykeen.md", one_file.pykeen),
    "reliability": Page("docs/reference/reliability.md", one_file.reliability),
    "results": Page("docs/reference/results.md", runs.block),
    "retrieval": Page("docs/how-to/retrieval.md", one_file.retrieval),
    "sampled": Page("docs/explanation/sampled_vs_exact.md", sampled.block),
    "scale": Page("docs/explanation/scale.md", scale.block),
    "search": Page("docs/how-to/search.md", one_file.search),
    "serve": Page("docs/reference/http.md", one_file.serve),
    "speed": Page("docs/reference/speed.md", speed.block),
    "tiers": Page("docs/explanation/tiers.md", one_file.tiers),
    "versions": Page("CONTRIBUTING.md", one_file.versions),
}


def main() -> int:
    """Update or check the pages; the exit code is 1 if one of them is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all unless given: {[*PAGES]}")
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    parser.add_argument("--draw", action="store_true", help="draw the picture, write no page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="of the one page that is named, another file")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PAGES]
    if unknown:
        parser.error(f"no page is called {unknown[0]}; pages are {', '.join(PAGES)}")
    if options.page is not None and len(options.names) != 1:
        parser.error("--page needs the name of one page")
    if options.draw:
        systems.draw(options.results)
        return 0
    codes = [
        PAGES[name].update(options.results, check=options.check, path=options.page)
        for name in options.names or PAGES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

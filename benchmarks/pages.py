"""The pages whose tables are made of the files under benchmarks/results/, and docs/config.md.

    python benchmarks/pages.py                   write all of them
    python benchmarks/pages.py losses scale      some of them
    python benchmarks/pages.py --check           exit code 1 if a page says something else
    python benchmarks/pages.py --draw            draw results/cpu-reports.png of three of the files

Nothing between the markers of a page is typed by hand.
"""

import argparse
import sys
from pathlib import Path

from lib.columns import ABOVE, FACTS, SIGLIP, STEP_COUNTS
from lib.pages import Page, med, of_file, one_file, readme, runs, scale, systems
from lib.results import RESULTS, ROOT

sys.path.append(str(ROOT / "tools"))
import config_page

PAGES = {
    "above": Page("docs/above.md", of_file("cpu-above-speed.json", ABOVE)),
    "readme": Page("README.md", readme.block),
    "alignment": Page("docs/alignment.md", one_file.alignment),
    "classify": Page("docs/classify.md", one_file.classify),
    "config": Page("docs/config.md", lambda folder: config_page.page(), is_whole=True),
    "gpu": Page("docs/gpu.md", of_file("static-step-counts.json", STEP_COUNTS)),
    "graphs": Page("docs/graphs.md", one_file.graphs),
    "index": Page("docs/index.md", one_file.wheel),
    "influence": Page("docs/influence.md", systems.influence),
    "losses": Page("docs/losses.md", one_file.losses),
    "med_rscf": Page("docs/med_rscf.md", med.block),
    "options": Page("docs/options.md", one_file.options),
    "path_star": Page("examples/path_star/README.md", systems.path_star),
    "paths": Page("docs/paths.md", systems.paths),
    "predictions": Page("docs/predictions.md", of_file("cpu-facts-speed.json", FACTS)),
    "pykeen": Page("docs/pykeen.md", one_file.pykeen),
    "reliability": Page("docs/reliability.md", one_file.reliability),
    "results": Page("docs/results.md", runs.block),
    "retrieval": Page("docs/retrieval.md", one_file.retrieval),
    "scale": Page("docs/scale.md", scale.block),
    "search": Page("docs/search.md", one_file.search),
    "serve": Page("docs/serve.md", one_file.serve),
    "siglip": Page("docs/siglip.md", of_file("cpu-siglip.json", SIGLIP)),
    "tiers": Page("docs/tiers.md", one_file.tiers),
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

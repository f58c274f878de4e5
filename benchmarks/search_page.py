"""The tables of docs/search.md, from what search_trials.py wrote.

python benchmarks/search_page.py            put them into docs/search.md
python benchmarks/search_page.py --check    exit code 1 if the page says something else
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from lib import pages
from lib.pages import ROOT
from lib.results import Rows, read_rows

PAGE = ROOT / "docs" / "search.md"
RESULT = "cpu-search-trials.json"
_SHOWN = 5  # trials of each search


def markdown(rows: Rows) -> str:
    """What each search found, its best trials, and where the numbers come from."""
    lines = [
        pages.row("graph", "base: MRR", "best: MRR", "trials", "ended", "minutes", "runs' worth"),
        "|---|---:|---:|---:|---|---:|---:|",
        *(_of_search(row) for row in rows),
    ]
    for row in rows:
        lines += ["", *_trials(row)]
    return "\n".join([*lines, "", *pages.sources([rows])])


def _of_search(row: Mapping[str, Any]) -> str:
    outcomes = [trial["outcome"] for trial in row["trials"]]
    ended = ", ".join(f"{outcomes.count(it)} {it}" for it in dict.fromkeys(sorted(outcomes)))
    steps = sum(max(map(int, trial["rungs"]), default=0) for trial in row["trials"])
    return pages.row(
        f"{row['graph']}, {row['entities']:,} entities",
        "" if row["base_mrr"] is None else f"{row['base_mrr']:.4f}",
        f"{_best_first(row)[0]['mrr']:.4f}",
        str(len(outcomes)),
        ended,
        f"{row['seconds'] / 60:.1f}",
        f"{steps / row['steps']:.1f}",
    )


def _trials(row: Mapping[str, Any]) -> Iterator[str]:
    """The best trials of a search."""
    best = _best_first(row)
    yield f"The best trials on {row['graph']}:"
    yield ""
    yield pages.row("trial", "MRR", row["unit"], *(f"`{key}`" for key in best[0]["values"]))
    yield "|---:|" + "---:|" * (2 + len(best[0]["values"]))
    for trial in best[:_SHOWN]:
        values = (_shown(value) for value in trial["values"].values())
        reached = max(map(int, trial["rungs"]))
        yield pages.row(str(trial["number"]), f"{trial['mrr']:.4f}", f"{reached:,}", *values)


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _best_first(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Trials that came to a rung: those that are done, then those that got furthest."""

    def merit(trial: Mapping[str, Any]) -> tuple[int, float]:
        return max(map(int, trial["rungs"])), trial["mrr"]

    return sorted((it for it in row["trials"] if it["rungs"]), key=merit, reverse=True)


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, lambda folder: markdown(read_rows(folder / RESULT)))


if __name__ == "__main__":
    sys.exit(main())

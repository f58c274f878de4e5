"""The tables of examples/path_star/README.md, from what the example's scripts wrote.

python benchmarks/path_star_page.py            put it into the page
python benchmarks/path_star_page.py --check    exit code 1 if the page says something else
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib import pages
from lib.pages import ROOT
from lib.results import Rows, read_rows
from lib.tables import human_bytes

PAGE = ROOT / "examples" / "path_star" / "README.md"
RESULT, TRAINING = "cpu-path-star.json", "cpu-path-star-training.json"
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


def curve(rows: Rows) -> str:
    """The losses of a training, and how many paths are right after it."""
    run = rows[0]
    config, places = run["config"], run["curve"]
    some = [*places[:: max(1, len(places) // 6)], places[-1]]
    some = [it for at, it in enumerate(some) if it not in some[:at]]
    lines = [
        pages.row("batches", *(f"{it['batch']:,}" for it in some)),
        f"|---|{'---:|' * len(some)}",
        pages.row("mean loss of the last 100", *(f"{it['loss']:.3f}" for it in some)),
        pages.row("seconds of cores", *(f"{it['cpu_seconds']:.0f}" for it in some)),
    ]
    shares = ", ".join(f"{it['right']:.1%} of {it['paths']:,} ({it['of']})" for it in run["shares"])
    told = (
        f"Training: {config['graph_d']:,} arms of {config['graph_l']}, "
        f"{config['graph_vocab_size']:,} tokens, batches of {config['batch_size']:,}. Paths "
        f"that come out right: {shares}; by chance one in {config['graph_d']:,} begins with the "
        "right arm."
    )
    return "\n".join([told, "", *lines, "", *pages.sources([rows])])


def block(folder: Path) -> str:
    """Both tables."""
    measured, trained = (read_rows(folder / name) for name in (RESULT, TRAINING))
    return f"{markdown(measured)}\n\n{curve(trained)}"


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
    return pages.main(__file__, __doc__, PAGE, block)


if __name__ == "__main__":
    sys.exit(main())

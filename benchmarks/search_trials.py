"""A search that was really run: RotatE's rate, gamma, alpha and negatives, at few dimensions.

    python benchmarks/search_trials.py --data DIR      results/cpu-search-trials.json
    python benchmarks/search_trials.py --quick         a smoke test: the synthetic graph, seconds
    python benchmarks/search_trials.py --add SEARCH    one that `kgfast search` ran, as well

DIR is a folder of WN18RR. Searched are the synthetic graph that comes with kgfast and WN18RR: 24
trials each, or as many as ten minutes allow. For comparison the base of the same config, which is
what `kgfast train` makes of it, is trained as well; all is evaluated on the valid set.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from kgfast.datasets import Dataset, load, synthetic
from kgfast.extras.search import read_trials, search
from kgfast.training import Config, Trainer
from kgfast.training.build import load_dataset
from lib import options as known_options
from lib.machine import facts
from lib.options import QUICK_SIZES
from lib.results import read_rows, write_json
from lib.tables import console, new_table
from lib.trials import write_and_show

SYNTHETIC = (2000, 12, 12000, 500, 500)
RANGES = {
    "optim.lr": {"low": 2e-4, "high": 0.2, "log": True},
    "model.gamma": {"low": 2.0, "high": 16.0},
    "loss.alpha": {"low": 0.1, "high": 2.0, "log": True},
    "data.neg_size": {"choices": [32, 128, 512]},
}


def config_of(graph: Dataset, steps: int, trials: int) -> Config:
    """The config of a search; its base has the values that sections have by default."""
    return Config.from_dict(
        {
            "dataset": {"name": graph.name},
            "model": {"name": "rotate", "base_dim": 32},
            "optim": {"name": "row_adam", "lr": 1e-3},
            "sched": {"name": "linear"},
            "train": {"steps": steps},
            "data": {"train_bs": 512, "neg_size": 64, "negatives": "shared"},
            "search": {
                "ranges": RANGES,
                "trials": trials,
                "minutes": 10,
                "first_rung": max(1, steps // 9),
            },
        }
    )


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each graph."""
    steps, trials = (9, 3) if options.quick else (2700, 24)
    graphs = [synthetic(*(QUICK_SIZES if options.quick else SYNTHETIC))]
    if options.data:
        graphs.append(load(options.data, "WN18RR"))
    for graph in graphs:
        config = config_of(graph, steps, trials)
        base = Trainer(config, dataset=graph, progress=False).fit()
        with tempfile.TemporaryDirectory() as folder:
            found = search(
                config, Path(folder) / "search", dataset=graph, progress=not options.quick
            )
        yield {
            "benchmark": "search_trials",
            "graph": graph.name,
            "entities": graph.num_entities,
            "steps": steps,
            "config": config.to_dict(),
            "base_mrr": base.valid["mrr"],
            "base_seconds": base.seconds_training + base.seconds_evaluating,
            "seconds": found.seconds,
            **found.to_dict(),
        }


def added(folder: Path, note: str | None) -> dict[str, Any]:
    """The row of a search that `kgfast search` ran."""
    config, found = Config.from_yaml(folder / "config.yaml"), read_trials(folder)
    name = f"{config.dataset.name}, {config.model.name} at {config.model.base_dim} dimensions"
    values = config.to_dict()
    values["dataset"].pop("root")  # a folder of the machine that ran it
    return {
        "benchmark": "search_trials",
        "graph": name,
        "entities": load_dataset(config).num_entities,
        "steps": config.train.steps or config.train.epochs,
        "config": values,
        "base_mrr": None,
        "base_seconds": None,
        "seconds": found.seconds,
        **found.to_dict(),
        **facts("cpu"),
        "command": "kgfast search --config FILE --set dataset.root=DIR",
        "note": note,
    }


def show(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as a table."""
    table = new_table("MRR on valid", "graph", "base", "best", "trials", "minutes")
    for row in rows:
        best = max((it["mrr"] or 0.0) for it in row["trials"] if it["outcome"] == "done")
        minutes = f"{row['seconds'] / 60:.1f}"
        base = "" if row["base_mrr"] is None else f"{row['base_mrr']:.4f}"
        cells = base, f"{best:.4f}", str(len(row["trials"])), minutes
        table.add_row(row["graph"], *cells)
    out.print(table)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = known_options.new_parser(__doc__, quick="a synthetic graph: a smoke test")
    parser.add_argument("--data", metavar="DIR", help="a folder of WN18RR")
    parser.add_argument("--add", type=Path, metavar="SEARCH", help="the folder of a search")
    parser.add_argument("--note", help="of what was added: what else ran on the machine")
    known_options.add_outputs(parser, "search-trials", plot=False)
    options = parser.parse_args()
    known_options.set_outputs(options, "search-trials")
    return options


def main() -> int:
    """Measure, print, write; after each graph what there is."""
    options = parse()
    if options.add is not None:
        row = added(options.add, options.note)
        others = [it for it in read_rows(options.json) if it["graph"] != row["graph"]]
        write_json(options.json, {"rows": [*others, row]})
        show(console(), [row])
        return 0
    write_and_show(measure(options), options.json, show)
    return 0


if __name__ == "__main__":
    sys.exit(main())

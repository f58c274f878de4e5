"""Triple classification of a run's test triples and of hard negatives.

    python benchmarks/classification.py --run RUN ...      writes results/cpu-classification.json

Each threshold is chosen on the validation triples of its relation, true and false ones. The folder
of a run's data holds the negatives. Rows of other runs stay in the file.
"""

import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import kgfast
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options, Parser, of_other_runs
from lib.columns import CLASSES


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each run, or one of planted embeddings in a smoke test."""
    if options.quick:
        graph = kgfast.datasets.synthetic(*QUICK_SIZES)
        model = kgfast.RotatE(*graph.planted(16), relation_format="phase")
        pairs = {}
        for split in ("valid", "test"):
            false = getattr(graph, split).hrt.clone()
            false[:, 2] = (false[:, 2] + graph.num_entities // 2) % graph.num_entities
            pairs[split] = (getattr(graph, split), false)
        yield row_of(kgfast.classify(model, **pairs), "synthetic", "rotate", "rotate")
    for run in options.run or ():
        loaded = kgfast.load_run(run)
        name = loaded.config.model.name
        yield row_of(
            loaded.classify(loaded.config.dataset.folder()),
            loaded.config.dataset.name,
            name,
            run.resolve().name,
        )


def row_of(found: Any, data: str, model: str, run: str) -> dict[str, Any]:
    """Return the row of a classification."""
    return {"data": data, "model": model, "run": run, **found.test._asdict()}


def check(parser: Parser, options: Options) -> None:
    """Check that there is something to classify."""
    if (options.run is None) != options.quick:
        parser.error("--run names the folders of trained models, or --quick")


BENCHMARK = Benchmark(
    "classification",
    __doc__,
    {"classification": rows_of},
    options={"run": Option("folders of trained models", keywords={"type": Path, "nargs": "*"})},
    tables=CLASSES,
    check=check,
    stays=of_other_runs,
    order=itemgetter("run"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

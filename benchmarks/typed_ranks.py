"""Filtered ranks among all entities and among type-correct ones, of trained models.

    python benchmarks/typed_ranks.py --run RUN... --data DIR     DIR holds the folder of the graph
    python benchmarks/typed_ranks.py --quick                     a fresh model of a tiny graph

Entities of CoDEx have types: `entity2types.json` of the download, or `entity_types.tsv`. A relation
allows the entities that share a type with one that train has on its side. Rows of other runs stay
in benchmarks/results/cpu-typed-ranks.json.
"""

import sys
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import kgfast
from kgfast.training import LoadedRun, Vocabularies
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options, Parser, of_other_runs
from lib.columns import TYPED
from lib.measure import timed

TYPE_FILES = ("entity2types.json", "entity_types.tsv")
METRICS = ("mrr", "mr", "hits@1", "hits@3", "hits@10")


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each run."""
    if options.quick:
        graph = kgfast.datasets.synthetic(*QUICK_SIZES)
        model = kgfast.DistMult.init(graph.num_entities, graph.num_relations, 8, seed=0)
        names = Vocabularies(graph.entities, graph.relations)
        yield row_of(LoadedRun(model, names, graph, None), "train", "quick")
    for folder in options.run or ():
        run = kgfast.load_run(folder, options.data)
        graph = options.data / run.config.dataset.name
        places = (place / name for place in (graph, options.data) for name in TYPE_FILES)
        source = next((path for path in places if path.is_file()), None)
        if source is None:
            raise FileNotFoundError(f"{graph}: none of {', '.join(TYPE_FILES)} is in it")
        yield row_of(run, source, Path(folder).name)


def row_of(run: LoadedRun, source: Path | str, name: str) -> dict[str, Any]:
    """Rank the test set both ways."""
    allowed = run.type_constraints(source)
    every, of_every = timed(lambda: run.ranks())
    typed, of_typed = timed(lambda: run.ranks(candidate_ids=allowed))
    return {
        "run": name,
        "model": type(run.model).__name__ if run.config is None else run.config.model.name,
        "dim": run.model.dim,
        "dataset": run.dataset.name,
        "step": run.step,
        "types": source if isinstance(source, str) else source.name,
        "test_triples": len(every),
        "entities": run.model.num_entities,
        "candidates": float(typed.num_candidates.double().mean()),
        "outside": sum(int((~_holds(allowed, typed, side)).sum()) for side in typed.sides),
        "all": {it: every.metrics()[it] for it in METRICS} | of_every,
        "typed": {it: typed.metrics()[it] for it in METRICS} | of_typed,
    }


def _holds(allowed: kgfast.TypeConstraints, ranks: kgfast.Ranks, side: str) -> Any:
    """Return which targets of a side are candidates of their relations."""
    relations, targets = ranks.triples[:, 1], ranks.triples[:, 0 if side == "head" else 2]
    pairs = zip(relations.tolist(), targets.tolist(), strict=True)
    lists = {it: set(allowed.candidates(it, side).tolist()) for it in relations.unique().tolist()}
    return targets.new_tensor([target in lists[relation] for relation, target in pairs]).bool()


def check(parser: Parser, options: Options) -> None:
    """Check that runs and their data are named, or a smoke test is wanted."""
    if options.quick == bool(options.run) or bool(options.run) != (options.data is not None):
        parser.error("name --run RUN... and --data DIR, or --quick")


BENCHMARK = Benchmark(
    "typed_ranks",
    __doc__,
    {"ranks": rows_of},
    options={
        "run": Option("folders of runs", keywords={"nargs": "+", "type": Path}),
        "data": Option("the folder of the graphs", keywords={"type": Path}),
        "threads": Option("torch's unless given", keywords={"type": int}),
    },
    tables=TYPED,
    check=check,
    stays=of_other_runs,
    order=itemgetter("run"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

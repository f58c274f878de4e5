"""PyKEEN's RankBasedEvaluator and ours, in one process, on the test set of WN18RR.

    python benchmarks/pykeen_speed.py --data DIR           writes results/cpu-pykeen-speed.json
    python benchmarks/pykeen_speed.py --quick              a smoke test: Nations, which PyKEEN ships

Models are PyKEEN's, trained by PyKEEN for an epoch. Its evaluator ranks a sample of the test
triples, and its seconds for all of them are extrapolated; ours ranks all. On the sample the ranks
of both are compared: each that differs is listed with the gap to the nearest other score (exit code
1 if one differs that no other score is near).
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pykeen.datasets import Nations
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import model_resolver
from pykeen.training import SLCWATrainingLoop
from pykeen.triples import CoreTriplesFactory

import kgfast
from kgfast.adapters.pykeen import KgfastEvaluator, from_pykeen
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score
from lib.machine import facts as about_machine
from lib.options import new_parser
from lib.results import RESULTS, write_json
from lib.tables import console

MODELS: dict[str, dict[str, Any]] = {
    "RotatE": {},
    "TransE": {"scoring_fct_norm": 1},
    "DistMult": {},
    "ComplEx": {},
}
DIM, QUICK_DIM = 128, 8
SAMPLE = 256
NEAR = 1e-5  # relative gap of two scores that float32 may not tell apart
Work = Callable[[], Any]


def main() -> int:
    """Measure, print, write."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, help="the folder of WN18RR")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="test triples for PyKEEN")
    parser.add_argument("--json", type=Path, help="default: results/cpu-pykeen-speed.json")
    options = parser.parse_args()
    if options.data is None and not options.quick:
        parser.error("--data names the folder of WN18RR, or --quick")
    if options.quick:
        data = Nations()
        train, valid, test = data.training, data.validation, data.testing
        splits = [it.mapped_triples for it in (train, valid, test)]
    else:
        graph = kgfast.datasets.load(options.data)
        splits = [it.hrt for it in (graph.train, graph.valid, graph.test)]
        train = CoreTriplesFactory(splits[0], graph.num_entities, graph.num_relations)
    rows = []
    for name in options.models:
        model = trained(name, train, QUICK_DIM if options.quick else DIM)
        row = about_machine("cpu") | row_of(name, model, splits, options.sample)
        rows.append(row)
        console().print(
            f"{name:>9}: PyKEEN {row['pykeen_cpu_seconds']:9.1f} CPU s (extrapolated from "
            f"{row['sample']} triples), kgfast {row['cpu_seconds']:6.2f} CPU s: "
            f"{row['times']:.0f}x; {len(row['different'])} of {row['compared']} ranks differ"
        )
    path = options.json or (None if options.quick else RESULTS / "cpu-pykeen-speed.json")
    if path is not None:
        write_json(path, {"rows": rows})
    return 0 if all(it["gap"] <= NEAR for row in rows for it in row["different"]) else 1


def trained(name: str, factory: Any, dim: int) -> Any:
    """A model after an epoch of PyKEEN's."""
    torch.manual_seed(0)
    model = model_resolver.make(
        name, triples_factory=factory, embedding_dim=dim, random_seed=0, **MODELS[name]
    )
    loop = SLCWATrainingLoop(
        model=model, triples_factory=factory, optimizer="adam", optimizer_kwargs={"lr": 0.01}
    )
    loop.train(triples_factory=factory, num_epochs=1, batch_size=4096, use_tqdm=False)
    return model


def row_of(name: str, model: Any, splits: list[torch.Tensor], sample: int) -> dict[str, Any]:
    """The seconds of both, and the ranks that differ."""
    train, valid, test = splits
    step = max(1, len(test) // sample)
    part = test[::step][:sample].contiguous()
    known = {"additional_filter_triples": [train, valid, test], "use_tqdm": False}
    theirs = RankBasedEvaluator(clear_on_finalize=False)
    pykeen = seconds(lambda: theirs.evaluate(model, part, **known))
    ours = KgfastEvaluator(clear_on_finalize=False)
    first = seconds(lambda: ours.evaluate(model, test, **known))
    again = seconds(lambda: ours.evaluate(model, test, **known))
    ours.evaluate(model, part, **known)
    different = [
        {"side": side, "rank_type": kind, "row": int(row), "gap": gap(model, part[row], side)}
        for (side, kind), ranks in theirs.ranks.items()
        for row in np.flatnonzero(np.concatenate(ranks) != np.concatenate(ours.ranks[side, kind]))
    ]
    scale = len(test) / len(part)
    return {
        "benchmark": "pykeen_speed",
        "model": name,
        "dim": DIM if len(train) > 10_000 else QUICK_DIM,
        "entities": model.num_entities,
        "test_triples": len(test),
        "sample": len(part),
        "pykeen_seconds_of_sample": pykeen[0],
        "pykeen_cpu_seconds_of_sample": pykeen[1],
        "pykeen_seconds": pykeen[0] * scale,
        "pykeen_cpu_seconds": pykeen[1] * scale,
        "first_seconds": first[0],
        "first_cpu_seconds": first[1],
        "seconds": again[0],
        "cpu_seconds": again[1],
        "times": pykeen[1] * scale / again[1],
        "compared": sum(len(np.concatenate(it)) for it in theirs.ranks.values()),
        "different": different,
    }


def seconds(work: Work) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def gap(model: Any, triple: torch.Tensor, side: Any) -> float:
    """The relative gap between the target's canonical score and the nearest other one."""
    converted = from_pykeen(model)
    h, r, t = triple.tolist()
    anchor, target = (h, t) if side == "tail" else (t, h)
    query = converted.queries(torch.tensor([anchor]), torch.tensor([r]), side)
    table = converted.candidates(side).table
    scores = canonical_scores(query, table, get_score(converted.score))
    others = (scores - scores[target]).abs()
    others[target] = torch.inf
    return float(others.min() / scores[target].abs())


if __name__ == "__main__":
    sys.exit(main())

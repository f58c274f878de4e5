"""Compare PyKEEN's RankBasedEvaluator with kgfast's on the test set of WN18RR.

    python benchmarks/pykeen_speed.py --data DIR           writes results/cpu-pykeen-speed.json

Models are trained by PyKEEN for an epoch. Its evaluator ranks a sample of the test triples by its
fastest batch and slice, and its time is extrapolated; kgfast ranks all. Each rank that differs is
listed with the gap to the nearest other score (exit code 1 if no other score is near).
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pykeen.datasets import Nations

import kgfast
from kgfast.adapters.pykeen import KgfastEvaluator, from_pykeen
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score
from lib.benchmark import Benchmark, Option, Options, needs_data
from lib.columns import PYKEEN
from lib.measure import timed
from lib.peers.pykeen_loop import PykeenLoop
from lib.peers.ranks import evaluated, fastest_evaluation

MODELS: dict[str, dict[str, Any]] = {
    "RotatE": {},
    "TransE": {"scoring_fct_norm": 1},
    "DistMult": {},
    "ComplEx": {},
}
DIM, QUICK_DIM = 128, 8
NEAR = 1e-5  # relative gap of two scores that float32 may not tell apart


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each model."""
    if options.quick:
        data = Nations()
        splits = [it.mapped_triples for it in (data.training, data.validation, data.testing)]
    else:
        data = kgfast.datasets.load(options.data)
        splits = [it.hrt for it in (data.train, data.valid, data.test)]
    sizes, dim = (data.num_entities, data.num_relations), QUICK_DIM if options.quick else DIM
    for name in options.models:
        model = trained(name, splits[0], sizes, dim)
        yield {"model": name, "dim": dim} | row_of(model, splits, options.sample)


def trained(name: str, hrt: torch.Tensor, sizes: tuple[int, int], dim: int) -> Any:
    """Train a model for an epoch of PyKEEN's."""
    torch.manual_seed(0)
    adam = partial(torch.optim.Adam, lr=0.01)
    of_model = {"embedding_dim": dim, **MODELS[name]}
    loop = PykeenLoop(hrt, sizes, name, "slcwa", adam, of_model)
    loop.train(hrt, 4096)
    return loop.model


def row_of(model: Any, splits: list[torch.Tensor], sample: int) -> dict[str, Any]:
    """Measure the seconds of both, and list the ranks that differ."""
    train, valid, test = splits
    step = max(1, len(test) // sample)
    part = test[::step][:sample].contiguous()
    known = {"additional_filter_triples": [train, valid, test], "use_tqdm": False}
    options = fastest_evaluation(model, part, [train, valid, test])
    theirs, pykeen = timed(lambda: evaluated(model, part, [train, valid, test], options))
    ours = KgfastEvaluator(clear_on_finalize=False)
    _, first = timed(lambda: ours.evaluate(model, test, **known))
    _, again = timed(lambda: ours.evaluate(model, test, **known))
    ours.evaluate(model, part, **known)
    different = [
        {"side": side, "rank_type": kind, "row": int(row), "gap": gap(model, part[row], side)}
        for (side, kind), ranks in theirs.ranks.items()
        for row in np.flatnonzero(np.concatenate(ranks) != np.concatenate(ours.ranks[side, kind]))
    ]
    scale = len(test) / len(part)
    return {
        "entities": model.num_entities,
        "test_triples": len(test),
        "sample": len(part),
        "pykeen_options": options,
        **{f"pykeen_{name}_of_sample": value for name, value in pykeen.items()},
        **{f"pykeen_{name}": value * scale for name, value in pykeen.items()},
        **{f"first_{name}": value for name, value in first.items()},
        **again,
        "times": pykeen["cpu_seconds"] * scale / again["cpu_seconds"],
        "compared": sum(len(np.concatenate(it)) for it in theirs.ranks.values()),
        "different": different,
    }


def gap(model: Any, triple: torch.Tensor, side: Any) -> float:
    """Return the relative gap between the target's canonical score and the nearest other one."""
    converted = from_pykeen(model)
    h, r, t = triple.tolist()
    anchor, target = (h, t) if side == "tail" else (t, h)
    query = converted.queries(torch.tensor([anchor]), torch.tensor([r]), side)
    table = converted.candidates(side).table
    scores = canonical_scores(query, table, get_score(converted.score))
    others = (scores - scores[target]).abs()
    others[target] = torch.inf
    return float(others.min() / scores[target].abs())


BENCHMARK = Benchmark(
    "pykeen_speed",
    __doc__,
    {"ranks": rows_of},
    options={
        "data": Option("the folder of WN18RR", keywords={"type": Path}),
        "models": Option("models", [*MODELS], keywords={"nargs": "*", "choices": MODELS}),
        "sample": Option("test triples for PyKEEN", 256),
    },
    tables=PYKEEN,
    check=needs_data("WN18RR"),
    is_right=lambda row: all(it["gap"] <= NEAR for it in row["different"]),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

"""Train RotatE + MED shortly with one setting of MED changed at a time.

    python benchmarks/med_trials.py --data DIR      results/cpu-med-trials.json

DIR is a folder of WN18RR. Each run makes 2,000 steps with the batch, negatives and optimizer of
configs/wn18rr/rotate_med_640d.yaml at a fifth of its dimensions: the MRR on valid shows how soon
sub-models learn, not how far they come.
"""

import sys
from collections.abc import Iterator
from typing import Any

from kgfast.training import Config, Trainer
from lib.benchmark import Benchmark, Option, Options, graph_of, needs_data
from lib.columns import MED_TRIALS

STEPS, WIDEST = 2000, 128
SEVEN = (32, 48, 64, 80, 96, 112, 128)
HELD = {"learnable": False, "scales": [0.0, 0.5, 1.0]}
GAMMA = 4.0

# Name, sub-models (none: the model alone), options of MED, gamma.
TRIALS: tuple[tuple[str, tuple[int, ...], dict[str, Any], float], ...] = (
    ("alone, self-adversarial loss", (), {}, GAMMA),
    ("2 sub-models, w1, w2, w3 learned", (32, 128), {}, GAMMA),
    ("2 sub-models, w1, w2, w3 held at 1", (32, 128), {"learnable": False}, GAMMA),
    ("2 sub-models, held at 0, 1/2, 1", (32, 128), HELD, GAMMA),
    ("4 sub-models, held at 0, 1/2, 1", (32, 64, 96, 128), HELD, GAMMA),
    ("7 sub-models, held at 0, 1/2, 1", SEVEN, HELD, GAMMA),
    ("the same, 3 of them in a step", SEVEN, HELD | {"submodels_per_step": 3}, GAMMA),
    ("the same, all, gamma 6", SEVEN, HELD, 6.0),
)


def config_of(
    dims: tuple[int, ...], options: dict[str, Any], gamma: float, *, root: str | None, quick: bool
) -> Config:
    """Return the config of a trial."""
    shrink = 8 if quick else 1
    widths = [dim // shrink for dim in dims]
    steps = 4 if quick else STEPS
    med = {"dims": widths, "submodels_per_step": len(widths), **options}
    dataset = {"name": "synthetic"} if root is None else {"name": "wn18rr", "root": root}
    return Config.from_dict(
        {
            "dataset": dataset,
            "model": {"name": "rotate", "base_dim": WIDEST // shrink, "gamma": gamma},
            "optim": {"name": "row_adam", "lr": 4e-3},
            "sched": {"name": "step", "milestones": [0.6], "factor": 0.1},
            "train": {"steps": steps, "eval_every": steps},
            "data": {
                "train_bs": 64 if quick else 512,
                "neg_size": 32 if quick else 1024,
                "negatives": "shared",
            },
        }
        | ({"med": med} if dims else {"loss": {"name": "nssa", "alpha": 0.5}})
    )


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each trial."""
    graph = graph_of(options) if options.quick else None
    for name, dims, changes, gamma in TRIALS:
        config = config_of(dims, changes, gamma, root=options.data, quick=options.quick)
        trainer = Trainer(config, dataset=graph, progress=False)
        result = trainer.fit()
        by_dim = result.valid_of_submodels or {str(trainer.model.dim): result.valid}
        yield {
            "graph": trainer.dataset.name,
            "trial": name,
            "dims": [int(dim) for dim in by_dim],
            "steps": result.steps,
            "config": config.to_dict(),
            "mrr": {dim: metrics["mrr"] for dim, metrics in by_dim.items()},
        }


BENCHMARK = Benchmark(
    "med_trials",
    __doc__,
    {"trials": rows_of},
    options={"data": Option("a folder of WN18RR")},
    tables=MED_TRIALS,
    check=needs_data("WN18RR"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

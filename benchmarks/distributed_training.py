"""Training by several processes against one: losses step by step, and the time of a step.

    python benchmarks/distributed_training.py             results/cpu-distributed-training.json
    python benchmarks/distributed_training.py --quick     a smoke test: a small graph, seconds

Each way trains the same config on the same graph in processes of torchrun, one thread each, without
evaluations between. Rows of section `speed` have the steps a second of all steps but the first
tenth, by the clock of process 0, the median CPU time of a step there, which a busy machine disturbs
less, and the MRR of the test set after the last step. Rows of section `curve` have the relative
difference of each step's loss from that of one process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast.training import Config, Trainer
from lib import options as known_options
from lib.bare_run import bare_run
from lib.benchmark import draw
from lib.machine import facts, machine_line
from lib.measure import Stopwatch
from lib.options import QUICK_SIZES
from lib.results import write_json
from lib.tables import console

CONFIGS: dict[str, dict[str, Any]] = {
    "RotatE, nssa": {
        "model": {"name": "rotate", "base_dim": 64, "gamma": 6.0},
        "data": {"train_bs": 512, "neg_size": 64, "subsampling": True},
    },
    "RotatE + MED": {
        "model": {"name": "rotate", "base_dim": 64, "gamma": 6.0},
        "med": {"dims": [16, 32, 64]},
        "data": {"train_bs": 256, "neg_size": 32},
    },
    "docs/scale.md": {
        "model": {"name": "rotate", "base_dim": 64, "gamma": 6.0},
        "data": {"train_bs": 512, "neg_size": 64},
        "optim": {"lr": 0.01},
    },
    "ComplEx, 1-vs-all": {
        "model": {"name": "complex", "base_dim": 64},
        "data": {"train_bs": 512},
        "train": {"mode": "1vsall"},
        "loss": {"name": "cross_entropy"},
        "optim": {"name": "adagrad", "lr": 0.1},
    },
}
ONE = ("replicated", 1)
WAYS = (ONE, ("replicated", 2), ("sharded", 2), ("replicated", 4), ("sharded", 4))
SOME_WAYS = {
    "ComplEx, 1-vs-all": (ONE, ("replicated", 2), ("replicated", 4)),
}
SMALL = (2_000, 8, 12_000, 200, 200)  # as on docs/scale.md; others have the sizes of WN18RR
ON_SMALL = ("docs/scale.md", *SOME_WAYS)


def config_of(name: str, tables: str, steps: int, device: str) -> Config:
    """The config of a row."""
    common = {
        "dataset": {"name": "synthetic"},
        "threads": 1,
        "device": device,
        "optim": {"name": "row_adam", "lr": 1e-3},
        "distributed": {"tables": tables},
    }
    own = dict(CONFIGS[name])
    train = {"steps": steps} | own.pop("train", {})
    return Config.from_dict(common | own | {"train": train})


def train(options: argparse.Namespace) -> None:
    """One process of a way; the first writes losses and seconds."""
    config = config_of(options.name, options.tables, options.steps, options.device)
    sizes = SMALL if options.name in ON_SMALL else ()
    graph = kgfast.datasets.synthetic(*(QUICK_SIZES if options.quick else sizes))
    trainer = Trainer(config, dataset=graph, progress=False)
    run, stopwatch = bare_run(trainer), Stopwatch(trainer.device.type)
    losses, seconds, cpu = [], [], []
    for _ in range(options.steps):
        before, began = run.state.loss_sum, time.process_time()
        seconds.append(stopwatch.seconds(run.make_step))
        cpu.append(time.process_time() - began)
        losses.append(run.state.loss_sum - before)
        run.state.loss_sum = 0.0
    ranks = trainer.evaluate("test") if options.name in ON_SMALL else None
    if trainer.placement.leads:
        first = len(seconds) // 10
        found = {
            "losses": losses,
            "steps_per_second": (len(seconds) - first) / sum(seconds[first:]),
            "cpu_seconds_per_step": statistics.median(cpu[first:]),
            "test_mrr": ranks.metrics()["mrr"] if isinstance(ranks, kgfast.Ranks) else None,
        }
        options.worker.write_text(json.dumps(found))


def measure(options: argparse.Namespace, name: str, tables: str, world: int) -> dict[str, Any]:
    """What the processes of a way found."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={world}", __file__, "--worker", str(found), "--name", name),
            *("--tables", tables, "--steps", str(options.steps), "--device", options.device),
            *(["--quick"] if options.quick else []),
        ]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return dict(json.loads(found.read_text()))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = known_options.new_parser(__doc__, quick="a small graph: a smoke test")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--tables", help=argparse.SUPPRESS)
    known_options.add_device(parser)
    known_options.add_outputs(parser, "distributed-training")
    options = parser.parse_args()
    known_options.check_positive(parser, options, "steps")
    known_options.set_outputs(options, "distributed-training")
    return options


def main() -> int:
    """Measure, print, write."""
    options = parse()
    if options.worker is not None:
        train(options)
        return 0
    out, about = console(), facts(options.device)
    out.print(machine_line(about) + "\n", style="dim")
    rows: list[dict[str, Any]] = []
    for name in list(CONFIGS)[: 1 if options.quick else None]:
        one: dict[str, Any] = {}
        for tables, world in SOME_WAYS.get(name, WAYS)[: 3 if options.quick else None]:
            found = measure(options, name, tables, world)
            one = one or found
            rows += rows_of({"name": name, "tables": tables, "processes": world}, found, one, about)
            speed, curve = rows[-2:]
            out.print(
                f"{name}, {world} x {tables}: {speed['steps_per_second']:.2f} steps/s "
                f"({speed['times_one_process']:.2f}x), "
                f"{1e3 * speed['cpu_seconds_per_step']:.1f} ms of CPU a step and process, "
                f"losses within {max(curve['relative_differences']):.1e}"
            )
    if options.json is not None:
        write_json(options.json, {"rows": rows})
    draw("draw_distributed_training", rows, options.plot, out)
    return 0


def rows_of(
    way: dict[str, Any], found: dict[str, Any], one: dict[str, Any], about: dict[str, Any]
) -> list[dict[str, Any]]:
    """The row of speed and the row of the curve of a way, beside one process."""
    own, expected = (torch.tensor(it["losses"]).double() for it in (found, one))
    common = {"benchmark": "distributed_training", "steps": len(own), **way}
    speed = {
        "section": "speed",
        **common,
        "steps_per_second": found["steps_per_second"],
        "cpu_seconds_per_step": found["cpu_seconds_per_step"],
        "times_one_process": found["steps_per_second"] / one["steps_per_second"],
        "first_loss": found["losses"][0],
        "last_loss": found["losses"][-1],
        "test_mrr": found["test_mrr"],
        **about,
    }
    differences = ((own - expected) / expected).abs().tolist()
    return [speed, {"section": "curve", **common, "relative_differences": differences, **about}]


if __name__ == "__main__":
    sys.exit(main())

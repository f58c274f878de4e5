"""Training by several processes against one: losses step by step, and steps a second.

    python benchmarks/distributed_training.py             results/cpu-distributed-training.json
    python benchmarks/distributed_training.py --quick     a smoke test: a small graph, seconds

Each way trains the same config on the same graph in processes of torchrun, one thread each, without
evaluations between. Speed is that of all steps but the first tenth, by the clock of process 0; CPU
time of a step is its median there, which a busy machine disturbs less.
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
}
WAYS = (("replicated", 1), ("replicated", 2), ("sharded", 2), ("sharded", 4))


def config_of(name: str, tables: str, steps: int, device: str) -> Config:
    """The config of a row."""
    common = {
        "dataset": {"name": "synthetic"},
        "threads": 1,
        "device": device,
        "optim": {"name": "row_adam", "lr": 1e-3},
        "train": {"steps": steps},
        "distributed": {"tables": tables},
    }
    return Config.from_dict(common | CONFIGS[name])


def train(options: argparse.Namespace) -> None:
    """One process of a way; the first writes losses and seconds."""
    config = config_of(options.name, options.tables, options.steps, options.device)
    graph = kgfast.datasets.synthetic(*(QUICK_SIZES if options.quick else ()))
    trainer = Trainer(config, dataset=graph, progress=False)
    run, stopwatch = bare_run(trainer), Stopwatch(trainer.device.type)
    losses, seconds, cpu = [], [], []
    for _ in range(options.steps):
        before, began = run.state.loss_sum, time.process_time()
        seconds.append(stopwatch.seconds(run.make_step))
        cpu.append(time.process_time() - began)
        losses.append(run.state.loss_sum - before)
        run.state.loss_sum = 0.0
    if trainer.placement.leads:
        first = len(seconds) // 10
        found = {
            "losses": losses,
            "steps_per_second": (len(seconds) - first) / sum(seconds[first:]),
            "cpu_seconds_per_step": statistics.median(cpu[first:]),
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
    known_options.add_outputs(parser, "distributed-training", plot=False)
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
    rows = []
    for name in list(CONFIGS)[: 1 if options.quick else None]:
        one: dict[str, Any] = {}
        for tables, world in WAYS[: 3 if options.quick else None]:
            found = measure(options, name, tables, world)
            one = one or found
            own, expected = (torch.tensor(it["losses"]).double() for it in (found, one))
            row = {
                "benchmark": "distributed_training",
                "name": name,
                "tables": tables,
                "processes": world,
                "steps": options.steps,
                "largest_relative_difference": float(((own - expected) / expected).abs().max()),
                "steps_per_second": found["steps_per_second"],
                "cpu_seconds_per_step": found["cpu_seconds_per_step"],
                "times_one_process": found["steps_per_second"] / one["steps_per_second"],
                "first_loss": found["losses"][0],
                "last_loss": found["losses"][-1],
                **about,
            }
            rows.append(row)
            out.print(
                f"{name}, {world} x {tables}: {row['steps_per_second']:.2f} steps/s "
                f"({row['times_one_process']:.2f}x), "
                f"{1e3 * row['cpu_seconds_per_step']:.1f} ms of CPU a step and process, "
                f"losses within "
                f"{row['largest_relative_difference']:.1e}"
            )
    if options.json is not None:
        write_json(options.json, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())

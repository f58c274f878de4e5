"""Compare training by several processes with one: losses step by step, and seconds of a step.

    python benchmarks/distributed_training.py             results/cpu-distributed-training.json

Each way trains one config in processes of torchrun, one thread each, without evaluations between.
`speed`: steps a second after the first tenth, median CPU time of a step in process 0, and the final
MRR. `curve`: relative differences of each step's loss from that of one process.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast.training import Config, Trainer
from lib.bare_run import bare_run
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options
from lib.measure import Stopwatch

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
    "docs/explanation/scale.md": {
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
SMALL = (
    2_000,
    8,
    12_000,
    200,
    200,
)  # sizes of docs/explanation/scale.md; the others have those of WN18RR
ON_SMALL = ("docs/explanation/scale.md", *SOME_WAYS)
WORKER = "--worker"  # the script is one of the processes


def config_of(name: str, tables: str, steps: int, device: str) -> Config:
    """Return the config of a row."""
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


def train(path: Path, sizes: list[int], name: str, *of_config: Any) -> None:
    """Train in one process of several; the first writes losses and seconds."""
    config = config_of(name, *of_config)
    trainer = Trainer(config, dataset=kgfast.datasets.synthetic(*sizes), progress=False)
    run, stopwatch = bare_run(trainer), Stopwatch(trainer.device.type)
    losses, seconds, cpu = [], [], []
    for _ in range(config.train.steps or 0):
        before, began = run.state.loss_sum, time.process_time()
        seconds.append(stopwatch.seconds(run.make_step))
        run.read_losses()
        cpu.append(time.process_time() - began)
        losses.append(run.state.loss_sum - before)
        run.state.loss_sum = 0.0
    ranks = trainer.evaluate("test") if name in ON_SMALL else None
    if trainer.placement.leads:
        first = len(seconds) // 10
        found = {
            "losses": losses,
            "steps_per_second": (len(seconds) - first) / sum(seconds[first:]),
            "cpu_seconds_per_step": statistics.median(cpu[first:]),
            "test_mrr": ranks.metrics()["mrr"] if isinstance(ranks, kgfast.Ranks) else None,
        }
        path.write_text(json.dumps(found))


def measure(options: Options, name: str, tables: str, world: int) -> dict[str, Any]:
    """Train in processes of torchrun, and return the findings of the first process."""
    sizes = QUICK_SIZES if options.quick else SMALL if name in ON_SMALL else ()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        work = [str(found), sizes, name, tables, options.steps, options.device]
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={world}", __file__, WORKER, json.dumps(work)),
        ]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return dict(json.loads(found.read_text()))


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the row of speed and the row of the curve of each way, beside one process."""
    for name in list(CONFIGS)[: 1 if options.quick else None]:
        one: dict[str, Any] = {}
        for tables, world in SOME_WAYS.get(name, WAYS)[: 3 if options.quick else None]:
            found = measure(options, name, tables, world)
            one = one or dict(found)
            losses = found.pop("losses")
            own, expected = (torch.tensor(it).double() for it in (losses, one["losses"]))
            way = {"steps": options.steps, "name": name, "tables": tables, "processes": world}
            yield {
                "section": "speed",
                **way,
                **found,
                "times_one_process": found["steps_per_second"] / one["steps_per_second"],
                "first_loss": losses[0],
                "last_loss": losses[-1],
            }
            differences = ((own - expected) / expected).abs().tolist()
            yield {"section": "curve", **way, "relative_differences": differences}


WAY = (("config", "{name}"), ("processes:", "{processes} x {tables}"))
BENCHMARK = Benchmark(
    "distributed_training",
    __doc__,
    {"ways": rows_of},
    options={"steps": Option("of each way", 200)},
    tables={
        "speed": (
            "Steps of several processes",
            (
                *WAY,
                ("steps/s:", "{steps_per_second:.2f}"),
                ("x one process:", "{times_one_process:.2f}"),
                ("CPU of a step and process:", "{cpu_seconds_per_step:time}"),
            ),
        ),
        "curve": (
            "Losses beside those of one process",
            (*WAY, ("within:", lambda row: f"{max(row['relative_differences']):.1e}")),
        ),
    },
    picture="draw_distributed_training",
    has_device=True,
)

if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        file, *given = json.loads(sys.argv[2])
        train(Path(file), *given)
    else:
        sys.exit(BENCHMARK.main())

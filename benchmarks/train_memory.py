"""Memory of a training run from evaluation to evaluation: RotatE + MED + RSCF as it was meant.

    python benchmarks/train_memory.py --data DIR      results/cpu-train-memory.json
    python benchmarks/train_memory.py --quick         a smoke test: a tiny model, seconds

DIR is a folder of the config's dataset. Runs the first steps of a config, 20 between evaluations of
the valid set, or so many triples of it, by every sub-model, and reads what the process holds after
each evaluation, what the allocator gives back aside, and how much more it held at its peak.
"""

import argparse
import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast.eval.ranks import Ranks
from kgfast.training import Config, Trainer
from lib import options as known_options
from lib.bare_run import bare_run
from lib.machine import facts, machine_line
from lib.measure import PeakMemory, Stopwatch, resident_bytes, return_free_memory
from lib.options import QUICK_SIZES
from lib.results import ROOT, write_json
from lib.tables import console, human_bytes, human_seconds

CONFIG = ROOT / "configs" / "wn18rr" / "rotate_med_rscf.yaml"
QUICK = ("model.base_dim=16", "med.dims=[4,8,16]", "data.train_bs=64")


class Watched(Trainer):
    """A trainer whose evaluations are measured, a row each."""

    rows: list[dict[str, Any]]

    def evaluate(self, split: str = "test") -> Ranks | dict[int, Ranks]:
        """As :meth:`Trainer.evaluate`."""
        stopwatch, found = Stopwatch(self.device.type), []
        with PeakMemory(self.device.type) as peak:
            seconds = stopwatch.seconds(lambda: found.append(super(Watched, self).evaluate(split)))
        by_dim = found[0] if isinstance(found[0], dict) else {self.model.dim: found[0]}
        self.rows.append(
            {
                "resident_bytes": _held(self.device),
                "peak_bytes": peak.bytes,
                "method": peak.method,
                "seconds": seconds,
                "mrr": {str(dim): ranks.mrr for dim, ranks in by_dim.items()},
            }
        )
        return found[0]


def _held(device: torch.device) -> int:
    """What the process holds on the device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated()
    gc.collect()
    return_free_memory()
    return resident_bytes()


def trainer_of(options: argparse.Namespace) -> Watched:
    """The trainer of the config, on its data or on a synthetic graph."""
    changes = list(QUICK) if options.quick else [f"dataset.root={options.data}"]
    config = Config.from_yaml(options.config, [*changes, f"device={options.device}"])
    graph = kgfast.datasets.synthetic(*QUICK_SIZES) if options.quick else None
    trainer = Watched(config, dataset=graph, progress=False)
    if options.triples is not None:
        valid = trainer.dataset.valid
        trainer.dataset = replace(trainer.dataset, valid=valid[: options.triples])
    trainer.rows = []
    return trainer


def measure(trainer: Watched, evaluations: int, every: int) -> list[dict[str, Any]]:
    """Train and evaluate in turns; a row for each evaluation."""
    run = bare_run(trainer)
    for _ in range(evaluations):
        before = run.state.seconds_training
        for _ in range(every):
            run.make_step()
        run.evaluated("valid")
        trainer.rows[-1] |= {
            "step": run.state.step,
            "seconds_per_step": (run.state.seconds_training - before) / every,
        }
    return trainer.rows


def parse() -> argparse.Namespace:
    """The command line."""
    parser = known_options.new_parser(__doc__, quick="a tiny model: a smoke test")
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--data", metavar="DIR", help="where the dataset of the config is")
    parser.add_argument("--evaluations", type=int, default=3)
    parser.add_argument("--every", type=int, default=20, help="steps between them")
    parser.add_argument("--triples", type=int, help="of the valid set; all unless given")
    known_options.add_device(parser)
    known_options.add_outputs(parser, "train-memory", plot=False)
    options = parser.parse_args()
    known_options.check_positive(parser, options, "evaluations", "every", "triples")
    known_options.check_data(parser, options)
    known_options.set_outputs(options, "train-memory")
    return options


def main() -> int:
    """Measure, print, write."""
    options = parse()
    out, about = console(), facts(options.device)
    out.print(machine_line(about) + "\n", style="dim")
    trainer = trainer_of(options)
    med = trainer.config.med
    known = {
        "benchmark": "train_memory",
        "config": options.config.stem,
        "graph": trainer.dataset.name,
        "dims": [trainer.model.dim] if med is None else med.dims,
        "triples": len(trainer.dataset.valid),
        **about,
    }
    with out.status("training and evaluating ..."):
        rows = [known | row for row in measure(trainer, options.evaluations, options.every)]
    for row in rows:
        out.print(
            f"step {row['step']}: {human_bytes(row['resident_bytes'])} held after the evaluation, "
            f"{human_bytes(max(0, row['peak_bytes']))} more within it; "
            f"{human_seconds(row['seconds_per_step'])} a step, "
            f"{human_seconds(row['seconds'])} the evaluation"
        )
    if options.json is not None:
        write_json(options.json, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())

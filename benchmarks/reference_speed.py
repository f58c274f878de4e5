"""How much slower ranking is where the extension is not built: the reference backend beside it.

    python benchmarks/reference_speed.py            writes results/cpu-reference-speed.json
    python benchmarks/reference_speed.py --quick    a smoke test: a tiny table; writes nothing

Triples of a graph of the size of WN18RR (40,943 entities, 11 relations) are ranked on both sides by
each backend in turn; a time is CPU seconds per triple, the least of the rounds (whatever else runs
on the machine only adds to it), the reference's of fewer triples. What `kgfast.info()`, the
warning of the first call and the README say is the range of these ratios, rounded down.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib.machine import facts
from lib.results import RESULTS, write_json
from lib.tables import console

MODELS = {"RotatE": 200, "TransE": 200, "DistMult": 200, "ComplEx": 200}
SIZE, QUICK_SIZE = (40_943, 11), (500, 3)
TRIPLES = {"cpu": 512, "reference": 16}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="default: results/cpu-reference-speed.json")
    options = parser.parse_args()
    size = QUICK_SIZE if options.quick else SIZE
    about = facts("cpu")
    rows = [about | row_of(name, dim, size, options.rounds) for name, dim in MODELS.items()]
    for row in rows:
        console().print(
            f"{row['model']:>9} {row['dim']:>4}: {row['seconds']['reference'] * 1e3:8.1f} ms a "
            f"triple, {row['times_cpu']:.0f} times as long as the extension"
        )
    path = options.json or (None if options.quick else RESULTS / "cpu-reference-speed.json")
    if path is not None:
        write_json(path, {"rows": rows})
    return 0 if all(row["equal"] for row in rows) else 1


def row_of(name: str, dim: int, size: tuple[int, int], rounds: int) -> dict[str, Any]:
    """The least of both backends, in turns, and whether their counts are equal."""
    model = getattr(kgfast, name).init(*size, dim, seed=0)
    generator = torch.Generator().manual_seed(0)
    columns = (torch.randint(n, (TRIPLES["cpu"],), generator=generator) for n in (*size, size[0]))
    triples = torch.stack(list(columns), 1)
    seconds: dict[str, list[float]] = {backend: [] for backend in TRIPLES}
    counts: dict[str, Tensor] = {}
    for _ in range(rounds):
        for backend, count in TRIPLES.items():
            with kgfast.use_backend(backend):
                start = time.process_time()
                counts[backend] = kgfast.rank(model, triples[:count]).greater
                seconds[backend].append((time.process_time() - start) / count)
    least = {backend: min(found) for backend, found in seconds.items()}
    few = TRIPLES["reference"]
    return {
        "benchmark": "reference_speed",
        "model": name,
        "dim": dim,
        "entities": size[0],
        "rounds": rounds,
        "seconds": least,
        "times_cpu": least["reference"] / least["cpu"],
        "equal": bool(torch.equal(counts["cpu"][:few], counts["reference"])),
    }


if __name__ == "__main__":
    sys.exit(main())

"""Compare ranking by the reference backend, without the extension, with ranking by the extension.

    python benchmarks/reference_speed.py            writes results/cpu-reference-speed.json

Triples of a graph of the size of WN18RR (40,943 entities, 11 relations) are ranked on both sides by
each backend in turn; a time is CPU seconds per triple, the least of the rounds (whatever else runs
on the machine only adds to it), the reference's of fewer triples. `kgfast.info()`, the warning of
the first call and the README quote the range of these ratios, rounded down.
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch

import kgfast
from lib.benchmark import Benchmark, Option, Options
from lib.measure import take_turns, timed

MODELS = {"RotatE": 200, "TransE": 200, "DistMult": 200, "ComplEx": 200}
SIZE, QUICK_SIZE = (40_943, 11), (500, 3)
TRIPLES = {"cpu": 512, "reference": 16}


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield the least seconds of both backends, and whether their counts are equal."""
    size = QUICK_SIZE if options.quick else SIZE
    for name, dim in MODELS.items():
        model = getattr(kgfast, name).init(*size, dim, seed=0)
        generator = torch.Generator().manual_seed(0)
        counts = (*size, size[0])
        columns = [torch.randint(n, (TRIPLES["cpu"],), generator=generator) for n in counts]
        triples, greater = torch.stack(columns, 1), {}

        def rank(backend: str, model: Any = model, triples: Any = triples) -> torch.Tensor:
            with kgfast.use_backend(backend):
                return kgfast.rank(model, triples[: TRIPLES[backend]]).greater

        contenders = {
            it: lambda it=it, greater=greater: greater.update({it: rank(it)}) for it in TRIPLES
        }
        seconds = take_turns(contenders, options.rounds, lambda work: timed(work)[1]["cpu_seconds"])
        least = {backend: min(seconds[backend]) / count for backend, count in TRIPLES.items()}
        few = greater["cpu"][: TRIPLES["reference"]]
        yield {
            "model": name,
            "dim": dim,
            "entities": size[0],
            "rounds": options.rounds,
            "seconds": least,
            "times_cpu": least["reference"] / least["cpu"],
            "equal": bool(torch.equal(few, greater["reference"])),
        }


BENCHMARK = Benchmark(
    "reference_speed",
    __doc__,
    {"ranks": rows_of},
    options={"rounds": Option("turns of each backend", 3)},
    tables=(
        ("model", "{model}"),
        ("features:", "{dim}"),
        ("a triple by the reference:", "{seconds[reference]:time}"),
        ("times the extension's:", "{times_cpu:.0f}"),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

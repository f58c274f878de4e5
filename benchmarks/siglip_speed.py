"""Compare the sigmoid loss of image-text pairs with torch's in chunks: time, memory, errors.

    python benchmarks/siglip_speed.py --threads 1     writes results/cpu-siglip.json

`times`: kgfast, open_clip's formula on checkpointed chunks, and three products a chunk written by
hand, in turns. Each peer has the chunk that was fastest on the first images. Seconds are those of
all threads of the process, since a machine may have other work. `memory`: peak beyond inputs, less
gradients, in a process of its own. `errors`: the largest error of value and gradients, relative to
the largest number of each, against float64.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import kgfast
from lib.benchmark import THREADS, Benchmark, Option, Options
from lib.columns import SIGLIP
from lib.measure import PeakMemory, in_child, take_turns, timed
from lib.peers import siglip as peers
from lib.peers.siglip import Pairs, Run
from lib.results import Row, Rows

DIM = 768
TIMED, HELD, EXACT = 16_384, 65_536, 512  # pairs
QUICK = 32, 6  # pairs, features
TRIED = 2048  # images on which chunks are tried
CHUNKS = (256, 512, 1024, 2048)
PEERS: dict[str, Callable[..., Run]] = {
    "checkpointed chunks": peers.checkpointed,
    "three products a chunk": peers.three_products,
}
GOALS = {"checkpointed chunks": "<= 0.8x", "three products a chunk": "<= 0.9x"}


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of all threads."""
    return float(timed(work)[1]["cpu_seconds"])


def time_rows(options: Options) -> Iterator[Row]:
    """Yield a row for each contender."""
    count, dim = QUICK if options.quick else (TIMED, DIM)
    pairs = Pairs.random(count, dim)
    runs, chunks = {"kgfast": peers.kgfast_siglip(pairs)}, {}
    for name, make in PEERS.items():
        tried = {it: make(pairs, it, TRIED if count > TRIED else None) for it in CHUNKS}
        seconds = take_turns(tried, 1, cpu_seconds)
        chunks[name] = min(CHUNKS, key=lambda it: min(seconds[it]))
        runs[name] = make(pairs, chunks[name])
    if "bf16" in kgfast.info().precisions:
        runs["kgfast, bf16"] = peers.kgfast_siglip(pairs, "bf16")
    loss: dict[str, float] = {}

    def kept(name: str, run: Run) -> Callable[[], None]:
        def work() -> None:
            loss[name] = float(run()[0])

        return work

    peers.kgfast_siglip(Pairs.random(64, dim))()
    seconds = take_turns(
        {name: kept(name, run) for name, run in runs.items()}, options.rounds, cpu_seconds
    )
    own = seconds["kgfast"]
    for name in runs:
        ratios = [one / other for one, other in zip(own, seconds[name], strict=True)]
        yield {
            **{"section": "times", "contender": name, "batch": count, "dim": dim},
            "chunk": chunks.get(name),
            "loss": loss[name],
            "cpu_seconds": statistics.median(seconds[name]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "rounds": options.rounds,
        }


def memory_rows(options: Options) -> Iterator[Row]:
    """Yield the peak of kgfast's loss."""
    count, dim = QUICK if options.quick else (HELD, DIM)
    yield in_child(peak_of, count, dim)


def peak_of(count: int, dim: int) -> dict[str, Any]:
    """Measure the peak beyond inputs and gradients."""
    peers.kgfast_siglip(Pairs.random(64, dim))()
    pairs = Pairs.random(count, dim)
    with PeakMemory("cpu") as peak:
        (loss, *gradients), times = timed(peers.kgfast_siglip(pairs))
    return {
        **{"section": "memory", "contender": "kgfast", "batch": count, "dim": dim},
        "bytes": peak.bytes - sum(it.nbytes for it in gradients),
        "method": peak.method,
        "logits_bytes": 4 * count * count,
        "loss": float(loss),
        **times,
    }


def error_rows(options: Options) -> Iterator[Row]:
    """Yield errors against float64, where training begins and where it ends."""
    count, dim = QUICK if options.quick else (EXACT, DIM)
    for scale, bias in ((peers.SCALE, peers.BIAS), (100.0, -12.0)):
        pairs = Pairs.random(count, dim)
        pairs.scale.data.fill_(scale)
        pairs.bias.data.fill_(bias)
        exact = Pairs(*(it.detach().double().requires_grad_() for it in pairs.tensors()))
        right = peers.checkpointed(exact, count)()
        for precision in ("float32", "bf16"):
            if precision not in ("float32", *kgfast.info().precisions):
                continue
            found = peers.kgfast_siglip(pairs, precision)()
            errors = [
                float((one - other).abs().max() / other.abs().max())
                for one, other in zip(found, right, strict=True)
            ]
            yield {
                **{"section": "errors", "batch": count, "dim": dim, "scale": scale, "bias": bias},
                "contender": "kgfast" if precision == "float32" else "kgfast, bf16",
                "errors": dict(
                    zip(("loss", "image", "text", "scale", "bias"), errors, strict=True)
                ),
                "error": max(errors),
            }


def ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Yield measured calls, ratios and goals."""
    for row in rows:
        name = row["contender"]
        if name in GOALS:
            yield f"CPU time of kgfast against {name}", f"{row['ratio']:.2f}x", GOALS[name]
        elif row["section"] == "memory":
            yield "peak beyond inputs and gradients", f"{row['bytes'] / 2**20:.0f} MiB", "<= 64 MiB"
        elif row["section"] == "errors" and name == "kgfast":
            yield f"error at scale {row['scale']:g}", f"{row['error']:.1e}", "<= 1e-5"


def is_right(row: Row) -> bool:
    """Return whether a row is within its bound."""
    return row["section"] != "errors" or row["error"] < (
        1e-5 if row["contender"] == "kgfast" else 1e-2
    )


BENCHMARK = Benchmark(
    "siglip",
    __doc__,
    {"errors": error_rows, "times": time_rows, "memory": memory_rows},
    options={"rounds": Option("turns of a contender", 5, 1), "threads": THREADS},
    tables=SIGLIP,
    ratios=ratios,
    is_right=is_right,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())

"""A race of losses, which loss_mem and loss_speed share."""

from collections.abc import Mapping
from typing import Any

import torch

from lib.benchmark import Option
from lib.measure import Stopwatch
from lib.peers import losses as peers
from lib.peers.losses import Run, Work

OPTIONS = {
    "rounds": Option("turns of a contender", 9, 2),
    "no_compile": Option("leave torch.compile out", False, True),
}
Parts = Mapping[str, tuple[Run, float]]  # what runs, and how many times its work is the whole


def let_compile() -> None:
    """Let torch.compile compile for many shapes."""
    torch._dynamo.config.cache_size_limit = 64


def contenders(section: str, work: Work, *, compile: bool) -> Parts:
    """Return what runs of a loss over all candidates, by the name of the work."""
    parts, more = 1.0, {}
    if section.startswith("bce"):
        ours, make = peers.kgfast_bce, peers.dense_bce
        if work.score == "rotate":
            make, parts = peers.chunk_of_rotate_bce, len(work.table) / peers.rotate_chunk(work)
    else:
        ours, make = peers.kgfast_cross_entropy, peers.dense_cross_entropy
        if section.startswith("1-vs-all"):
            compile = False
            more["products"] = peers.three_products(work)
            more["kgfast_bf16"] = ours(work, precision="bf16")
            more["eager_bf16"] = peers.dense_cross_entropy_bf16(work)
        elif peers.has_linear_cross_entropy():
            more["linear"] = peers.linear_cross_entropy(work)
    runs = {"kgfast": ours(work)} | more
    peer = {"eager": make(work)} | ({"compile": make(work, compile=True)} if compile else {})
    return {name: (run, parts if name in peer else 1.0) for name, run in (runs | peer).items()}


def race(work: Work, contenders: Parts, device: str, rounds: int) -> list[dict[str, Any]]:
    """Let all contenders take turns; return a row for each, also of those that fail."""
    rows, runs = [], {}
    for name, (run, parts) in contenders.items():
        row: dict[str, Any] = {
            "score": work.score,
            "batch": len(work.queries),
            "entities": len(work.table),
            "dim": work.dim,
            "contender": name,
            "seconds": None,
            "extrapolated": parts > 1,
        }
        rows.append(row)
        try:
            row["loss"] = run()
            runs[name] = run
        except Exception as error:
            row["note"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    _, timings = Stopwatch(device).race(runs, rounds)
    scaled = {name: timing.scaled(contenders[name][1]) for name, timing in timings.items()}
    for row in rows:
        timing = scaled.get(row["contender"])
        if timing is not None:
            row["seconds"] = timing.as_dict()
            if "kgfast" in scaled:
                row["times_kgfast"] = timing.median / scaled["kgfast"].median
    return rows

"""A race of losses, which loss_mem and loss_speed share."""

from collections.abc import Mapping
from typing import Any

import torch

from lib.benchmark import Option
from lib.columns import NAMES as ALL_NAMES
from lib.columns import RACE
from lib.measure import Stopwatch
from lib.peers.losses import Run, Work
from lib.tables import Columns

OPTIONS = {
    "rounds": Option("turns of a contender", 9, 2),
    "no_compile": Option("leave torch.compile out", False, True),
}
NAMES = ALL_NAMES | {"eager": "torch, eager"}
CONTENDER: Columns = (("contender", lambda row: NAMES.get(row["contender"], row["contender"])),)
RACED: Columns = RACE[1:]
Parts = Mapping[str, tuple[Run, float]]  # what runs, and how many times its work is the whole


def let_compile() -> None:
    """Let torch.compile compile for many shapes."""
    torch._dynamo.config.cache_size_limit = 64


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

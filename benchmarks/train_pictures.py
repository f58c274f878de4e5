"""The picture of train_speed: time of a step and its memory, on log scales."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pictures
from common import human_bytes, human_seconds
from pictures import ACCENT, GREYS, STYLE, Bar


def draw_training(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of the contenders that ran, the slowest on top."""
    ran = [row for row in rows if row["seconds"]]
    ran.sort(key=lambda row: -float(row["seconds"]["median"]))
    with plt.rc_context(STYLE):
        height = 3.9
        figure, (seconds, memory) = plt.subplots(1, 2, figsize=(11.5, height))
        medians = [row["seconds"]["median"] for row in ran]
        peaks = [row["memory"]["bytes"] for row in ran]
        seconds.set_title("Time of a step", loc="left", fontweight="bold", pad=10)
        pictures._grouped(seconds, [""], [_bars(ran, medians, human_seconds)])
        pictures._second_ticks(seconds)
        memory.set_title("Peak memory beyond the model", loc="left", fontweight="bold", pad=10)
        pictures._grouped(memory, [""], [_bars(ran, peaks, human_bytes)])
        memory.xaxis.set_major_formatter(lambda value, _: human_bytes(value))
        row = ran[0]
        pictures._frame(
            figure,
            height,
            "The same steps, sooner",
            f"RotatE, dim {row['dim']}: {row['batch']} triples with {row['negatives']:,} negatives "
            f"each, {row['entities']:,} entities. All take turns on "
            f"{pictures._where(row['machine'])}; medians.",
            "Plain torch: the official code's formula on the same pool of negatives, dense Adam. "
            "PyKEEN: its own sLCWA loop.\nTuned: gradients of parts of the batch add up, the "
            "fastest of three sizes. Memory includes the optimizer's state. Log scales.",
        )
        pictures._save(figure, path)


def _bars(rows: Sequence[Mapping[str, Any]], values: Sequence[float], text: Any) -> list[Bar]:
    return [
        Bar(
            row["contender"].replace("pykeen", "PyKEEN"),
            value,
            text(value),
            ACCENT if row["contender"] == "kgfast" else GREYS["official"],
        )
        for row, value in zip(rows, values, strict=True)
    ]
